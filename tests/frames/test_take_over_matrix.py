"""Spark and Epochal take turns at random, with every stateful operator and provider.

The output and the final state are those of a run of Spark's that nobody disturbed: in append mode
all rows, in update mode the last row of each key, in every store the same rows.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.corpus.inputs import PHASES
from tests.corpus.queries import APPEND, Query
from tests.frames.test_corpus import about, state_of
from tests.frames.turn_child import Child
from tests.frames.turns import (
    BY_NAME,
    OURS,
    PROVIDERS,
    SPARK,
    TAKEN_OVER,
    TRANSFORM,
    Table,
    ends_exactly,
    publish,
    random_script,
    session_of,
)

from epochal.checkpoint.restart import PROVIDER, STATE_FORMAT
from epochal.continuous.run.take_over import AGGREGATION_FORMAT, JOIN_FORMAT
from epochal.errors import EpochalError

pytestmark = [pytest.mark.usefixtures("nothing_left_running"), pytest.mark.timeout(600)]

Found = tuple[list[Any], dict[str, list[Any]]]


ALTERNATING = ("ids", "ids-changelogs")
"""With unique ids, each operator has one of these providers, and the processors have both."""

CASES = [
    (query, provider)
    for provider in PROVIDERS
    for number, query in enumerate(TAKEN_OVER)
    if query is not TRANSFORM or provider != "hdfs"
    if query is TRANSFORM or provider not in ALTERNATING or provider == ALTERNATING[number % 2]
]


def turns() -> list[Any]:
    """Either engine begins with every operator and provider; in CI one of them with each."""
    return [
        pytest.param(
            query,
            provider,
            first,
            id=f"{query.name}-{provider}-{first}",
            marks=() if number % 2 == begins else pytest.mark.long,
        )
        for number, (query, provider) in enumerate(CASES)
        for begins, first in enumerate((SPARK, OURS))
    ]


def kills() -> list[Any]:
    """Every operator and provider; in CI each operator with one of the providers."""
    chosen = {
        query.name: ("rocksdb", "changelogs", "hdfs")[number % 3]
        for number, query in enumerate(reversed(TAKEN_OVER))
    }
    return [
        pytest.param(
            query,
            provider,
            id=f"{query.name}-{provider}",
            marks=() if chosen[query.name] == provider else pytest.mark.long,
        )
        for query, provider in CASES
        if query.mode == APPEND
    ]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Spark alone gives, by query. It is asked once, as providers make no difference."""
    known: dict[str, Found] = {}

    def ask(query: Query) -> Found:
        if query.name not in known:
            session = session_of(spark, "rocksdb" if query is TRANSFORM else "hdfs")
            table = Table(session, query, tmp_path_factory.mktemp("spark") / "alone")
            known[query.name] = played(table, (SPARK,) * PHASES)
        return known[query.name]

    return ask


def played(table: Table, script: tuple[str, ...]) -> Found:
    table.play(script)
    return [about(row) for row in table.rows()], state_of(table.checkpoint)


@pytest.mark.parametrize(("query", "provider", "first"), turns())
def test_turns_at_random_change_neither_output_nor_state(
    spark: SparkSession, tmp_path: Path, undisturbed: Any, query: Query, provider: str, first: str
) -> None:
    script = random_script(first, f"{query.name} {provider}")
    table = Table(session_of(spark, provider), query, tmp_path / "turns")
    output, state = played(table, script)
    their_output, their_state = undisturbed(query)
    assert output == their_output, script
    assert state == their_state, script
    assert output


NEW_FILES = ("checkpoint/offsets", "checkpoint/state", "out/_spark_metadata", "checkpoint/commits")
"""What appears in the course of a batch, in Spark's order. A kill comes at random after one."""


def new_files(home: Path, folder: str) -> set[Path]:
    return {each for each in (home / folder).rglob("[0-9]*") if each.is_file()}


def kill_in_phase(
    table: Table, phase: int, engine: str, provider: str, log: Path, rng: Random
) -> None:
    """Let a child of its own process a phase, and kill it at a random moment."""
    child = Child(engine, table.query.name, provider, table.home, log)
    try:
        table.streams.add(phase)
        folder = rng.choice(NEW_FILES[:3] if engine == SPARK else NEW_FILES)
        known = new_files(table.home, folder)
        child.begin()
        child.wait_for(lambda: bool(new_files(table.home, folder) - known), f"a file in {folder}")
        time.sleep(rng.choice((0, rng.uniform(0, 0.3))))  # a random moment
    finally:
        child.kill()


