"""Of every fault that `verify` finds, `repair` mends what it can, and `undo` brings it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.golden.library import Golden, cases, unpack
from tests.golden.planted import FAULTS, Fault

from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import read_tree
from epochal.tools.edit.repair import ONLY_IF_NAMED, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import obstacle_to, possible_batches
from epochal.tools.edit.survey import survey
from epochal.tools.verify.findings import Depth
from epochal.tools.verify.verify import verify

LEFT = {
    "CHECKPOINT_SWITCHED": "as it was asked for",
    "CONF_INCOMPLETE": "legal: nothing to mend",
    "EDIT_UNFINISHED": "the same command again, or undo",
    "EPOCH_FILE_BROKEN": "rewind",
    "FILE_LOG_BATCH_MISMATCH": "nobody knows which is right",
    "FILE_UNREADABLE": "the operator's to allow",
    "LOG_VERSION_UNKNOWN": "written by a newer release",
    "NOT_A_DIRECTORY": "data is lost",
    "OFFSETS_GAP_ASYNC": "legal: nothing to mend",
    "OFFSETS_MISSING": "nothing to stand on",
    "OPERATOR_METADATA_MISSING": "Spark writes it when the query starts, or data is lost",
    "ROCKSDB_UNCHECKED": "nobody knows what is wrong",
    "SINK_AHEAD": "rewind --sink",
    "SINK_FILE_MISSING": "data is lost",
    "SINK_OF_ANOTHER_QUERY": "data is lost",
    "SOURCE_COUNT_CHANGED": "another query",
    "SOURCE_LOG_BEHIND": "rewind",
    "STATE_HOLE": "a restart does not need it",
    "STATE_OPERATOR_MISSING": "data is lost",
    "STATE_PARTITION_MISSING": "data is lost",
    "STATE_SCHEMA_MISSING": "Spark writes it when the query starts, or data is lost",
    "STATE_SCHEMA_UNREADABLE": "data is lost",
    "STATE_STORE_MISSING": "data is lost",
    "STATE_UNPUBLISHED": "publish",
    "TIMESTAMP_BACKWARDS": "a clock was wrong",
    "WATERMARK_BACKWARDS": "rewind",
}
"""Codes that no repair mends, and why."""

LEFT_HERE = {
    "CONF_INVALID": "nobody knows the codec",
    "METADATA_UNREADABLE-directory": "it may hold what somebody needs",
    "FILE_LOG_HOLE": "what was in the batch is recorded nowhere else",
    "FILE_LOG_HOLE-compact": "what was in the batch is recorded nowhere else",
    "FILE_LOG_HOLE-torn-at-a-line": "what was in the batch is recorded nowhere else",
    "FILE_LOG_HOLE-sink-torn-at-a-line": "rewind --sink",
    "COMMITS_BEHIND-no-commits": "no batch is committed",
    "LOG_ENTRY_UNREADABLE-truncated": "old offsets, which a restart does not need",
    "LOG_ENTRY_UNREADABLE-source": "what was in the batch is recorded nowhere else",
    "STATE_FILE_UNREADABLE": "an old delta, which a restart does not need",
    "OFFSETS_GAP-further-back": "a restart does not need them",
}
"""Faults of codes that are otherwise mended."""


def is_left(fault: Fault) -> bool:
    return fault.code in LEFT or str(fault) in LEFT_HERE


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_mends_what_can_be_mended_and_undo_restores_the_fault(fault: Fault, tmp_path: Path) -> None:
    place = unpack(Golden(fault.release, fault.case), tmp_path, relocate=fault.relocate)
    fault.plant(place.checkpoint)
    if fault.code == "EDIT_UNFINISHED":
        return
    files = LocalFiles(place.checkpoint, durable=False)
    before = content(files)
    output = LocalFiles(place.output, durable=False) if fault.with_sink else None
    found = verify(files, depth=Depth.DEEP, sink=output).findings
    options = RepairOptions(
        query_id="53b62e34-0476-452d-8313-c1786e091891",
        codes=[fault.code] if fault.code in ONLY_IF_NAMED else (),
        may_go_back=True,
    )
    sink = None if output is None else survey_sink(output)
    repair = plan_repair(survey(files), found, options, sink=sink)
    assert [each.code for each in repair.mended] == ([] if is_left(fault) else [fault.code])
    if repair.plan.is_empty:
        assert is_left(fault)
        return
    journal = Journal(files)
    journal.execute(repair.plan)
    assert [
        each
        for each in verify(files, depth=Depth.DEEP, sink=output).findings
        if each.severity == "error"
    ] == []
    journal.undo()
    assert content(files) == before
    assert verify(files, depth=Depth.DEEP, sink=output).findings == found


def content(files: LocalFiles) -> dict[str, bytes]:
    """The bytes of every file; of a link, which is not read, where it points."""
    paths = {path: Path(files.url, path) for path in read_tree(files).infos}
    return {
        path: os.fsencode(place.readlink()) if place.is_symlink() else files.read(path)
        for path, place in paths.items()
    }


@pytest.mark.parametrize("golden", cases(), ids=str)
def test_state_that_spark_wrote_is_never_refused(golden: Golden, tmp_path: Path) -> None:
    place = unpack(golden, tmp_path, relocate=True)
    surveyed = survey(LocalFiles(place.checkpoint))
    by_name = [
        batch_id
        for batch_id in sorted(surveyed.offsets.keys() & surveyed.commits.keys())
        if obstacle_to(surveyed, batch_id, reads_state=False) is None
    ]
    assert list(possible_batches(surveyed)) == by_name
