"""What `verify` prints for reported damage leads to a healthy checkpoint, before Spark sees it.

`tests/spark/test_field_reports.py` does the same after Spark has failed, and lets Spark go on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.field_reports import (
    CANNOT,
    HEALTHY,
    RELEASE,
    REPORTS,
    Report,
    a_backup_older_than_its_sink,
    the_sinks_log_was_deleted,
)
from tests.golden.library import Golden, unpack
from tests.golden.random_damage import Case, epochal, obey

OBEYED = [each for each in REPORTS if each.damage is not the_sinks_log_was_deleted]


@pytest.mark.parametrize("report", OBEYED, ids=str)
def test_what_is_printed_is_obeyed_until_nothing_is_left(report: Report, tmp_path: Path) -> None:
    case = Case(0, unpack(Golden(RELEASE, report.case), tmp_path, relocate=True))
    report.damage(case.place)
    obey(case, page=False)
    assert case.outcome == (CANNOT if report.ends == CANNOT else "healthy"), str(case)
    assert bool(case.steps) == (report.ends == HEALTHY)


def test_an_output_without_its_log_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    place = unpack(Golden(RELEASE, "file_sink"), tmp_path, relocate=True)
    the_sinks_log_was_deleted(place)
    words = ("checkpoint", "verify", str(place.checkpoint), "--sink", str(place.output))
    status, told = epochal(*words)
    assert status == 2
    assert "the log was deleted: restore it from a backup, or start over" in " ".join(told.split())


def test_an_output_that_is_newer_than_its_checkpoint_is_found_before_rows_are_lost(
    tmp_path: Path,
) -> None:
    place = unpack(Golden(RELEASE, "file_sink"), tmp_path, relocate=True)
    a_backup_older_than_its_sink(place)
    words = ("checkpoint", "verify", str(place.checkpoint), "--sink", str(place.output))
    status, told = epochal(*words)
    assert (status, told.count("SINK_AHEAD")) == (1, 1)
    assert "--to-batch 5 " in " ".join(told.split())
