"""`epochal.check` says of every changed query what our engine then does with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.spark.upgrade_engine_pairs import BEFORE, PAIRS, Engine, Pair
from tests.spark.upgrade_runs import Inputs, Leftovers, attempt, ordered, session

import epochal
from epochal.continuous.api.stream import Stream
from epochal.tools.upgrade.check_query import check

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_left_running")]


@pytest.fixture(scope="module")
def left_by(tmp_path_factory: pytest.TempPathFactory) -> Leftovers:
    return Leftovers(BEFORE, tmp_path_factory)


def writer_of(made: DataFrame | Stream, mode: str, engine: Engine, options: Any) -> Any:
    if isinstance(made, Stream):
        return made.write_stream.output_mode(mode).options(**options)
    if engine == "spark":
        return made.writeStream.outputMode(mode)
    return epochal.write_stream(made).outputMode(mode)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_verdict_is_what_the_engine_then_does(
    pair: Pair, left_by: Leftovers, tmp_path: Path
) -> None:
    base, before = left_by[pair.before], BEFORE[pair.before]
    mode = pair.mode or before.mode
    inputs = Inputs(session(before.conf if pair.conf is None else pair.conf), base)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(base / "checkpoint", checkpoint)
    files = set(checkpoint.rglob("*"))

    made = pair.make(inputs)
    report = check(writer_of(made, mode, pair.engine, pair.options), str(checkpoint))
    assert report.outcome == pair.outcome, report
    assert set(checkpoint.rglob("*")) == files

    rows, refusal = attempt(made, mode, checkpoint, ours=pair.engine == "ours", **pair.options)
    assert report.starts == (refusal is None), (report, refusal)
    assert (refusal is None) == (pair.rows is not None), refusal
    if refusal is not None:
        said = [each.refusal for each in report.differences if each.refusal]
        assert any(each in refusal for each in said), (said, refusal)
    else:
        assert rows == ordered(pair.rows)
