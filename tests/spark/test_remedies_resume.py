"""Spark goes on from a checkpoint whose fault was mended as `verify` advises.

Each fault is planted into a golden checkpoint, the first command of its remedy is run as printed,
and Spark reads the rest of the input. The output must equal that of the run that nobody disturbed.
Where the remedy is to do nothing, Spark must go on from the fault itself. One child serves all.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import asked_for
from tests.golden.catalogue import CASES
from tests.golden.library import Unpacked
from tests.golden.obeying import commands_in, findings_of, obey, planted
from tests.golden.planted import FAULTS, Fault
from tests.spark.releases import RELEASES, Resumed, resume

from epochal.checkpoint import Checkpoint
from epochal.tools.verify.findings import CANNOT

NO_REPAIR = {"spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false"}
OTHER = {
    "CHECKPOINT_SWITCHED": "the query goes on elsewhere, and Spark's error says where",
    "OFFSETS_GAP_ASYNC": "only a query with asynchronous progress tracking restarts from it",
    "OPERATOR_METADATA_MOVED": "the archive as it was made: its input is elsewhere too",
}
"""Faults that are not resumed here, and why."""


def can_be_resumed(fault: Fault) -> bool:
    known = fault.release == RELEASES[-1] and str(fault) not in OTHER
    return known and CASES[fault.case].resumable


RESUMED = [fault for fault in FAULTS if can_be_resumed(fault)]


def mended(fault: Fault, base: Path) -> Unpacked | None:
    """The checkpoint after its remedy; None if the remedy says that there is none."""
    place = planted(fault, base)
    [found] = findings_of(place, with_sink=fault.with_sink)
    if found.remedy.startswith(CANNOT):
        return None
    for command in commands_in(found.remedy)[:1]:
        assert obey(command, place) < 2  # 1: verify still finds what the next start removes
    drop_rows_after(place, max(Checkpoint(str(place.checkpoint)).commits.batch_ids()))
    return place


def drop_rows_after(place: Unpacked, batch_id: int) -> None:
    """What an idempotent sink of the caller's own does when its query is rewound."""
    for path in place.output.glob("*.jsonl"):
        if int(path.stem) > batch_id:
            path.unlink()


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Unpacked, Resumed]]:
    base = tmp_path_factory.mktemp("remedies")
    faults = {str(fault): fault for fault in asked_for(request, "fault", RESUMED)}
    tried = {name: mended(fault, base / name) for name, fault in faults.items()}
    places = {name: place for name, place in tried.items() if place is not None}
    done = resume(RELEASES[-1], list(places.values()), conf=NO_REPAIR)
    return dict(zip(places, zip(places.values(), done, strict=True), strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", RESUMED, ids=str)
def test_spark_ends_with_the_output_of_an_undisturbed_run(
    fault: Fault, resumed: dict[str, tuple[Unpacked, Resumed]]
) -> None:
    if str(fault) not in resumed:
        return  # it cannot be repaired, and the remedy says so
    place, done = resumed[str(fault)]
    assert counted(done.output) == counted(place.facts["undisturbed"]["output"])
