"""The reservoir keeps rows until they are settled; copies of a partition are its first writer's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.connectors.pubsub.sidecar.copies import Copies, Seen, open_copies
from epochal.connectors.pubsub.sidecar.reservoir import MERGED_ROWS, Reservoir, SpillFiles, spans_of
from epochal.connectors.pubsub.sidecar.sidecar_messages import Slot

PLENTY = 1 << 40


@pytest.fixture
def reservoir(tmp_path: Path) -> Reservoir:
    return Reservoir(memory_bytes=PLENTY, store=SpillFiles(tmp_path))


def messages(*keys: str | None, first: int = 0, data: bytes = b"x") -> pa.RecordBatch:
    """Return one message per key, with its number as id."""
    rows: list[dict[str, object]] = [
        {"message_id": str(first + n), "data": data, "attributes": [], "ordering_key": key}
        for n, key in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA)


def ids(reservoir: Reservoir, slot: Slot) -> list[int]:
    batches = reservoir.read(slot)
    return [int(str(i)) for batch in batches for i in batch.column("message_id").to_pylist()]


def filled(reservoir: Reservoir, slot: Slot, rows: int = 1000, size: int = PLENTY) -> list[int]:
    reservoir.fill(slot, rows=rows, size=size)
    return ids(reservoir, slot)


def add(reservoir: Reservoir, keys: Sequence[str | None], first: int = 0) -> None:
    reservoir.add(messages(*keys, first=first), first)


def test_a_row_that_does_not_fit_keeps_later_ones_of_its_key_out(reservoir: Reservoir) -> None:
    reservoir.add(messages(None, data=b"small"), 0)
    reservoir.add(messages("k", first=1, data=b"x" * 1000), 1)
    reservoir.add(messages("k", first=2, data=b"small"), 2)
    assert filled(reservoir, (1, 0), size=500) == [0]
    assert filled(reservoir, (2, 0), size=500) == [1]
    assert filled(reservoir, (3, 0), size=500) == [2]


def test_rows_given_back_take_the_later_ones_of_their_key_along(reservoir: Reservoir) -> None:
    add(reservoir, ["k", "m", "k", None, "k"])
    assert filled(reservoir, (1, 0), rows=1) == [0]
    assert spans_of(reservoir.give_back((1, 0))) == [(0, 1), (2, 3), (4, 5)]
    assert filled(reservoir, (2, 0)) == [1, 3]


def test_duplicates_are_settled_with_the_partition_and_not_read(reservoir: Reservoir) -> None:
    add(reservoir, [None] * 3)
    add(reservoir, [None] * 3, first=3)
    reservoir.fill((1, 0), rows=6, size=PLENTY)
    reservoir.thin((1, 0), np.array([1, 4]), np.array([5]))
    assert ids(reservoir, (1, 0)) == [0, 2, 3]
    assert reservoir.numbers((1, 0)).tolist() == [0, 2, 3]
    assert spans_of(reservoir.settle((1, 0))) == [(0, 5)]
    assert reservoir.held_rows == 0


def test_memory_is_bounded_and_rows_survive_it(tmp_path: Path) -> None:
    limit = 20_000
    reservoir = Reservoir(memory_bytes=limit, store=SpillFiles(tmp_path))
    for first in range(0, 1000, 10):
        reservoir.add(messages(*[None] * 10, first=first, data=b"x" * 100), first)
        assert reservoir.memory_bytes <= limit
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 100_000
    assert filled(reservoir, (1, 0), rows=300) == list(range(300))
    assert filled(reservoir, (1, 1), rows=1000) == list(range(300, 1000))
    assert reservoir.memory_bytes <= limit
    assert spans_of(reservoir.settle((1, 0))) == [(0, 300)]
    assert spans_of(reservoir.drain()) == [(300, 1000)]
    assert list(tmp_path.iterdir()) == []
    assert reservoir.memory_bytes == 0


def test_small_pieces_are_joined(reservoir: Reservoir) -> None:
    for first in range(0, MERGED_ROWS + 100, 100):
        add(reservoir, [None] * 100, first=first)
    reservoir.fill((1, 0), rows=PLENTY, size=PLENTY)
    assert [batch.num_rows for batch in reservoir.read((1, 0))] == [MERGED_ROWS, 100]


@pytest.mark.parametrize("seed", range(30), ids=lambda seed: f"seed{seed}")
def test_keys_stay_in_order_and_every_row_is_read_once(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    reservoir = Reservoir(memory_bytes=rng.choice((2_000, PLENTY)), store=SpillFiles(tmp_path))
    keys: list[str | None] = []
    read: dict[int, list[int]] = {}
    for batch in range(30):
        new = [rng.choice((None, "a", "b", "c")) for _ in range(rng.randint(0, 30))]
        add(reservoir, new, first=len(keys))
        keys += new
        placed: dict[str, int] = {}
        for partition in rng.sample(range(3), 3):
            found = filled(reservoir, (batch, partition), rows=rng.randint(1, 12))
            assert found == sorted(found)
            for key in {keys[n] for n in found} - {None}:
                assert placed.setdefault(str(key), partition) == partition
            read.setdefault(batch, []).extend(found)
        if rng.random() < 0.8:
            for slot in reservoir.slots(batch - 1):
                reservoir.settle(slot)
    read[30] = filled(reservoir, (30, 0))
    for key in "abc":
        order = [n for batch in sorted(read) for n in read[batch] if keys[n] == key]
        assert order == [n for n, found in enumerate(keys) if found == key]
    assert sorted(n for rows in read.values() for n in rows) == list(range(len(keys)))
    reservoir.drain()
    assert (reservoir.buffered_rows, reservoir.held_rows) == (0, 0)
    assert reservoir.memory_bytes == 0


SUBSCRIPTION = "projects/p/subscriptions/s"


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return open_copies(str(tmp_path), SUBSCRIPTION)


def rows(*ids: str) -> list[pa.RecordBatch]:
    sent = datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    found = [
        {"message_id": each, "data": b"x", "attributes": [("k", "v")], "publish_time": sent}
        for each in ids
    ]
    return [pa.RecordBatch.from_pylist(found, schema=MESSAGE_SCHEMA)]


def test_a_copy_reads_as_it_was_written(copies: Copies, tmp_path: Path) -> None:
    assert copies.decide((3, 1), MESSAGE_SCHEMA, rows("a", "b")) is None
    assert copies.read((3, 1)) == rows("a", "b")
    assert (tmp_path / "pubsub" / "p.s" / "3" / "1.arrow").is_file()


def test_the_second_writer_gets_what_the_first_wrote(copies: Copies) -> None:
    copies.decide((3, 1), MESSAGE_SCHEMA, rows("a"))
    assert copies.decide((3, 1), MESSAGE_SCHEMA, rows("b")) == rows("a")


def test_a_partition_that_was_sealed_stays_empty(copies: Copies) -> None:
    assert copies.read_or_seal((3, 0), MESSAGE_SCHEMA) == []
    assert copies.decide((3, 0), MESSAGE_SCHEMA, rows("a")) == []
    assert copies.read((3, 0)) == []


def test_messages_are_known_by_id_and_time_from_all_copies_until_they_are_dropped(
    copies: Copies,
) -> None:
    copies.decide((3, 0), MESSAGE_SCHEMA, rows("a", "b"))
    copies.decide((4, 0), MESSAGE_SCHEMA, rows("c"))
    copies.read_or_seal((4, 1), MESSAGE_SCHEMA)
    assert list(copies.message_keys()) == [
        ((3, 0), ["a@5", "b@5"]),
        ((4, 0), ["c@5"]),
        ((4, 1), []),
    ]
    copies.drop(3)
    assert copies.batches() == [4]


@pytest.fixture
def seen() -> Seen:
    found = Seen()
    assert found.admit((1, 0), ["a", "b"]) == ([], [])
    return found


def test_a_message_with_a_copy_is_a_duplicate(seen: Seen) -> None:
    seen.settled((1, 0), copied=True)
    assert seen.admit((2, 0), ["b", "c", "a"]) == ([0, 2], [])


def test_a_message_whose_copy_is_not_written_yet_may_be_a_duplicate(seen: Seen) -> None:
    assert seen.admit((1, 1), ["c", "a"]) == ([], [1])


def test_a_message_whose_partition_was_dropped_is_new(seen: Seen) -> None:
    seen.settled((1, 0), copied=False)
    assert seen.admit((2, 0), ["a"]) == ([], [])


def test_a_batch_that_is_over_leaves_only_what_has_copies(seen: Seen) -> None:
    seen.admit((1, 1), ["c"])
    seen.settled((1, 1), copied=True)
    seen.commit(1)
    assert seen.admit((2, 0), ["a", "c"]) == ([1], [])


def test_a_message_twice_in_one_partition_is_a_duplicate(seen: Seen) -> None:
    assert seen.admit((2, 0), ["x", "y", "x"]) == ([2], [])


def test_a_second_call_for_a_partition_replaces_the_first(seen: Seen) -> None:
    assert seen.admit((1, 0), ["a", "c"]) == ([], [])
    assert seen.admit((1, 1), ["b"]) == ([], [])


def test_the_content_of_a_copy_counts_and_not_the_request(seen: Seen) -> None:
    seen.load((1, 0), ["z"])
    assert seen.admit((2, 0), ["a", "z"]) == ([1], [])


def test_a_window_that_is_over_is_forgotten(seen: Seen) -> None:
    seen.settled((1, 0), copied=True)
    seen.expire(1)
    assert len(seen) == 0
    assert seen.admit((2, 0), ["a"]) == ([], [])