def killed_turns(
    spark: SparkSession, query: Query, provider: str, home: Path, seed: object
) -> Found:
    """Spark, Epochal killed and restarted, Spark, Spark killed, Epochal, Spark."""
    rng = Random(f"kills {seed}")
    home.mkdir(exist_ok=True)
    table = Table(session_of(spark, provider), query, home / "turns", files=True)
    table.play((SPARK,))
    kill_in_phase(table, 1, OURS, provider, home / "ours.log", rng)
    settles = rng.choice((OURS, SPARK)) if ends_exactly(table.checkpoint) else OURS
    if settles == SPARK:
        publish(table.checkpoint)
    table.settle(settles)
    table.play((SPARK, rng.choice((SPARK, OURS))), 2)
    kill_in_phase(table, 4, SPARK, provider, home / "spark.log", rng)
    table.settle(OURS)
    table.play((SPARK,), 5)
    return [about(row) for row in table.rows()], state_of(table.checkpoint)


@pytest.mark.parametrize(("query", "provider"), kills())
def test_a_killed_engine_is_taken_over_by_the_other(
    spark: SparkSession, tmp_path: Path, undisturbed: Any, query: Query, provider: str
) -> None:
    found = killed_turns(spark, query, provider, tmp_path, f"{query.name} {provider}")
    assert found == undisturbed(query)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_many_random_turns_and_kills_change_nothing(
    spark: SparkSession, tmp_path: Path, undisturbed: Any, seed: int
) -> None:
    rng = Random(f"many {seed}")
    query, provider = rng.choice(CASES)
    table = Table(session_of(spark, provider), query, tmp_path / "turns")
    script = random_script(rng.choice((SPARK, OURS)), seed)
    assert played(table, script) == undisturbed(query)
    query, provider = rng.choice([each for each in CASES if each[0].mode == APPEND])
    assert killed_turns(spark, query, provider, tmp_path / "kills", seed) == undisturbed(query)


@dataclass(frozen=True)
class Refused:
    """State that only Spark can go on from, and the setting that a refusal names."""

    query: str
    setting: str
    value: str
    provider: str = "hdfs"

    def __str__(self) -> str:
        return f"{self.setting.removeprefix('spark.sql.streaming.')}={self.value}"


REFUSED = [
    Refused("filter, by window", AGGREGATION_FORMAT, "1"),
    Refused("inner join with time bounds", JOIN_FORMAT, "3", "rocksdb"),
]
REFUSED_BY_SPARK = Refused("filter, by window", STATE_FORMAT, "2")


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_state_that_only_spark_can_continue_is_refused_and_stays(
    spark: SparkSession, tmp_path: Path, case: Refused
) -> None:
    session = session_of(spark, case.provider)
    session.conf.set(case.setting, case.value)
    table = Table(session, BY_NAME[case.query], tmp_path / "turns")
    table.play((SPARK, SPARK))
    before = times_of(table.checkpoint)
    with pytest.raises(EpochalError, match=re.escape(case.setting)):
        table.settle(OURS)
    assert times_of(table.checkpoint) == before
    table.play((SPARK,), 2)


@pytest.mark.parametrize("case", [*REFUSED, REFUSED_BY_SPARK], ids=str)
def test_a_new_query_does_not_start_with_state_that_it_cannot_lay_out(
    spark: SparkSession, tmp_path: Path, case: Refused
) -> None:
    session = session_of(spark, case.provider)
    session.conf.set(case.setting, case.value)
    table = Table(session, BY_NAME[case.query], tmp_path / "turns")
    with pytest.raises(EpochalError, match=re.escape(case.setting)):
        table.settle(OURS)
    assert times_of(table.checkpoint) == {}


def test_processors_need_the_provider_that_spark_demands(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(session_of(spark, "hdfs"), TRANSFORM, tmp_path / "turns")
    with pytest.raises(EpochalError, match=re.escape(PROVIDER)):
        table.settle(OURS)
    assert times_of(table.checkpoint) == {}


def times_of(folder: Path) -> dict[Path, int]:
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
