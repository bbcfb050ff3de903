"""Keeps the acknowledgement ids of all messages that are leased. Pure.

Every received message gets a number, counted from 0. Callers refer to messages by half-open spans
of these numbers. The book stores the ids (about 180 bytes each) in one block per delivery and
returns them already encoded for a request, so that no id becomes a Python object.

Note: settling a message twice is harmless. A span may include messages that were settled before;
only the ids of those still held are returned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.connectors.pubsub.protobuf_wire import encode_field, encode_varint

Span: TypeAlias = tuple[int, int]
Rows: TypeAlias = Any
"""Ids: a two-dimensional array of bytes, one row per id; or a list if they differ in length."""
FEW_IDS = 64
"""Up to this many, one object per id costs less than the fixed cost of NumPy's functions."""
MAX_IDS = 2500
MAX_REQUEST_BYTES = 450_000
"""Pub/Sub accepts 512 KiB in an Acknowledge or ModifyAckDeadline request."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Some acknowledgement ids and the numbers of their messages."""

    numbers: Any
    """An array of int64."""
    rows: Rows

    def __len__(self) -> int:
        return len(self.numbers)

    def encoded(self, number: int, before: bytes = b"", after: bytes = b"") -> bytes:
        """Encode a request: `before`, then the ids as repeated field `number`, then `after`."""
        if isinstance(self.rows, list):
            return b"".join([before, *(encode_field(number, row) for row in self.rows), after])
        count, width = self.rows.shape
        head = encode_varint(number << 3 | 2) + encode_varint(width)
        start, end = len(before), len(before) + count * (len(head) + width)
        out = np.empty(end + len(after), np.uint8)
        out[:start] = np.frombuffer(before, np.uint8)
        ids = out[start:end].reshape(count, len(head) + width)
        ids[:, : len(head)] = np.frombuffer(head, np.uint8)
        ids[:, len(head) :] = self.rows
        out[end:] = np.frombuffer(after, np.uint8)
        return out.tobytes()

    def texts(self) -> list[str]:
        rows = self.rows if isinstance(self.rows, list) else [row.tobytes() for row in self.rows]
        return [row.decode() for row in rows]

    def pick(self, wanted: set[str]) -> Ids:
        """Return those whose id is in `wanted`."""
        indices = [index for index, text in enumerate(self.texts()) if text in wanted]
        rows = self.rows
        picked = [rows[i] for i in indices] if isinstance(rows, list) else rows[indices]
        return Ids(self.numbers[indices], picked)


@dataclass(slots=True)
class _Delivery:
    """Messages that were added together, numbered from `first`; `live` are those still held."""

    first: int
    rows: Rows
    live: list[Span]


@dataclass(slots=True)
class LeaseBook:
    """The ids of all messages held. Not thread-safe."""

    next_number: int = 0
    held: int = 0
    _firsts: list[int] = field(default_factory=list)
    _deliveries: dict[int, _Delivery] = field(default_factory=dict)

    def add(self, rows: Rows) -> int:
        """Hold messages, given by their ids (see `id_rows`); return the number of the first."""
        first, count = self.next_number, len(rows)
        if count:
            self._deliveries[first] = _Delivery(first, rows, [(first, first + count)])
            self._firsts.append(first)
            self.next_number += count
            self.held += count
        return first

    def settle(self, spans: Iterable[Span]) -> list[Ids]:
        """Stop holding messages; return their ids, split to fit into requests."""
        gone: list[tuple[_Delivery, Span]] = []
        for span in spans:
            gone += self._remove(span)
        # `_firsts` keeps deliveries that are gone. Rebuild it before they outnumber the others.
        if len(self._firsts) > 2 * len(self._deliveries) + 64:
            self._firsts = list(self._deliveries)
        return list(_in_requests(gone))

    def all_held(self) -> list[Ids]:
        """Return the ids of everything held, split to fit into requests."""
        parts = [
            (delivery, span) for delivery in self._deliveries.values() for span in delivery.live
        ]
        return list(_in_requests(parts))

    def spans(self) -> list[Span]:
        """Return the spans of everything held."""
        return [span for delivery in self._deliveries.values() for span in delivery.live]

    def _remove(self, span: Span) -> Iterator[tuple[_Delivery, Span]]:
        start, stop = span
        # The delivery with `start` is the last that begins at or before it. Deliveries do not
        # overlap, and numbers only grow, so all others of the span follow in order.
        index = max(bisect_right(self._firsts, start) - 1, 0)
        while index < len(self._firsts) and self._firsts[index] < stop:
            delivery = self._deliveries.get(self._firsts[index])
            index += 1
            if delivery is None:
                continue
            rest: list[Span] = []
            for low, high in delivery.live:
                cut = max(low, start), min(high, stop)
                if cut[0] >= cut[1]:
                    rest.append((low, high))
                    continue
                rest += [part for part in ((low, cut[0]), (cut[1], high)) if part[0] < part[1]]
                self.held -= cut[1] - cut[0]
                yield delivery, cut
            delivery.live = rest
            if not rest:
                del self._deliveries[delivery.first]


def id_rows(ack_ids: pa.Array[Any]) -> Rows:
    """Copy the ids' bytes, so that the buffer they share with the messages can be freed."""
    if len(ack_ids) <= FEW_IDS:
        ids = [str(ack_id).encode() for ack_id in ack_ids.to_pylist()]
        width = len(ids[0]) if ids else 0
        if not width or any(len(ack_id) != width for ack_id in ids):
            return ids
        return np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), width)
    _, offsets_buffer, data = ack_ids.buffers()
    assert offsets_buffer is not None
    offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)
    offsets = offsets[ack_ids.offset : ack_ids.offset + len(ack_ids) + 1]
    widths = np.diff(offsets)
    if data is None or not 0 < widths.min() == widths.max():
        return [str(ack_id).encode() for ack_id in ack_ids.to_pylist()]
    block = np.frombuffer(memoryview(data), np.uint8)[offsets[0] : offsets[-1]]
    return block.reshape(len(ack_ids), int(widths[0])).copy()


def _in_requests(parts: list[tuple[_Delivery, Span]]) -> Iterator[Ids]:
    """Join and split ids so that each lot fits into a request."""
    waiting: list[tuple[Any, Any]] = []
    count, width = 0, 0
    for delivery, (low, high) in parts:
        rows = delivery.rows[low - delivery.first : high - delivery.first]
        numbers = np.arange(low, high)
        of_width = 0 if isinstance(rows, list) else rows.shape[1]
        if waiting and of_width != width:
            yield _join(waiting)
            waiting, count = [], 0
        width = of_width
        most = min(MAX_IDS, MAX_REQUEST_BYTES // (width + 4)) if width else 500
        while len(numbers):
            room = most - count
            waiting.append((numbers[:room], rows[:room]))
            count += len(numbers[:room])
            numbers, rows = numbers[room:], rows[room:]
            if count >= most:
                yield _join(waiting)
                waiting, count = [], 0
    if waiting:
        yield _join(waiting)


def _join(waiting: list[tuple[Any, Any]]) -> Ids:
    if len(waiting) == 1:
        return Ids(*waiting[0])
    numbers = np.concatenate([numbers_of for numbers_of, _ in waiting])
    if isinstance(waiting[0][1], list):
        return Ids(numbers, [row for _, rows in waiting for row in rows])
    return Ids(numbers, np.concatenate([rows for _, rows in waiting]))
