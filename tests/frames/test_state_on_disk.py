"""Whole queries with their state on disk, in turns with Spark and with state in memory.

The output and the final state are those of Spark alone, for every stateful operator and provider.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.corpus.queries import APPEND, Query
from tests.frames.test_corpus import about, state_of
from tests.frames.test_take_over_matrix import Found, kill_in_phase, played, undisturbed
from tests.frames.turns import ON_DISK, OURS, SPARK, TAKEN_OVER, TRANSFORM, Table, session_of

__all__ = ["undisturbed"]

pytestmark = [pytest.mark.usefixtures("nothing_left_running"), pytest.mark.timeout(600)]

SCRIPT = (ON_DISK, ON_DISK, OURS, ON_DISK, SPARK, ON_DISK)
CASES = [
    pytest.param(query, provider, id=f"{query.name}-{provider}")
    for number, query in enumerate(TAKEN_OVER)
    for provider in ("hdfs", "rocksdb")
    if query is not TRANSFORM or provider != "hdfs"
    if number % 2 == (provider == "hdfs") or query is TRANSFORM
]


@pytest.mark.parametrize(("query", "provider"), CASES)
def test_state_on_disk_changes_neither_output_nor_state(
    spark: SparkSession, tmp_path: Path, undisturbed: Any, query: Query, provider: str
) -> None:
    table = Table(session_of(spark, provider), query, tmp_path / "turns")
    assert played(table, SCRIPT) == undisturbed(query)
    assert list((tmp_path / "turns" / "local").iterdir()) == []


@pytest.mark.parametrize(
    "query", [each for each in TAKEN_OVER if each.mode == APPEND], ids=lambda query: query.name
)
def test_a_query_with_state_on_disk_that_is_killed_loses_no_row(
    spark: SparkSession, tmp_path: Path, undisturbed: Any, query: Query
) -> None:
    assert killed(spark, query, tmp_path) == undisturbed(query)


def killed(spark: SparkSession, query: Query, home: Path) -> Found:
    """Kill a driver in two of the phases, and let the next run go on from its checkpoint."""
    rng = Random(f"on disk {query.name}")
    provider = "rocksdb" if query is TRANSFORM else "hdfs"
    table = Table(session_of(spark, provider), query, home / "turns", files=True)
    table.play((ON_DISK,))
    for phase in (1, 3):
        kill_in_phase(table, phase, ON_DISK, provider, home / "child.log", rng)
        table.settle(ON_DISK)
        table.play((rng.choice((ON_DISK, OURS)),), phase + 1)
    table.play((ON_DISK,), 5)
    return [about(row) for row in table.rows()], state_of(table.checkpoint)
