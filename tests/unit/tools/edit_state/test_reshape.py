"""State with other keys, other operators, and columns from a table; both providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.unit.state.samples import Sample, content, edit, files, home_of, make

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.operator_metadata import read_operator
from epochal.cli.main import main
from epochal.errors import EditError, OptionError, StateValueError
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.types import StructType
from epochal.state.store.store_format import FORMATS, ROCKSDB
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.survey import survey
from epochal.tools.edit_state.convert import plan_convert
from epochal.tools.edit_state.evolve import (
    AddColumn,
    RenameColumn,
    parse_type,
    plan_backfill,
    plan_evolve,
)
from epochal.tools.edit_state.mutate import Mutation, plan_mutations
from epochal.tools.edit_state.rekey import plan_rekey
from epochal.tools.edit_state.reshape import plan_merge, plan_move, plan_split
from epochal.tools.read_state.read import read_state
from epochal.tools.verify.verify import verify

ROWS = {f"{letter}{number}": (number, 10 * number) for letter in "abcdef" for number in (1, 2, 3)}
ONE_LETTER = dict.fromkeys("abcdef", (6, 60))


@pytest.fixture(params=FORMATS)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    made = make(tmp_path / "checkpoint", [{}, ROWS])
    if request.param == ROCKSDB:
        edit(made, plan_convert, ROCKSDB)
    return made


def rows(sample: Sample, operator: int = 0) -> dict[Any, tuple[Any, ...]]:
    """Values by key; the key is a tuple if it has several columns."""
    found: dict[Any, tuple[Any, ...]] = {}
    for row in read_state(sample.path, operator).to_pylist():
        key = tuple(row["key"].values())
        found[key[0] if len(key) == 1 else key] = tuple(row["value"].values())
    return found


def directories(sample: Sample) -> set[str]:
    found = {str(p.relative_to(sample.root)) for p in sample.root.rglob("*") if p.is_dir()}
    return {each for each in found if not each.startswith(".epochal")}


def letter(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return {"k": key["k"][0]}


def add(key: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] + other[name] for name in one}


def test_rows_move_to_their_new_keys_and_meet_there(sample: Sample) -> None:
    before = rows(sample)
    edit(sample, plan_rekey, letter, merge=add)
    assert rows(sample) == ONE_LETTER
    places = {r["key"]["k"]: r["partition_id"] for r in read_state(sample.path).to_pylist()}
    assert places == {key: home_of(key, 3) for key in ONE_LETTER}
    newest = Checkpoint(sample.path).commits.latest_batch_id()
    assert newest is not None
    assert len(read_state(sample.path, batch_id=newest - 1)) == len(before)
    assert verify(files(sample)).findings == ()


def test_rows_that_meet_without_a_merge_function_are_both_named(sample: Sample) -> None:
    before = content(sample)
    with pytest.raises(
        EditError, match=r'\{"k": "\w1"\} and \{"k": "\w\d"\} both become|both become'
    ):
        edit(sample, plan_rekey, letter)
    assert content(sample) == before


def test_a_new_key_can_have_other_columns_and_the_value_too(sample: Sample) -> None:
    def apart(key: dict[str, Any], value: dict[str, Any]) -> Any:
        if key["k"] == "a1":
            return None
        parts = {"letter": key["k"][0], "number": int(key["k"][1])}
        return parts, {"total": str(value["sum"])}

    before = content(sample)
    entry = edit(
        sample,
        plan_rekey,
        apart,
        key_schema=parse_ddl("letter string, number int"),
        value_schema=parse_ddl("total string"),
    )
    assert rows(sample) == {
        (key[0], int(key[1])): (str(value[1]),) for key, value in ROWS.items() if key != "a1"
    }
    assert verify(files(sample)).findings == ()
    Journal(files(sample)).undo(entry)
    assert content(sample) == before


@pytest.mark.parametrize(
    ("function", "error", "reason"),
    [
        (lambda key, value: {"k": 5}, StateValueError, "a string is needed"),
        (lambda key, value: {"x": "a"}, StateValueError, "the new key of"),
        (lambda key, value: key["nothing"], EditError, "failed for the key .* KeyError"),
        (lambda key, value: (key, {"count": "x", "sum": 1}), StateValueError, "the new value of"),
    ],
)
def test_a_key_function_that_errs_changes_nothing(
    sample: Sample, function: Any, error: type[Exception], reason: str
) -> None:
    before = content(sample)
    with pytest.raises(error, match=reason):
        edit(sample, plan_rekey, function)
    assert content(sample) == before


def test_state_without_keys_keeps_none(sample: Sample) -> None:
    with pytest.raises(EditError, match="Keep at least one key column"):
        edit(sample, plan_rekey, lambda key, value: {}, key_schema=StructType(()), merge=add)


def test_columns_are_split_off_and_merged_again(sample: Sample) -> None:
    edit(sample, plan_split, ["sum"], 1)
    assert rows(sample, 0) == {key: (count,) for key, (count, _) in ROWS.items()}
    assert rows(sample, 1) == {key: (total,) for key, (_, total) in ROWS.items()}
    metadata = read_operator(files(sample), 1)
    assert metadata is not None
    assert (metadata.operator_id, metadata.operator_name) == (1, "stateStoreSave")
    assert verify(files(sample)).findings == ()
    edit(sample, plan_mutations, [Mutation({"k": "a1"}, None)])
    edit(sample, plan_mutations, [Mutation({"k": "b1"}, None)], operator_id=1)
    before, folders = content(sample), directories(sample)
    entry = edit(sample, plan_merge, 1, fill={"count": 0})
    assert rows(sample) == {**ROWS, "a1": (0, 10), "b1": (1, None)}
    assert not (sample.root / "state" / "1").exists()
    assert verify(files(sample)).findings == ()
    Journal(files(sample)).undo(entry)
    assert content(sample) == before
    assert directories(sample) == folders


def test_operators_change_their_numbers(sample: Sample) -> None:
    edit(sample, plan_split, ["sum"], 1)
    before, folders = content(sample), directories(sample)
    entries = [edit(sample, plan_move, *pair) for pair in ((0, 2), (1, 0), (2, 1))]
    assert rows(sample, 1) == {key: (count,) for key, (count, _) in ROWS.items()}
    assert rows(sample, 0) == {key: (total,) for key, (_, total) in ROWS.items()}
    assert sorted(path.name for path in (sample.root / "state").iterdir()) == ["0", "1"]
    assert verify(files(sample)).findings == ()
    for entry in reversed(entries):
        Journal(files(sample)).undo(entry)
    assert content(sample) == before
    assert directories(sample) == folders


def test_a_gap_between_operators_is_named(sample: Sample) -> None:
    for plan, arguments, gap in (
        (plan_split, (["sum"], 3), "1, 2"),
        (plan_move, (0, 1), "0"),
        (plan_split, (["sum"], 1), ""),
    ):
        warnings = " ".join(plan(survey(files(sample)), *arguments).warnings)
        assert (f"No operator has the number {gap} now" in warnings) is bool(gap)


def test_what_cannot_be_split_merged_or_moved_is_refused(sample: Sample) -> None:
    for columns in (["count", "sum"], [], ["nothing"]):
        with pytest.raises(OptionError, match="has the columns count, sum"):
            edit(sample, plan_split, columns, 1)
    with pytest.raises(EditError, match="there is an operator 0 already"):
        edit(sample, plan_move, 0, 0)
    with pytest.raises(OptionError, match="no operator 5"):
        edit(sample, plan_move, 5, 6)
    edit(sample, plan_split, ["sum"], 1)
    edit(sample, plan_evolve, [RenameColumn("sum", "count")], operator_id=1)
    with pytest.raises(EditError, match="both have count"):
        edit(sample, plan_merge, 1)
    edit(sample, plan_evolve, [RenameColumn("count", "sum")], operator_id=1)
    with pytest.raises(OptionError, match="no column 'x' to fill"):
        edit(sample, plan_merge, 1, fill={"x": 0})
    with pytest.raises(OptionError, match="merged with itself"):
        edit(sample, plan_merge, 0)


TABLE = pa.table(
    {"k": ["a1", "b1", "yy"], "best": pa.array([7, None, 9], pa.int32()), "sum": [1, 2, 3]}
)
BEST = AddColumn("best", parse_type("long"), -1)


def write_table(directory: Path, kind: str) -> str:
    path = str(directory / f"table.{kind}")
    match kind:
        case "parquet":
            pq.write_table(TABLE, path)
        case "csv":
            pa.csv.write_csv(TABLE, path)
        case "delta":
            deltalake.write_deltalake(path, TABLE)
        case "folder":
            Path(path).mkdir()
            for part in range(3):
                pq.write_table(TABLE.slice(part, 1), f"{path}/{part}.parquet")
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta", "folder"])
def test_a_column_is_filled_from_a_table(sample: Sample, tmp_path: Path, kind: str) -> None:
    where = files(sample)
    plan = plan_backfill(survey(where), [BEST], write_table(tmp_path, kind))
    assert "2 of them with values of" in plan.summary
    assert any('such as {"k": "yy"}' in each for each in plan.warnings)
    Journal(where).execute(plan)
    filled = {"a1": 7, "b1": None}
    assert rows(sample) == {key: (*v, filled.get(key, -1)) for key, v in ROWS.items()}
    assert verify(files(sample)).findings == ()


def test_keys_that_only_the_table_has_are_added_where_spark_looks(
    sample: Sample, tmp_path: Path
) -> None:
    before = content(sample)
    entry = edit(sample, plan_backfill, [BEST], write_table(tmp_path, "parquet"), add_keys=True)
    assert rows(sample)["yy"] == (None, 3, 9)
    assert len(rows(sample)) == len(ROWS) + 1
    places = {r["key"]["k"]: r["partition_id"] for r in read_state(sample.path).to_pylist()}
    assert places == {key: home_of(key, 3) for key in (*ROWS, "yy")}
    assert verify(files(sample)).findings == ()
    Journal(files(sample)).undo(entry)
    assert content(sample) == before


def test_a_table_that_does_not_fit_is_refused(sample: Sample, tmp_path: Path) -> None:
    path = write_table(tmp_path, "parquet")
    with pytest.raises(OptionError, match="lacks worst"):
        edit(sample, plan_backfill, [AddColumn("worst", parse_type("long"), 0)], path)
    with pytest.raises(OptionError, match="name them with --add"):
        edit(sample, plan_backfill, [RenameColumn("sum", "total")], path)
    with pytest.raises(OptionError, match="cannot be read"):
        edit(sample, plan_backfill, [BEST], str(tmp_path / "nothing.parquet"))
    pq.write_table(pa.concat_tables([TABLE, TABLE]), path)
    with pytest.raises(EditError, match=r'two rows for the key {"k": "a1"}'):
        edit(sample, plan_backfill, [BEST], path)


def test_commands_show_their_plan_and_do_it(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "keys.py"
    program.write_text(
        "def letter(key, value):\n    return {'k': key['k'][0]}\n\n"
        "def add(key, one, other):\n    return {name: one[name] + other[name] for name in one}\n"
    )
    rekey = ("rekey", "--key-function", f"{program}:letter", "--merge-function", f"{program}:add")
    commands = [
        (*rekey,),
        ("split", "--columns", "sum", "--to", "1"),
        ("move", "--operator", "1", "--to", "2"),
        ("merge", "--other", "2", "--fill", "sum=0"),
        ("evolve", "--add", "best:long", "--from", write_table(tmp_path, "csv"), "--add-keys"),
    ]
    for name, *words in commands:
        before = content(sample)
        assert main(["state", name, sample.path, *words, "--no-file-sink", "--json"]) == 0
        assert content(sample) == before
        last = ("--no-file-sink", "--execute", "--settle-seconds", "0")
        assert main(["state", name, sample.path, *words, *last]) == 0
        assert content(sample) != before
    capsys.readouterr()
    assert rows(sample) == {
        **{key: (*value, None) for key, value in ONE_LETTER.items()},
        "a1": (None, 1, 7),
        "b1": (None, 2, None),
        "yy": (None, 3, 9),
    }
    assert main(["state", "rekey", sample.path, "--key-function", f"{program}:nothing"]) == 2
    assert "has no function 'nothing'" in capsys.readouterr().err
    assert main(["state", "rekey", sample.path, "--key-function", "no_such_module:f"]) == 2
    assert "cannot be imported" in capsys.readouterr().err
