from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.golden.library import Golden, unpack
from tests.unit.state.samples import Content, Sample, make

from epochal.cli.main import main

BATCHES: list[Content] = [
    {"a": (1, 10), "b": (1, 20), "c": (1, 30)},
    {"a": (2, 11), "b": (1, 20), "ż": (1, None)},
]


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return make(tmp_path / "checkpoint", BATCHES)


class Run:
    """Runs the command and keeps what it printed."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._captured = capfdbinary
        self.status = 0
        self.errors = ""

    def __call__(self, *words: str) -> str:
        self.status = main(["state", *words])
        captured = self._captured.readouterr()
        self.errors = captured.err.decode()
        return captured.out.decode()

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return Run(capfdbinary)


def test_read_writes_json_lines_in_the_documented_form(sample: Sample, run: Run) -> None:
    found = run.lines("read", sample.path)
    assert all(list(row) == ["partition_id", "key", "value"] for row in found)
    assert {row["key"]["k"]: tuple(row["value"].values()) for row in found} == BATCHES[1]
    assert run.status == 0


def test_read_accepts_batch_partition_and_limit(sample: Sample, run: Run) -> None:
    found = run.lines("read", sample.path, "--batch", "0")
    assert {row["key"]["k"] for row in found} == {"a", "b", "c"}
    parts = [run.lines("read", sample.path, "--partition", str(n)) for n in range(3)]
    assert sorted(row["key"]["k"] for part in parts for row in part) == ["a", "b", "ż"]
    assert len(run.lines("read", sample.path, "--limit", "2")) == 2
    assert run.lines("read", sample.path, "--limit", "0") == []


def test_read_shows_a_table_by_default(sample: Sample, run: Run) -> None:
    shown = run("read", sample.path)
    assert "k=ż" in shown
    assert "count=1, sum=null" in shown


def test_read_shows_changes(sample: Sample, run: Run) -> None:
    found = run.lines("read", sample.path, "--changes-since", "1")
    assert {(row["change_type"], row["key"]["k"]) for row in found} == {
        ("update", "a"),
        ("delete", "c"),
        ("update", "ż"),
    }


def test_state_without_a_schema_file_is_read_with_the_users_schema(
    sample: Sample, tmp_path: Path, run: Run
) -> None:
    (sample.store(0) / "_metadata" / "schema").unlink()
    run("read", sample.path)
    assert (run.status, "give --key-schema and --value-schema" in run.errors) == (2, True)
    schemas = ("--key-schema", "k string", "--value-schema", "count bigint, sum bigint")
    found = run.lines("read", sample.path, *schemas)
    assert {row["key"]["k"]: tuple(row["value"].values()) for row in found} == BATCHES[1]
    [row] = run.lines("get", sample.path, "--key", '{"k": "a"}', *schemas)
    assert row["value"] == {"count": 2, "sum": 11}
    [stats] = run.lines("stats", sample.path, *schemas)
    assert stats["rows"] == 3
    out = tmp_path / "rows.parquet"
    run("export", sample.path, "--to", str(out), *schemas)
    assert len(pq.read_table(out)) == 3
    run("read", sample.path, "--key-schema", "k string", "--value-schema", "count int, sum string")
    assert run.status == 2
    assert "do not fit the given schema" in run.errors


def test_get_finds_one_key_and_reports_a_missing_one(sample: Sample, run: Run) -> None:
    [row] = run.lines("get", sample.path, "--key", '{"k": "a"}')
    assert row["value"] == {"count": 2, "sum": 11}
    assert run.lines("get", sample.path, "--key", '{"k": "zzz"}') == []
    assert run.status == 1


def test_diff_has_exit_status_1_only_if_something_differs(sample: Sample, run: Run) -> None:
    found = run.lines("diff", sample.path)
    assert run.status == 1
    assert sorted((row["change"], row["key"]["k"]) for row in found) == [
        ("added", "ż"),
        ("changed", "a"),
        ("removed", "c"),
    ]
    [changed] = [row for row in found if row["change"] == "changed"]
    assert (changed["before"]["count"], changed["after"]["count"]) == (1, 2)
    assert run.lines("diff", sample.path, "--from-batch", "1", "--to-batch", "1") == []
    assert run.status == 0


def test_diff_says_which_batches_it_has_compared(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        ((), "from batch 0 to batch 1: 1 added, 1 removed, 1 changed"),
        (("--from-batch", "1", "--to-batch", "0"), "from batch 1 to batch 0:"),
        (("--other", sample.path, "--to-batch", "0"), f"batch 1 of {sample.path} to batch 0 of"),
    ):
        main(["state", "diff", sample.path, *words])
        assert said in " ".join(capsys.readouterr().out.split())


def test_diff_compares_two_checkpoints(sample: Sample, tmp_path: Path, run: Run) -> None:
    other = make(tmp_path / "other", [*BATCHES, BATCHES[1]], partitions=5)
    assert run.lines("diff", sample.path, "--other", other.path) == []
    assert run.status == 0


def test_both_diffs_put_the_old_side_first(sample: Sample, tmp_path: Path, run: Run) -> None:
    newer = make(tmp_path / "newer", [*BATCHES, {**BATCHES[1], "new": (1, 1)}])
    [row] = run.lines("diff", sample.path, "--other", newer.path)
    assert (row["change"], row["key"]) == ("added", {"k": "new"})
    assert main(["checkpoint", "diff", sample.path, newer.path, "--json"]) == 1
    found = json.loads(run("show", sample.path, "--json").splitlines()[0])["differences"]
    assert [each["before"] for each in found if each["path"] == "batches.2"] == [None]


def test_stats_measure_every_partition(sample: Sample, run: Run) -> None:
    [found] = run.lines("stats", sample.path)
    assert found["rows"] == 3
    assert sum(part["rows"] for part in found["partitions"]) == 3
    assert found["bytes"] == 3 * (24 + 24)
    assert {large["key"]["k"] for part in found["partitions"] for large in part["largest"]} == {
        "a",
        "b",
        "ż",
    }


def test_show_lists_stores_with_their_schemas(sample: Sample, run: Run) -> None:
    [found] = run.lines("show", sample.path)
    assert found["batch_id"] == 1
    assert found["provider"] == "hdfs"
    [store] = found["stores"]
    assert store["operator_name"] == "stateStoreSave"
    assert (store["key"], store["value"]) == ("struct<k:string>", "struct<count:bigint,sum:bigint>")


def test_show_says_that_a_query_has_no_state(tmp_path: Path, run: Run) -> None:
    place = unpack(Golden("4.3.0", "rate"), tmp_path)
    assert run("show", str(place.checkpoint)) == "batch 11: the query has no stateful operator\n"


def test_export_writes_parquet_csv_and_json_lines(sample: Sample, tmp_path: Path, run: Run) -> None:
    for suffix in ("parquet", "csv", "jsonl"):
        assert "3 rows written" in run("export", sample.path, "--to", str(tmp_path / f"s.{suffix}"))
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.schema.names == ["key", "value", "partition_id"]
    assert {row["key"]["k"] for row in table.to_pylist()} == {"a", "b", "ż"}
    with open(tmp_path / "s.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["key.k"]: (row["value.count"], row["value.sum"]) for row in rows} == {
        "a": ("2", "11"),
        "b": ("1", "20"),
        "ż": ("1", ""),
    }
    lines = (tmp_path / "s.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["key"]["k"] for line in lines} == {"a", "b", "ż"}
    run("export", sample.path, "--to", str(tmp_path / "s.xlsx"))
    assert run.status == 2
    assert ".parquet, .csv, .jsonl" in run.errors


def test_unreadable_input_is_one_line_with_the_file_and_status_2(sample: Sample, run: Run) -> None:
    sample.delta(1, 2).unlink()
    run("read", sample.path, "--partition", "1", "--json")
    assert run.status == 2
    [line] = run.errors.splitlines()
    assert "CANNOT_READ_DELTA_FILE_NOT_EXISTS" in line
    assert "state/0/1/2.delta" in line


def test_put_and_delete_accept_what_read_prints(sample: Sample, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(run("read", sample.path, "--json"), encoding="utf-8")
    words = ("--file", str(file), "--execute", "--settle-seconds", "0")
    run("delete", sample.path, *words, "--no-file-sink")
    assert run.lines("read", sample.path) == []
    run("put", sample.path, *words, "--no-file-sink")
    found = run.lines("read", sample.path)
    assert {row["key"]["k"]: tuple(row["value"].values()) for row in found} == BATCHES[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("read", "--operator", "3"), "no operator 3. The checkpoint has only operator 0 (state"),
        (("read", "--store", "left"), "there is no such store; the operator has default."),
        (("diff", "--to-batch", "0"), "there is no batch before batch 0 to compare it with"),
        (("export", "--to", "/nowhere/rows.csv"), "there is no directory /nowhere. Create it"),
        (("delete", "--key", '{"k": "x"}'), 'the key {"k": "x"} is not in the state, so it cannot'),
        (("evolve", "--rename", "a=b"), "There is no column 'a'; the columns are k, "),
        (("put", "--key", "{}"), "epochal: "),
        (("delete",), "epochal: "),
        (("read", "--side", "middle"), "epochal: "),
        (("get", "--key", "{"), "epochal: "),
        (("convert", "--to", "mysql"), "epochal: "),
        (("evolve", "--add", "x"), "epochal: "),
    ],
)
def test_wrong_usage_and_what_is_not_there_have_exit_status_2_and_are_named(
    sample: Sample, run: Run, words: tuple[str, ...], told: str
) -> None:
    edits = ("--no-file-sink",) if words[0] in ("delete", "evolve", "put", "convert") else ()
    run(words[0], sample.path, *words[1:], *edits)
    assert run.status == 2
    assert run.errors.startswith("epochal: ")
    assert told in run.errors
