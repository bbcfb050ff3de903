"""Rebuilding a snapshot leaves nothing that says what the damaged one should have been."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.state.samples import Sample, make, write

from epochal.checkpoint.journal import Journal
from epochal.checkpoint.survey import survey
from epochal.checkpoint.verify import verify
from epochal.files.local import LocalFiles
from epochal.state.checksum_file import encode_checksum_file
from epochal.state.read import read_state
from epochal.state.repair import plan_repair

BATCHES = [{"a": (1, 1)}, {"a": (2, 2), "b": (1, 1)}, {"a": (2, 2), "b": (2, 2)}]


@pytest.fixture
def damaged(tmp_path: Path) -> Sample:
    """Snapshot 2 of every partition cut short, beside the checksums Spark 4.1 wrote of it."""
    sample = make(tmp_path, BATCHES, snapshots=[2])
    for partition in range(sample.partitions):
        path = sample.snapshot(partition, 2)
        whole = path.read_bytes()
        write(path.with_name("2.snapshot.crc"), encode_checksum_file(whole, timestamp_ms=0))
        write(path, whole[:-5])
    return sample


def test_the_checksum_of_a_damaged_snapshot_goes_before_the_snapshot_is_rebuilt(
    damaged: Sample,
) -> None:
    plan = plan_repair(survey(LocalFiles(damaged.root)))
    assert [(change.action, change.path) for change in plan.changes] == [
        step
        for partition in range(3)
        for step in (
            ("delete", f"state/0/{partition}/2.snapshot.crc"),
            ("replace", f"state/0/{partition}/2.snapshot"),
        )
    ]
    assert plan.summary == "rebuild 3 snapshots"


def test_a_repaired_store_is_healthy_and_holds_what_it_held(damaged: Sample) -> None:
    files = LocalFiles(damaged.root)
    assert {each.code for each in verify(files).findings} == {"STATE_FILE_UNREADABLE"}
    Journal(files).execute(plan_repair(survey(files)))
    assert verify(files).findings == ()
    held = {row["key"]["k"]: row["value"] for row in read_state(damaged.path).to_pylist()}
    assert held == {"a": {"count": 2, "sum": 2}, "b": {"count": 2, "sum": 2}}
