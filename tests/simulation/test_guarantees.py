"""The table of docs/guarantees.md, cell by cell: each source with each sink in worlds where
everything goes wrong, and the cell says what came of it.

A cell that says exactly once must have every event once in every world. One that says at least
once must lose nothing in any, and must show something twice in some: otherwise it promises less
than it could. The real brokers behind these sources and sinks have tests of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.simulation.engine_pubsub import PubSubWorld
from tests.simulation.engine_world import World
from tests.simulation.pipeline import Account

from epochal.connectors.contract import Prepare
from epochal.continuous.plan.stages import QueryPlan
from epochal.testing.driver import processes
from epochal.testing.driver.staged_sink import StagingWriter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
SEEDS, MOST_SEEDS = 40, 400


@dataclass(frozen=True, slots=True)
class Sink:
    """How a kind of sink shows rows."""

    decides: bool = False
    shown: str = "when committed"


SINKS = {
    "files (`_spark_metadata`), Delta, Iceberg, `MemoryOutput`": Sink(),
    "Kafka, `delivery=exactly-once`": Sink(decides=True),
    "PostgreSQL": Sink(decides=True),
    "Kafka, `delivery=at-least-once`; Pub/Sub": Sink(shown="when flushed"),
    "`foreach`, `foreach_batch`, `console`, your own with `exactly_once = False`": Sink(
        shown="when written"
    ),
}


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*batch.to_pydict().values(), strict=True))


def writer_of(sink: Sink, seen: list[tuple[Any, ...]]) -> type[StagingWriter]:
    """A writer whose rows are seen by the world when the sink shows them."""

    class Showing(StagingWriter):
        def write(self, batch: pa.RecordBatch) -> None:
            super().write(batch)
            if sink.shown == "when written":
                seen.extend(rows_of(batch))

        def cut(self, epoch: int) -> Prepare:
            rows = [row for batch in self.batches for row in rows_of(batch)]
            prepare = super().cut(epoch)

            def shown() -> bytes:
                if sink.shown == "when flushed":
                    seen.extend(rows)
                return prepare()

            return shown

    return Showing


class Replayable(World):
    """Events that can be read again from any position, into one kind of sink."""

    sink: Sink

    def _plan(self) -> QueryPlan:
        self.shape = replace(self.shape, decides=self.sink.decides)
        if self.sink.shown != "when committed":
            self.shape = replace(self.shape, stages=0)  # rows that can be told apart by themselves
        return super()._plan()

    def all_events(self) -> list[tuple[Any, ...]]:
        return list(Account(self.shape.partitions, self.shape.rows, self.shape.keys).events())


class PubSubAtLeastOnce(PubSubWorld):
    """Messages that come again at any time, into one kind of sink."""

    sink: Sink
    wanted_once = False

    def _plan(self) -> QueryPlan:
        self.shape = replace(self.shape, decides=self.sink.decides)
        plan = super()._plan()
        while self.exactly_once is not self.wanted_once:  # the seed draws it
            plan = super()._plan()
        return plan

    def all_events(self) -> list[tuple[Any, ...]]:
        return [(each,) for each in self.service.ids]


class PubSubExactlyOnce(PubSubAtLeastOnce):
    wanted_once = True


SOURCES: dict[str, type[Replayable] | type[PubSubAtLeastOnce]] = {
    "Kafka, `rate`, files, `MemoryStream`, `GeneratorSource`": Replayable,
    "Pub/Sub, `delivery=exactly-once`": PubSubExactlyOnce,
    "Pub/Sub": PubSubAtLeastOnce,
}


def promised() -> dict[tuple[str, str], str]:
    """The table as it is on the page."""
    (table,) = re.findall(r"^\| source .*?(?=\n\n)", PAGE.read_text(), re.M | re.S)
    head, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in table.split("\n")]
    return {
        (row[0], sink): cell for row in rows for sink, cell in zip(head[1:], row[1:], strict=True)
    }


PROMISED = promised()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Over all worlds of a cell."""

    lost: int
    repeated: int
    wrong: dict[int, list[str]]


def run_worlds(
    source: str, sink: str, patch: pytest.MonkeyPatch, enough: Callable[[int, int], bool]
) -> Outcome:
    """Worlds one after the other, until enough were seen: so many, with so many repetitions."""
    kind = type("Cell", (SOURCES[source],), {"sink": SINKS[sink]})
    lost = repeated = seed = 0
    wrong: dict[int, list[str]] = {}
    while not enough(seed, repeated):
        seen: list[tuple[Any, ...]] = []
        patch.setattr(processes, "StagingWriter", writer_of(SINKS[sink], seen))
        world = kind(seed)
        found = world.run()
        if found:
            wrong[seed] = found
        if SINKS[sink].shown == "when committed":
            if isinstance(world, PubSubWorld):
                repeated += len(world._output()) - len(set(world._output()))
        else:
            shown, sent = Counter(seen), Counter(world.all_events())
            lost += len(sent.keys() - shown.keys())
            repeated += sum((shown - sent).values())
        seed += 1
    return Outcome(lost, repeated, wrong)


def test_the_page_has_the_cells_that_are_tested() -> None:
    assert set(PROMISED) == {(source, sink) for source in SOURCES for sink in SINKS}


@pytest.mark.parametrize(("source", "sink"), PROMISED)
def test_a_cell_says_what_happens(source: str, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = PROMISED[source, sink]
    if claim.startswith("exactly once"):
        outcome = run_worlds(source, sink, monkeypatch, lambda seeds, _: seeds == SEEDS)
        assert outcome == Outcome(lost=0, repeated=0, wrong={})
    else:
        assert claim == "at least once"
        outcome = run_worlds(
            source,
            sink,
            monkeypatch,
            lambda seeds, repeated: seeds == MOST_SEEDS or (seeds >= SEEDS and repeated > 0),
        )
        assert (outcome.lost, outcome.wrong) == (0, {})
        assert outcome.repeated > 0
