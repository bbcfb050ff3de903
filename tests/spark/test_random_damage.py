"""Whatever is damaged, what `verify` prints leads to a query that goes on, or to an honest end.

Each case of `tests.golden.random_damage` is obeyed to the letter. Those that end healthy are
resumed with Spark, in one JVM, and must end with the output of the run that nobody disturbed. Cases
that end with the same bytes are resumed once.

    python -m tests.spark.test_random_damage SCRATCH FIRST_SEED SEEDS

runs more of them, and prints the counts and what was wrong.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.golden.random_damage import RELEASE, Case, digest, make_cases
from tests.spark.releases import run_child

NO_REPAIR = {"spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false"}
SEEDS = 24


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def run_cases(first: int, count: int, scratch: Path) -> tuple[Counter[str], list[str]]:
    """What became of the cases, by number, and each that broke the promise."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    kept: dict[tuple[str, str], Case] = {}
    for case in make_cases(first, count, scratch):
        outcomes[case.outcome.partition(":")[0]] += 1
        if case.outcome not in ("healthy", "cannot"):
            wrong.append(str(case))
        ended = (case.place.golden.case, digest(case.place))
        if case.outcome == "healthy" and ended not in kept:
            kept[ended] = case
        else:
            shutil.rmtree(case.place.base)
    outcomes["resumed"] = len(kept)
    wrong += resume_all(list(kept.values()), scratch)
    return outcomes, wrong


def resume_all(cases: list[Case], scratch: Path) -> list[str]:
    jobs = [
        {
            "case": case.place.golden.case,
            "base": str(case.place.base.resolve()),
            "answer": f"{scratch}/{case.seed}.json",
        }
        for case in cases
    ]
    run_child(RELEASE, "resume", jobs, scratch / "spark", conf=NO_REPAIR)
    wrong = []
    for case, job in zip(cases, jobs, strict=True):
        answer = json.loads(Path(job["answer"]).read_text(encoding="utf-8"))
        if "failure" in answer:
            wrong.append(f"{case}; Spark failed: {answer['failure'][-600:]}")
            continue
        got, expected = (
            counted(answer["output"]),
            counted(case.place.facts["undisturbed"]["output"]),
        )
        if got != expected:
            lost, more = (expected - got).total(), (got - expected).total()
            wrong.append(f"{case}; {lost} rows lost, {more} too many")
    return wrong


@pytest.mark.timeout(1800)
def test_what_verify_prints_leads_on_or_says_that_nothing_does(tmp_path: Path) -> None:
    outcomes, wrong = run_cases(0, SEEDS, tmp_path)
    assert wrong == []
    assert outcomes["resumed"] > SEEDS // 3


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(1, 20))
def test_more_damage_of_the_same_kind(part: int, tmp_path: Path) -> None:
    assert run_cases(part * 100, 100, tmp_path)[1] == []


if __name__ == "__main__":
    found, broken = run_cases(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[1]))
    sys.stdout.write("\n".join([*broken, json.dumps(found)]) + "\n")
