"""Spark runs into the damage that its users have reported, and goes on after `verify` was obeyed.

Spark's error must have the words by which `docs/troubleshooting.md` lists the report. Then the
commands that `verify` prints are run as they are printed, and Spark must end with the output of a
run that nobody disturbed; or `verify` says that Epochal cannot help, and what to do instead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import asked_for
from tests.golden.field_reports import CANNOT, HEALTHY, OTHER_STATE, RELEASE, REPORTS, Report
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.random_damage import Case, drop_rows_after, findings, obey
from tests.spark.releases import counted, run_child

Answer = dict[str, Any]


def run(places: Sequence[tuple[Unpacked, str]], scratch: Path) -> list[Answer]:
    jobs = [
        {"case": case, "base": str(place.base.resolve()), "answer": f"{scratch}-{number}.json"}
        for number, (place, case) in enumerate(places)
    ]
    run_child(RELEASE, "resume", jobs)
    return [json.loads(Path(job["answer"]).read_text(encoding="utf-8")) for job in jobs]


class Story:
    """What became of one report."""

    def __init__(self, report: Report, base: Path) -> None:
        self.report = report
        self.place = unpack(Golden(RELEASE, report.case), base, relocate=True)
        report.damage(self.place)
        self.damaged: Answer = {}
        self.mended: Answer = {}
        self.case = Case(0, self.place)

    def obey(self) -> None:
        for path in self.place.checkpoint.rglob(".*.tmp"):
            os.utime(path, (0, 0))  # a young one, of a task that ended with Spark, looks in use
        obey(self.case, page=False)
        if self.report.ends == OTHER_STATE:  # only the right state helps
            shutil.rmtree(self.place.checkpoint)
            backup = unpack(self.place.golden, self.place.base / "backup", relocate=True)
            moved = backup.checkpoint.rename(self.place.checkpoint)
            for path in moved.glob("sources/*/*"):
                if not path.name.startswith("."):
                    raw = path.read_bytes()
                    path.write_bytes(raw.replace(b"/backup/input", b"/input"))
        commits = self.place.checkpoint.glob("commits/[0-9]*")
        drop_rows_after(self.place, max((int(path.name) for path in commits), default=-1))


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Story]:
    base = tmp_path_factory.mktemp("field")
    told = [
        Story(each, base / each.damage.__name__) for each in asked_for(request, "report", REPORTS)
    ]
    queries = [(each.place, each.report.runs_as or each.report.case) for each in told]
    for each, answer in zip(told, run(queries, base / "damaged"), strict=True):
        each.damaged = answer
        each.obey()
    mended = [each for each in told if each.report.ends != CANNOT]
    again = [(each.place, each.report.case) for each in mended]
    for each, answer in zip(mended, run(again, base / "mended"), strict=True):
        each.mended = answer
    return {str(each.report): each for each in told}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("report", REPORTS, ids=str)
def test_spark_says_what_was_reported_and_goes_on_after_what_verify_prints(
    report: Report, stories: dict[str, Story]
) -> None:
    story = stories[str(report)]
    undisturbed = counted(story.place.facts["undisturbed"]["output"])
    if report.error:
        assert re.search(report.pattern, story.damaged["failure"]), story.damaged["failure"]
    else:
        assert "failure" not in story.damaged
        rows = counted(story.damaged["output"])
        assert (rows == undisturbed) == (report.ends != HEALTHY)  # else rows are lost silently
    assert story.case.outcome == (CANNOT if report.ends == CANNOT else "healthy"), str(story.case)
    assert bool(story.case.steps) == (report.ends == HEALTHY)
    if report.ends == CANNOT:
        remedies = [remedy for remedy, _ in findings(story.case, page=False)]
        assert any("Restore" in remedy and "start over" in remedy for remedy in remedies)
        return
    assert "failure" not in story.mended, story.mended["failure"]
    assert counted(story.mended["output"]) == undisturbed
