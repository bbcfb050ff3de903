"""A rewind goes only to a batch whose state is whole, whatever is wrong with the state."""

from pathlib import Path

import pytest
from tests.golden.library import Golden, cases, unpack
from tests.golden.planted import FAULTS, Fault

from epochal.errors import EditError
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.rewind import obstacle_to, plan_rewind, possible_batches
from epochal.tools.edit.survey import last_committed, survey
from epochal.tools.verify.verify import verify

OF_STATE = [
    fault
    for fault in FAULTS
    if fault.code.startswith(("ROCKSDB_", "STATE_", "CHECKSUM_MISMATCH"))
    and fault.code not in ("STATE_HOLE", "STATE_AHEAD", "STATE_SNAPSHOT_AHEAD", "STATE_UNPUBLISHED")
    and fault.severity in ("", "error")
]


def errors(files: LocalFiles) -> list[str]:
    return [each.code for each in verify(files).findings if each.severity == "error"]


@pytest.mark.parametrize("fault", OF_STATE, ids=str)
def test_a_rewind_mends_the_state_or_is_refused(fault: Fault, tmp_path: Path) -> None:
    place = unpack(Golden(fault.release, fault.case), tmp_path, relocate=fault.relocate)
    fault.plant(place.checkpoint)
    files = LocalFiles(place.checkpoint, durable=False)
    surveyed = survey(files)
    newest, possible = last_committed(surveyed), list(possible_batches(surveyed))
    if newest in possible:
        return  # a restart does not need the file
    named = rf"the latest {possible[-1]}|newest is {possible[-1]}" if possible else "No other batch"
    with pytest.raises(EditError, match=named):
        plan_rewind(surveyed, newest)
    if possible:
        assert errors(files)
        Journal(files).execute(plan_rewind(surveyed, possible[-1]))
        assert errors(files) == []


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
