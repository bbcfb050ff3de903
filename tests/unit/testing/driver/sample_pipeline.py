"""A pipeline of orders, right and with planted faults."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import StreamWriter

ORDERS = "id string, user string, amount bigint, at timestamp"
NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


def order(number: int, user: str, amount: int) -> tuple[str, str, int, datetime]:
    return f"order-{number}", user, amount, NOON + timedelta(minutes=number)


SOME_ORDERS = [order(n, "ab"[n % 2], 10 * n) for n in range(6)]


def accepted(orders: Stream) -> Stream:
    """Each order once."""
    return orders.drop_duplicates(["id"])


def accepted_as_they_come(orders: Stream) -> Stream:
    """The fault: an order that comes twice is accepted twice."""
    return orders


def dated(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        times: list[Any] = batch["at"].to_pylist()
        hours = [at.hour for at in times]
        yield batch.set_column(2, "amount", pa.array(hours, pa.int64()))


def dated_by_the_wall_clock(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The fault: what comes out depends on when it is computed."""
    for batch in batches:
        hours = pa.array([datetime.now(UTC).hour] * len(batch), pa.int64())
        yield batch.set_column(2, "amount", hours)


def only_recent(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The fault: an order that is read late is not recent any more."""
    for batch in batches:
        limit = time.time() - 86_400
        times: list[Any] = batch["at"].to_pylist()
        yield batch.filter(pa.array([at.timestamp() > limit for at in times]))


class Accounts:
    """A place outside of the query, which its function writes to."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.by_order: dict[str, tuple[str, int]] = {}

    def clear(self) -> None:
        self.totals.clear()
        self.by_order.clear()

    def put(self, row: Any) -> None:
        self.by_order[row.id] = (row.user, row.amount)

    def add(self, row: Any) -> None:
        """The fault: a row that is written again is added again."""
        self.totals[row.user] = self.totals.get(row.user, 0) + row.amount


def booked(orders: Stream, write: Any) -> StreamWriter:
    return accepted(orders).write_stream.foreach(write)
