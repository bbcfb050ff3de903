"""`epochal.check` says what both engines do when the topics of a query change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.integration.kafka_world import make_topic, produce, read, unique
from tests.spark.upgrade_runs import attempt, ordered

import epochal
from epochal.testing.kafka import Kafka
from epochal.tools.upgrade.check_query import check
from epochal.tools.upgrade.upgrade_findings import Outcome

pytestmark = pytest.mark.timeout(300)

SAFE, ACTION, IMPOSSIBLE = Outcome.SAFE, Outcome.NEEDS_ACTION, Outcome.IMPOSSIBLE
OLD, NEW = ["0-0", "1-0"], ["0-0", "0-1", "1-0", "1-1"]
"""What both partitions of a topic have before a change, and what is added."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Two topics: the first has been read, then both got new records."""

    spark: SparkSession
    broker: Kafka
    first: str
    second: str

    def read(self, how: str, value: str, **options: str) -> DataFrame:
        rows = read(self.spark, self.broker, (how, value), None, **options)
        return rows.selectExpr("topic", "CAST(value AS STRING)")

    def both(self, one: str, other: str, **options: str) -> DataFrame:
        read_one, read_other = (self.read("subscribe", each, **options) for each in (one, other))
        return read_one.unionAll(read_other)

    @property
    def pattern(self) -> str:
        return f"{self.first}|{self.second}"

    @property
    def assigned(self) -> str:
        return json.dumps({self.first: [0, 1]})


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    make: Callable[[Topics], DataFrame]
    outcome: Outcome
    rows: tuple[list[str], list[str]] | None
    """Of the first and the second topic; None if the engine refuses."""
    before: Literal["first", "both"] = "first"


LOSSY = {"failOnDataLoss": "false"}
CHANGES = [
    Change("nothing", lambda t: t.read("subscribe", t.first), SAFE, (NEW, [])),
    Change(
        "one more topic",
        lambda t: t.read("subscribe", f"{t.first},{t.second}"),
        SAFE,
        (NEW, OLD + NEW),
    ),
    Change("a pattern", lambda t: t.read("subscribePattern", t.pattern), SAFE, (NEW, OLD + NEW)),
    Change("partitions", lambda t: t.read("assign", t.assigned), SAFE, (NEW, [])),
    Change("another topic", lambda t: t.read("subscribe", t.second), ACTION, None),
    Change(
        "another topic, and loss is accepted",
        lambda t: t.read("subscribe", t.second, **LOSSY),
        ACTION,
        ([], OLD + NEW),
    ),
    Change("another pattern", lambda t: t.read("subscribePattern", t.second), ACTION, None),
    Change("nothing of two", lambda t: t.both(t.first, t.second), SAFE, (NEW, NEW), "both"),
    Change("the order", lambda t: t.both(t.second, t.first), IMPOSSIBLE, None, "both"),
    Change(
        "the order, and loss is accepted",
        lambda t: t.both(t.second, t.first, **LOSSY),
        IMPOSSIBLE,
        (OLD + NEW, OLD + NEW),
        "both",
    ),
    Change(
        "numbers instead",
        lambda t: t.spark.readStream.format("rate").load().selectExpr("'' AS topic", "'' AS value"),
        IMPOSSIBLE,
        None,
    ),
]


@pytest.fixture(scope="module")
def topics(broker: Kafka, kafka_spark: SparkSession) -> Topics:
    names = (make_topic(broker, unique(each)) for each in ("one", "two"))
    found = Topics(kafka_spark, broker, *names)
    for topic in (found.first, found.second):
        produce(broker, topic, 1)
    return found


@pytest.fixture(scope="module")
def left(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoints of a query over the first topic, and of one over both."""
    found = {name: tmp_path_factory.mktemp(name) / "checkpoint" for name in ("first", "both")}
    first = topics.read("subscribe", topics.first)
    for name, made in (("first", first), ("both", topics.both(topics.first, topics.second))):
        assert attempt(made, "append", found[name])[1] is None
    for topic in (topics.first, topics.second):
        produce(topics.broker, topic, 2)
    return found


@pytest.mark.parametrize("engine", ["spark", "ours"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_verdict_is_what_the_engine_then_does(
    change: Change, engine: str, topics: Topics, left: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(left[change.before], checkpoint)
    made, ours = change.make(topics), engine == "ours"
    report = check(epochal.write_stream(made) if ours else made, str(checkpoint))
    assert report.outcome == change.outcome, report

    rows, refusal = attempt(made, "append", checkpoint, ours=ours)
    assert report.starts == (refusal is None), (report, refusal)
    if refusal is not None:
        said = [each.refusal for each in report.differences if each.refusal]
        assert any(each.lower() in refusal.lower() for each in said), (said, refusal)
    if change.rows is None:
        assert refusal is not None
    else:
        names = (topics.first, topics.second)
        wanted = [
            (name, value) for name, found in zip(names, change.rows, strict=True) for value in found
        ]
        assert rows == ordered(wanted)
