"""Sends acks, nacks and lease extensions as unary calls, several in flight at once.

Note: a subscription with exactly-once delivery answers for each id. Ids that fail temporarily are
sent again. Ids that fail permanently are returned to the caller: their messages will be redelivered
although the caller has already processed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from epochal.connectors.pubsub.connection import SUBSCRIBER, Connection, refused_ids, status_of
from epochal.connectors.pubsub.protobuf_wire import encode_field, encode_varint
from epochal.connectors.pubsub.pull.ack_leases import Ids

IN_FLIGHT = 8
TRANSIENT = "TRANSIENT_"


@dataclass(frozen=True, slots=True)
class Method:
    """A unary call that takes acknowledgement ids."""

    name: str
    what: str
    """What it does, for errors."""
    ids_field: int
    """The number of the request's field that holds the ids."""


ACKNOWLEDGE = Method("Acknowledge", "acknowledging messages of", 2)
MODIFY = Method("ModifyAckDeadline", "extending leases of or nacking messages of", 4)


class Settler:
    """Sends the calls of one subscription. Each method blocks until its own calls are answered."""

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._connection = connection
        self._subscription = subscription
        self._head = encode_field(1, subscription.encode())

    def acknowledge(self, lots: Iterable[Ids]) -> dict[int, str]:
        """Acknowledge messages; return the numbers of those that were refused, with the reasons."""
        return self._send(ACKNOWLEDGE, lots, b"")

    def extend(self, lots: Iterable[Ids], seconds: int) -> dict[int, str]:
        """Make leases end `seconds` from now; 0 nacks the messages. Return what was refused."""
        return self._send(MODIFY, lots, b"\x18" + encode_varint(seconds))

    def _send(self, method: Method, lots: Iterable[Ids], tail: bytes) -> dict[int, str]:
        refused: dict[int, str] = {}
        waiting: deque[tuple[Ids, Any]] = deque()
        for ids in lots:
            waiting.append((ids, self._start(method, ids, tail)))
            if len(waiting) >= IN_FLIGHT:
                self._reap(method, tail, *waiting.popleft(), refused)
        while waiting:
            self._reap(method, tail, *waiting.popleft(), refused)
        return refused

    def _reap(
        self, method: Method, tail: bytes, ids: Ids, future: Any, refused: dict[int, str]
    ) -> None:
        """Wait for one call, and retry it while `statuses` allows; add to `refused`."""
        connection, failures = self._connection, 0
        start = connection.retry.monotonic()
        while len(ids):
            try:
                future.result()
                connection.recovered(method.what)
                return
            except grpc.RpcError as error:
                failures += 1
                status = status_of(error)
                reasons = refused_ids(error) if status[0] == "FAILED_PRECONDITION" else {}
            if reasons:
                # Every id without a reason has succeeded. Only temporary failures are left.
                ids = _to_retry(ids, reasons, refused)
                status = ("ABORTED", "some ids failed temporarily")
            if len(ids):
                what, resource = method.what, self._subscription
                connection.wait_after(status, failures, start, what=what, resource=resource)
                future = self._start(method, ids, tail)

    def _start(self, method: Method, ids: Ids, tail: bytes) -> Any:
        request = ids.encoded(method.ids_field, self._head, tail)
        return self._connection.future(
            SUBSCRIBER, method.name, request, resource=self._subscription
        )


def _to_retry(ids: Ids, reasons: dict[str, str] | Any, refused: dict[int, str]) -> Ids:
    """Add permanent failures to `refused`, and return the ids to send again."""
    texts = ids.texts()
    for number, text in zip(ids.numbers.tolist(), texts, strict=True):
        reason = reasons.get(text)
        if reason is not None and not reason.startswith(TRANSIENT):
            refused[number] = reason
    return ids.pick({text for text in texts if reasons.get(text, "").startswith(TRANSIENT)})
