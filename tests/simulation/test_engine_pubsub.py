"""Pub/Sub under the engine: nothing lost, nothing twice, in seeded worlds; and faults show."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.simulation.engine_pubsub import PubSubWorld
from tests.simulation.planted import Plant, is_found, wrong_worlds

from epochal.connectors.pubsub.continuous_pubsub import PubSubReader
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.deduplication import DropRepeats

SEEDS, PARTS = 240, 4
SEEDS_PER_FAULT = 400


@pytest.mark.parametrize("part", range(PARTS))
def test_every_message_counts_however_often_it_comes(part: int) -> None:
    assert wrong_worlds(PubSubWorld, range(part, SEEDS, PARTS)) == {}


@pytest.mark.long
@pytest.mark.timeout(3600)  # ten minutes of CPU time and more
def test_every_message_counts_in_many_more_worlds() -> None:
    assert wrong_worlds(PubSubWorld, range(10_000)) == {}


def acknowledge_at_the_cut(patch: pytest.MonkeyPatch) -> None:
    real = PubSubReader.ended

    def ended(self: PubSubReader, epoch: int) -> None:
        real(self, epoch)
        self.committed(epoch)

    patch.setattr(PubSubReader, "ended", ended)


def acknowledge_one_epoch_too_many(patch: pytest.MonkeyPatch) -> None:
    real = PubSubReader.committed
    patch.setattr(PubSubReader, "committed", lambda self, epoch: real(self, epoch + 1))


def pass_repetitions_on(patch: pytest.MonkeyPatch) -> None:
    def process(
        self: DropRepeats, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Any:
        del self, partition, at, side
        return (batch,)

    patch.setattr(DropRepeats, "process", process)


def forget_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """As if the time that the query did not run counted."""
    patch.setattr(DropRepeats, "_note_time", lambda self, at: -(10**15))


def keep_ids_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DropRepeats, "load", lambda self, partition, store, rows: None)


PLANTED: dict[str, Plant] = {
    "messages are acknowledged when their epoch is cut": acknowledge_at_the_cut,
    "the epoch after the committed one is acknowledged too": acknowledge_one_epoch_too_many,
    "repetitions are passed on": pass_repetitions_on,
    "ids are forgotten while the query does not run": forget_by_the_clock,
    "ids do not outlive a task": keep_ids_in_memory_only,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert is_found(PubSubWorld, SEEDS_PER_FAULT)
