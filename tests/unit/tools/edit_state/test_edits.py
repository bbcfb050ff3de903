"""Edits of state: what they change, what they refuse, and the checksums that they leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.state.samples import Sample, content, edit, files, home_of, make, write
from tests.unit.state.stores import checksum_file

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import OFFSET_FORMAT
from epochal.checkpoint.operator_metadata import read_operator
from epochal.cli.main import main
from epochal.errors import EditError, OptionError, StateFormatError, StateValueError
from epochal.state.store.store_files import verify_checksum
from epochal.state.store.store_format import HDFS, ROCKSDB, StoreFormat
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.repair import plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import Survey, survey
from epochal.tools.edit_state.convert import plan_convert
from epochal.tools.edit_state.evolve import (
    AddColumn,
    RenameColumn,
    WidenColumn,
    parse_type,
    plan_evolve,
)
from epochal.tools.edit_state.mutate import Mutation, plan_mutations
from epochal.tools.edit_state.repartition import plan_repartition
from epochal.tools.read_state.changes import read_state_changes
from epochal.tools.read_state.read import read_state
from epochal.tools.verify.verify import verify

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BATCHES = [
    {k: (1, n) for n, k in enumerate(LETTERS[:20])},
    {k: (2, n) for n, k in enumerate(LETTERS[3:])},
    {k: (3, n) for n, k in enumerate(LETTERS)},
]


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return make(tmp_path / "checkpoint", BATCHES, snapshots=[2])


def rows(sample: Sample, batch_id: int | None = None) -> dict[str, tuple[Any, ...]]:
    table = read_state(sample.path, batch_id=batch_id)
    found: dict[str, tuple[Any, ...]] = {}
    for row in table.to_pylist():
        [key] = row["key"].values()
        assert key not in found, "a key is in two partitions"
        found[key] = tuple(row["value"].values())
    return found


def names(sample: Sample) -> set[str]:
    return {str(p.relative_to(sample.root)) for p in sample.root.rglob("*") if p.is_file()} - {
        "metadata"
    }


def test_an_edit_is_a_batch_with_the_offsets_of_the_one_before(sample: Sample) -> None:
    edit(sample, plan_mutations, [Mutation({"k": "new"}, {"count": 9, "sum": 9})])
    checkpoint = Checkpoint(sample.path)
    assert checkpoint.offsets.get(3) == checkpoint.offsets.get(2)
    assert checkpoint.commits.get(3) == checkpoint.commits.get(2)
    assert rows(sample, 2) == BATCHES[2]
    assert rows(sample) == {**BATCHES[2], "new": (9, 9)}


def test_every_partition_gets_the_new_version(sample: Sample) -> None:
    before = names(sample)
    edit(sample, plan_mutations, [Mutation({"k": "a"}, None)])
    made = {name for name in names(sample) - before if not name.startswith(".epochal")}
    assert made == {"offsets/3", "commits/3", *(f"state/0/{n}/4.delta" for n in range(3))}


@pytest.mark.parametrize(
    ("mutation", "reason"),
    [
        (Mutation({"k": 5}, {"count": 1, "sum": 1}), "a string is needed"),
        (Mutation({"k": "a"}, {"count": "x", "sum": 1}), "whole number"),
        (Mutation({"key": "a"}, {"count": 1, "sum": 1}), "no such field"),
        (Mutation({"k": "a"}, {"count": 1}), "sum is missing"),
        (Mutation({"k": "a"}, {}), "count, sum are missing"),
        (Mutation({}, {"count": 1, "sum": 1}), "k is missing"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    sample: Sample, mutation: Mutation, reason: str
) -> None:
    before = content(sample)
    with pytest.raises(StateValueError, match=reason):
        edit(sample, plan_mutations, [mutation])
    assert content(sample) == before


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB])
def test_the_plan_shows_the_old_value_and_the_new_one(
    sample: Sample, provider: StoreFormat
) -> None:
    if provider == ROCKSDB:
        edit(sample, plan_convert, provider)
    rows = [
        Mutation({"k": "a"}, {"count": 9, "sum": None}),
        Mutation({"k": "b"}, None),
        Mutation({"k": "zz"}, {"count": 1, "sum": 1}),
    ]
    plan = plan_mutations(survey(files(sample)), rows)
    assert sorted(plan.details) == [
        '{"k": "a"}: {"count": 3, "sum": 0} -> {"count": 9, "sum": null}',
        '{"k": "b"}: {"count": 3, "sum": 1} -> deleted',
        '{"k": "zz"}: no value -> {"count": 1, "sum": 1}',
    ]
    assert "put 2 keys (replacing 1 value) and delete 1 key in" in plan.summary


def test_a_key_that_is_looked_up_must_be_complete(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", "get", sample.path, "--key", "{}"]) == 2
    assert "key (struct): k is missing" in capsys.readouterr().err


def test_repairing_a_setting_keeps_what_edits_have_set(sample: Sample) -> None:
    edit(sample, plan_repartition, 5)
    edit(sample, plan_convert, ROCKSDB)
    before = rows(sample)
    path = sample.root / "offsets/4"
    whole = path.read_bytes()
    write(path, whole.replace(b'"spark.sql.shuffle.partitions":"5",', b""))
    assert path.read_bytes() != whole
    words = (sample.path, "--execute", "--settle-seconds", "0")
    assert main(("checkpoint", "repair", "--no-file-sink", *words)) == 0
    assert Checkpoint(sample.path).offsets.get(4) == OFFSET_FORMAT.deserialize(whole, "")
    assert rows(sample) == before


def test_deleting_a_key_that_is_not_there_is_refused(sample: Sample) -> None:
    with pytest.raises(EditError, match="not in the state"):
        edit(sample, plan_mutations, [Mutation({"k": "a"}, None), Mutation({"k": "zz"}, None)])


def test_the_same_key_twice_is_refused(sample: Sample) -> None:
    with pytest.raises(StateValueError, match="given before"):
        edit(sample, plan_mutations, [Mutation({"k": "a"}, None)] * 2)


def test_an_unfinished_batch_must_be_finished_first(sample: Sample) -> None:
    (sample.root / "commits" / "2").unlink()
    for plan, argument in ((plan_mutations, [Mutation({"k": "a"}, None)]), (plan_repartition, 5)):
        with pytest.raises(EditError, match=r"LAST_BATCH_FAILED.* rewind .* --sink OUTPUT`"):
            edit(sample, plan, argument)


def test_leftovers_of_the_new_version_do_not_hide_it(sample: Sample) -> None:
    write(sample.snapshot(1, 4), b"left by a run that failed")
    write(sample.store(1) / "4.delta.crc", b"{}")
    edit(sample, plan_mutations, [Mutation({"k": "a"}, None)])
    assert not sample.snapshot(1, 4).exists()
    assert not (sample.store(1) / "4.delta.crc").exists()
    assert rows(sample) == {k: v for k, v in BATCHES[2].items() if k != "a"}


@pytest.mark.parametrize("row_checksums", [False, True])
def test_repartition_moves_every_row_to_where_its_key_belongs(
    tmp_path: Path, row_checksums: bool
) -> None:
    sample = make(tmp_path / "c", BATCHES, row_checksums=row_checksums)
    for count in (7, 2, 3):
        edit(sample, plan_repartition, count)
        assert rows(sample) == BATCHES[2]
        table = read_state(sample.path).to_pylist()
        assert all(r["partition_id"] == home_of(r["key"]["k"], count) for r in table)


def test_repartition_changes_nothing_but_the_number(sample: Sample) -> None:
    edit(sample, plan_repartition, 7)
    checkpoint = Checkpoint(sample.path)
    before, after = checkpoint.offsets.get(2), checkpoint.offsets.get(3)
    assert before is not None
    assert after is not None
    assert after.conf == {**before.conf, "spark.sql.shuffle.partitions": "7"}
    assert after.offsets == before.offsets
    assert (after.watermark_ms, after.timestamp_ms) == (before.watermark_ms, before.timestamp_ms)
    assert all(sample.snapshot(n, 4).exists() for n in range(7))
    metadata = read_operator(files(sample), 0)
    assert metadata is not None
    assert [store.num_partitions for store in metadata.stores] == [7]


def test_repartition_refuses_what_spark_refuses(sample: Sample) -> None:
    with pytest.raises(EditError, match="SHUFFLE_PARTITIONS_ALREADY_MATCH"):
        edit(sample, plan_repartition, 3)
    with pytest.raises(OptionError, match="IS_NOT_GREATER_THAN_ZERO"):
        edit(sample, plan_repartition, 0)
    shutil.rmtree(sample.root / "commits")
    with pytest.raises(EditError, match="NO_COMMITTED_BATCH"):
        edit(sample, plan_repartition, 5)
    shutil.rmtree(sample.root / "offsets")
    with pytest.raises(EditError, match="NO_BATCH_FOUND"):
        edit(sample, plan_repartition, 5)


def test_a_repartition_that_was_given_up_can_only_be_finished(sample: Sample) -> None:
    edit(sample, plan_repartition, 7)
    (sample.root / "commits" / "3").unlink()
    with pytest.raises(EditError, match="LAST_BATCH_ABANDONED_REPARTITION"):
        edit(sample, plan_repartition, 5)
    edit(sample, plan_repartition, 7)
    assert Checkpoint(sample.path).commits.latest_batch_id() == 3
    assert rows(sample) == BATCHES[2]


def test_rows_that_lie_elsewhere_than_their_hash_says_are_not_moved(sample: Sample) -> None:
    one, other = sample.delta(0, 3), sample.delta(1, 3)
    swapped = other.read_bytes(), one.read_bytes()
    one.write_bytes(swapped[0])
    other.write_bytes(swapped[1])
    with pytest.raises(EditError, match="places them by something else"):
        edit(sample, plan_repartition, 7)


def test_evolve_rewrites_values_and_schema_together(sample: Sample) -> None:
    edit(
        sample,
        plan_evolve,
        [
            RenameColumn("sum", "total"),
            AddColumn("extra", parse_type("decimal(10,2)"), "1.50", after="count"),
            RenameColumn("k", "word"),
        ],
    )
    table = read_state(sample.path)
    assert [f.name for f in table.schema.field("value").type] == ["count", "extra", "total"]
    assert {row["key"]["word"] for row in table.to_pylist()} == set(LETTERS)
    found = {r["key"]["word"]: list(map(str, r["value"].values())) for r in table.to_pylist()}
    assert found["a"] == ["3", "1.50", "0"]
    assert not list(sample.root.glob("state/0/*/*.delta"))


def test_evolve_widens_but_never_narrows(tmp_path: Path) -> None:
    sample = make(tmp_path / "c", BATCHES)
    with pytest.raises(EditError, match="cannot become integer"):
        edit(sample, plan_evolve, [WidenColumn("count", parse_type("int"))])
    with pytest.raises(OptionError, match="no column 'nothing'"):
        edit(sample, plan_evolve, [WidenColumn("nothing", parse_type("long"))])
    edit(sample, plan_evolve, [AddColumn("small", parse_type("int"), -5)])
    edit(sample, plan_evolve, [WidenColumn("small", parse_type("bigint"))])
    assert rows(sample)["a"] == (3, 0, -5)


def test_convert_goes_to_rocksdb_and_back(sample: Sample) -> None:
    edit(sample, plan_convert, ROCKSDB)
    assert rows(sample) == BATCHES[2]
    assert not list(sample.root.glob("state/0/*/*.delta"))
    edit(sample, plan_mutations, [Mutation({"k": "a"}, None)])
    edit(sample, plan_mutations, [Mutation({"k": "b"}, {"count": 0, "sum": None})])
    expected = {**{k: v for k, v in BATCHES[2].items() if k != "a"}, "b": (0, None)}
    assert rows(sample) == expected
    edit(sample, plan_convert, HDFS)
    assert rows(sample) == expected
    assert not list(sample.root.glob("state/0/*/*.changelog"))
    with pytest.raises(EditError, match="already"):
        edit(sample, plan_convert, HDFS)


def repair(sample: Sample, *words: str, status: int = 0) -> None:
    given = ("state", "repair", sample.path, "--no-file-sink", "--settle-seconds", "0", *words)
    assert main(given) == status


def test_both_repairs_do_the_same(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.delta(1, 3).unlink()
    sample.delta(2, 3).write_bytes(b"damaged")
    plans = []
    for words in (("state", "repair"), ("checkpoint", "repair", "--rewind")):
        assert main((*words, sample.path, "--no-file-sink", "--json")) == 0
        shown = json.loads(capsys.readouterr().out)
        plans.append([(each["action"], each["path"]) for each in shown["changes"]])
    assert plans[0] == plans[1]
    assert ("delete", "commits/2") in plans[0]


def plan_state_repair(at: Survey) -> Plan:
    options = RepairOptions(query_id="", may_go_back=True)
    return plan_repair(at, verify(at.files).findings, options).plan


SMALL = [{"a": (1, 1)}, {"a": (2, 2), "b": (1, 1)}, {"a": (2, 2), "b": (2, 2)}]
EDITS: dict[str, Callable[[Survey], Plan]] = {
    "put": lambda at: plan_mutations(at, [Mutation({"k": "a"}, {"count": 9, "sum": 9})]),
    "delete": lambda at: plan_mutations(at, [Mutation({"k": "a"}, None)]),
    "repartition": lambda at: plan_repartition(at, 2),
    "convert": lambda at: plan_convert(at, ROCKSDB),
    "evolve": lambda at: plan_evolve(at, [RenameColumn("sum", "total")]),
    "rewind": lambda at: plan_rewind(at, 1),
    "repair": plan_state_repair,
}


def state_files(sample: Sample) -> list[Path]:
    return [
        path
        for path in sorted((sample.root / "state").rglob("*"))
        if path.suffix in (".delta", ".snapshot", ".changelog")
    ]


def checksums(sample: Sample) -> list[Path]:
    return sorted((sample.root / "state").rglob("[!.]*.crc"))


def with_checksums(sample: Sample) -> Sample:
    """As Spark 4.1 leaves a checkpoint, and 4.2 one that 4.1 began."""
    for path in state_files(sample):
        write(path.with_name(f"{path.name}.crc"), checksum_file(path.read_bytes()))
    return sample


def damage(sample: Sample) -> None:
    for partition in range(sample.partitions):
        path = sample.snapshot(partition, 2)
        write(path, path.read_bytes()[:-5])


def run(sample: Sample, edit: Callable[[Survey], Plan]) -> Plan:
    where = files(sample)
    plan = edit(survey(where))
    Journal(where).execute(plan)
    return plan


@pytest.mark.parametrize("name", EDITS)
def test_every_checksum_there_is_after_an_edit_is_of_the_file_beside_it(
    tmp_path: Path, name: str
) -> None:
    sample = with_checksums(make(tmp_path, SMALL, snapshots=[2]))
    before = {path: path.read_bytes() for path in state_files(sample)}
    if name == "repair":
        damage(sample)
    run(sample, EDITS[name])
    for checksum in checksums(sample):
        main = checksum.with_name(checksum.name.removesuffix(".crc"))
        verify_checksum(main.read_bytes(), checksum.read_bytes(), source=main.name)
    untouched = [
        path for path, data in before.items() if path.exists() and path.read_bytes() == data
    ]
    kept = {checksum.name for checksum in checksums(sample)}
    assert kept >= {f"{path.name}.crc" for path in untouched if path.name != "2.snapshot"}
    assert "CHECKSUM" not in " ".join(each.code for each in verify(files(sample)).findings)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_makes_no_checksums_where_there_were_none(tmp_path: Path, name: str) -> None:
    sample = make(tmp_path, SMALL, snapshots=[2])
    if name == "repair":
        damage(sample)
    run(sample, EDITS[name])
    assert checksums(sample) == []


def test_the_checksum_of_a_damaged_snapshot_goes_with_the_snapshot(tmp_path: Path) -> None:
    sample = with_checksums(make(tmp_path, SMALL, snapshots=[2]))
    damage(sample)
    assert {each.code for each in verify(files(sample)).findings} == {"STATE_FILE_UNREADABLE"}
    plan = run(sample, plan_state_repair)
    assert [(change.action, change.path) for change in plan.changes] == [
        ("delete", f"state/0/{partition}/{name}")
        for partition in range(3)
        for name in ("2.snapshot", "2.snapshot.crc")
    ]
    assert verify(files(sample)).findings == ()
    held = {row["key"]["k"]: row["value"] for row in read_state(sample.path).to_pylist()}
    assert held == {"a": {"count": 2, "sum": 2}, "b": {"count": 2, "sum": 2}}


@pytest.mark.parametrize("name", ["2.snapshot", "3.delta"])
def test_a_file_that_is_not_what_its_checksum_says_is_not_read(tmp_path: Path, name: str) -> None:
    """Snappy notices few flipped bits by itself."""
    sample = with_checksums(make(tmp_path, SMALL, snapshots=[2], codec="snappy"))
    partition = home_of("b", sample.partitions)
    path = sample.store(partition) / name
    changed = bytearray(path.read_bytes())
    changed[-9] ^= 1
    write(path, bytes(changed))
    with pytest.raises(StateFormatError, match=name) as refused:
        read_state(sample.path)
    assert refused.value.condition == "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    if name == "3.delta":
        with pytest.raises(StateFormatError, match=name):
            read_state_changes(sample.path, 0)
    path.with_name(f"{name}.crc").unlink()
    assert sorted(row["key"]["k"] for row in read_state(sample.path).to_pylist()) == ["a", "b"]
