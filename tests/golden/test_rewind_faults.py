"""A rewind goes only to a batch whose state is whole, whatever is wrong with the state."""

from pathlib import Path

import pytest
from tests.golden.library import Golden, cases, unpack

from epochal.files.local import LocalFiles
from epochal.tools.edit.rewind import obstacle_to, possible_batches
from epochal.tools.edit.survey import survey


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
