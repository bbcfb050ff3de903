"""Sends acknowledgements, refusals and longer leases in single calls, several under way at once.

What a reader would get wrong: a subscription with exactly-once delivery answers per id. Ids that
it refuses for now are sent again, ids that it refuses for good are reported: their messages come
again, although the caller has done with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from epochal.connectors.pubsub.connection import (
    SUBSCRIBER,
    Connection,
    refused_ids,
    status_of,
)
from epochal.connectors.pubsub.protobuf_wire import field, varint
from epochal.connectors.pubsub.pull.ack_leases import Ids

IN_FLIGHT = 8
TRANSIENT = "TRANSIENT_"


@dataclass(frozen=True, slots=True)
class Kind:
    """A call that settles or extends leases."""

    method: str
    what: str
    ids_field: int


ACKNOWLEDGE = Kind("Acknowledge", "acknowledging messages of", 2)
MODIFY = Kind("ModifyAckDeadline", "extending or giving back messages of", 4)


class Settler:
    """The calls of one subscription; each caller's thread waits for its own."""

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._connection = connection
        self._subscription = subscription
        self._head = field(1, subscription.encode())

    def acknowledge(self, lots: Iterable[Ids]) -> dict[int, str]:
        """Acknowledge all; the numbers of the messages that were refused, with the reasons."""
        return self._send(ACKNOWLEDGE, lots, b"")

    def extend(self, lots: Iterable[Ids], seconds: int) -> dict[int, str]:
        """Let leases end `seconds` from now; 0 gives the messages back at once."""
        return self._send(MODIFY, lots, b"\x18" + varint(seconds))

    def _send(self, kind: Kind, lots: Iterable[Ids], tail: bytes) -> dict[int, str]:
        refused: dict[int, str] = {}
        waiting: deque[tuple[Ids, Any]] = deque()
        for ids in lots:
            request = self._request(kind, ids, tail)
            waiting.append((ids, self._connection.future(SUBSCRIBER, kind.method, request)))
            if len(waiting) >= IN_FLIGHT:
                self._reap(kind, tail, *waiting.popleft(), refused)
        while waiting:
            self._reap(kind, tail, *waiting.popleft(), refused)
        return refused

    def _reap(
        self, kind: Kind, tail: bytes, ids: Ids, future: Any, refused: dict[int, str]
    ) -> None:
        """Wait for one call, and make it again for as long as the error protocol says."""
        connection, failures = self._connection, 0
        start = connection.retry.monotonic()
        while len(ids):
            try:
                future.result()
                return
            except grpc.RpcError as error:
                failures += 1
                status = status_of(error)
                reasons = refused_ids(error) if status[0] == "FAILED_PRECONDITION" else {}
            if reasons:
                ids = _again(ids, reasons, refused)
                status = ("ABORTED", "some ids were refused for now")
            if len(ids):
                what = kind.what
                connection.wait_after(
                    status, failures, start, what=what, resource=self._subscription
                )
                request = self._request(kind, ids, tail)
                future = connection.future(SUBSCRIBER, kind.method, request)

    def _request(self, kind: Kind, ids: Ids, tail: bytes) -> bytes:
        return ids.encoded(kind.ids_field, self._head, tail)


def _again(ids: Ids, reasons: dict[str, str] | Any, refused: dict[int, str]) -> Ids:
    """Note what was refused for good; what is left to send again."""
    texts = ids.texts()
    for number, text in zip(ids.numbers.tolist(), texts, strict=True):
        reason = reasons.get(text)
        if reason is not None and not reason.startswith(TRANSIENT):
            refused[number] = reason
    return ids.pick({text for text in texts if reasons.get(text, "").startswith(TRANSIENT)})
