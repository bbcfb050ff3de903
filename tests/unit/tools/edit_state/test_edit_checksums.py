"""Beside a state file lies its own checksum or none: no edit leaves one of other bytes behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.state.samples import Sample, files, home_of, make, write
from tests.unit.state.stores import checksum_file

from epochal.errors import StateFormatError
from epochal.state.store.store_files import verify_checksum
from epochal.state.store.store_format import ROCKSDB
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.repair import plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import Survey, survey
from epochal.tools.edit_state.convert import plan_convert
from epochal.tools.edit_state.evolve import RenameColumn, plan_evolve
from epochal.tools.edit_state.mutate import Mutation, plan_mutations
from epochal.tools.edit_state.repartition import plan_repartition
from epochal.tools.read_state.changes import read_state_changes
from epochal.tools.read_state.read import read_state
from epochal.tools.verify.verify import verify


def plan_state_repair(at: Survey) -> Plan:
    options = RepairOptions(query_id="", may_go_back=True)
    return plan_repair(at, verify(at.files).findings, options).plan


BATCHES = [{"a": (1, 1)}, {"a": (2, 2), "b": (1, 1)}, {"a": (2, 2), "b": (2, 2)}]
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
    sample = with_checksums(make(tmp_path, BATCHES, snapshots=[2]))
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
    sample = make(tmp_path, BATCHES, snapshots=[2])
    if name == "repair":
        damage(sample)
    run(sample, EDITS[name])
    assert checksums(sample) == []


def test_the_checksum_of_a_damaged_snapshot_goes_with_the_snapshot(tmp_path: Path) -> None:
    sample = with_checksums(make(tmp_path, BATCHES, snapshots=[2]))
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
    sample = with_checksums(make(tmp_path, BATCHES, snapshots=[2], codec="snappy"))
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


def test_repair_removes_a_snapshot_that_is_not_what_its_checksum_says(tmp_path: Path) -> None:
    sample = with_checksums(make(tmp_path, BATCHES, snapshots=[2], codec="snappy"))
    path = sample.snapshot(home_of("b", sample.partitions), 2)
    changed = bytearray(path.read_bytes())
    changed[-9] ^= 1
    write(path, bytes(changed))
    plan = run(sample, plan_state_repair)
    assert [change.path.rpartition("/")[2] for change in plan.changes] == [
        "2.snapshot",
        "2.snapshot.crc",
    ]
    assert verify(files(sample)).findings == ()
    assert sorted(row["key"]["k"] for row in read_state(sample.path).to_pylist()) == ["a", "b"]
