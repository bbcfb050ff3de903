"""`epochal.check` says of every changed query what Spark then does with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.spark import upgrade_pairs, upgrade_python_pairs
from tests.spark.upgrade_pairs import Pair
from tests.spark.upgrade_runs import (
    Inputs,
    Leftovers,
    add_file,
    attempt,
    ordered,
    run,
    session,
    together,
)

from epochal.tools.upgrade.check_query import check

pytestmark = pytest.mark.timeout(600)

BEFORE = upgrade_pairs.BEFORE | upgrade_python_pairs.BEFORE
PAIRS = upgrade_pairs.PAIRS + upgrade_python_pairs.PAIRS


@pytest.fixture(scope="module")
def left_by(tmp_path_factory: pytest.TempPathFactory) -> Leftovers:
    return Leftovers(BEFORE, tmp_path_factory)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_verdict_is_what_spark_then_does(
    pair: Pair, left_by: Leftovers, tmp_path: Path
) -> None:
    base, before = left_by[pair.before], BEFORE[pair.before]
    mode = pair.mode or before.mode
    inputs = Inputs(session(before.conf if pair.conf is None else pair.conf), base)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(base / "checkpoint", checkpoint)

    report = check(pair.make(inputs).writeStream.outputMode(mode), str(checkpoint))
    assert report.outcome == pair.outcome, report

    rows, refusal = attempt(pair.make(inputs), mode, checkpoint)
    assert report.starts == (refusal is None), (report, refusal)
    if refusal is not None:
        conditions = [each.refusal for each in report.differences if each.refusal]
        assert any(each.lower() in refusal.lower() for each in conditions), (conditions, refusal)
        assert not pair.starts
        return
    assert pair.starts is not False
    if isinstance(pair.rows, list):
        assert rows == ordered(pair.rows)
        return
    # What the changed query gives for the second file if it has also read the first one.
    _, *later = run(pair.make(inputs), mode, tmp_path / "fresh")
    assert ("same" if rows == together(later) else "other") == pair.rows, (rows, later)


def test_two_queries_are_compared_without_a_checkpoint(tmp_path: Path) -> None:
    for place in ("a", "b"):
        add_file(tmp_path / place, 0)
    inputs = Inputs(session({}), tmp_path)
    found = {}
    for pair in PAIRS:
        before = BEFORE[pair.before]
        if before.conf or pair.conf or pair.before == "rate":
            continue  # one session is enough
        old = before.make(inputs).writeStream.outputMode(before.mode)
        new = pair.make(inputs).writeStream.outputMode(pair.mode or before.mode)
        if (outcome := check(new, before=old).outcome) != pair.outcome:
            found[pair.name] = outcome
    assert found == {}
