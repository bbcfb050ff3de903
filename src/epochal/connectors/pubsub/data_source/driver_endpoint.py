"""The driver's endpoint of one run: it lets Spark and the sidecars use `Grants` under a lock.

It lives in the process that Spark starts for a source. Spark calls `latestOffset`, `partitions` and
`commit` on one thread. The RPC server's thread handles the sidecars' requests. Both only call
`Grants`, under one lock.

Note: `commit` does not wait for acknowledgements. The order to acknowledge is pushed to the
sidecars, repeated in every reply to a report, and repeated in the partitions of the next batch,
until it is confirmed. So a lost message only delays it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from epochal.connectors.pubsub.sidecar import sidecar_messages as messages
from epochal.connectors.pubsub.sidecar.copies import Seen
from epochal.connectors.pubsub.sidecar.grants import BatchPlan, Grants
from epochal.connectors.pubsub.sidecar.sidecar_messages import DRIVER, Grant, Settle, Slot, State
from epochal.errors import PubSubReaderError
from epochal.rpc.envelope import PeerId, RpcAddress
from epochal.rpc.server import RpcServer

logger = logging.getLogger(__name__)

CONFIRM_S = 10.0
"""How long the end of `availableNow` waits for acknowledgements."""


@dataclass(slots=True)
class _Sidecar:
    state: State
    """The newest. Older ones may arrive later and are ignored."""
    peer: PeerId


class DriverEndpoint:
    """Serves the sidecars of one run. The reader calls the public methods on Spark's behalf."""

    def __init__(self, grants: Grants, *, host: str, bind_host: str, seen: Seen | None) -> None:
        self.run = uuid.uuid4().hex
        self._grants = grants
        self._seen = seen
        self._changed = threading.Condition()
        self._sidecars: dict[str, _Sidecar] = {}
        self._failure = ""
        self._refused = 0
        self._closed = False
        self._server = RpcServer(advertised_host=host, bind_host=bind_host)
        self._server.register(DRIVER, self._answer)
        self._server.start()

    @property
    def place(self) -> RpcAddress:
        return self._server.address

    def next_batch(self, start: int) -> BatchPlan | None:
        """Plan the batch after `start`, if there is a reason for one.

        Raises if a sidecar has reported a fatal error.
        """
        with self._changed:
            self._check()
            return self._grants.next_batch(start, time.monotonic())

    def next_drained(self, start: int, silence_s: float) -> BatchPlan | None:
        """As `next_batch`, for `availableNow`: wait for rows until the subscription is drained."""
        with self._changed:
            while True:
                self._check()
                now_s = time.monotonic()
                idle = self._grants.buffered(now_s)
                silent = bool(self._grants.live(now_s)) and idle.idle_s >= silence_s
                draining = silent and not idle.buffered_rows
                plan = self._grants.next_batch(start, now_s, draining=draining)
                if plan is not None:
                    return plan
                if draining and not self._grants.rows_uncommitted:
                    break
                self._changed.wait(0.1)
            if not self._changed.wait_for(lambda: self._grants.all_confirmed, CONFIRM_S):
                logger.warning(
                    "some acknowledgements were not confirmed within %g s; their messages may be "
                    "redelivered",
                    CONFIRM_S,
                )
            return None

    def planned(self, batch: int) -> tuple[BatchPlan | None, int, dict[str, tuple[Slot, ...]]]:
        """Return the plan of a batch that Spark names, and what every task must be told with it.

        That is the newest commit and the unconfirmed acknowledgements.
        """
        with self._changed:
            self._grants.see(batch)
            return self._grants.planned(batch), self._grants.committed, self._grants.pending()

    def commit(self, end: int) -> None:
        """Spark has committed everything up to `end`: order the acknowledgements, but do not wait.

        The pushes happen outside the lock.
        """
        with self._changed:
            concerned = self._grants.commit(end)
            orders = [(name, self._grants.orders(name)) for name in concerned]
            if self._seen is not None:
                self._seen.commit(end)
            peers = {name: sidecar.peer for name, sidecar in self._sidecars.items()}
        for name, order in orders:
            if name in peers:
                self._server.push(DRIVER, [peers[name]], order)

    def expire(self, batch: int) -> None:
        """Forget the messages of a batch, because its copies are about to be deleted."""
        with self._changed:
            if self._seen is not None:
                self._seen.expire(batch)

    def metrics(self) -> dict[str, int]:
        with self._changed:
            now_s = time.monotonic()
            total = self._grants.buffered(now_s)
            live = self._grants.live(now_s)
            states = [self._sidecars[name].state for name in live if name in self._sidecars]
            degraded_s = max([state.degraded_s for state in states], default=0)
            backlog = total.buffered_rows + total.held_rows
            self._grants.show(backlog)
            return {
                "buffered": total.buffered_rows,
                "buffered_bytes": total.buffered_bytes,
                "pubsub_backlog_count": backlog,
                "degraded_seconds": math.ceil(degraded_s),
                "refused_acks": self._refused,
                "sidecars": len(live),
            }

    def close(self) -> None:
        """Tell the sidecars that the query has ended. A second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            peers = [sidecar.peer for sidecar in self._sidecars.values()]
        counters = self._server.counters
        before = counters.pushed + counters.undelivered
        self._server.push(DRIVER, peers, messages.Farewell())
        end = time.monotonic() + 1.0
        while counters.pushed + counters.undelivered < before + len(peers):
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        # The message is now with ZeroMQ's own thread; give it time to send.
        time.sleep(0.1 if peers else 0.0)
        self._server.stop()

    def _check(self) -> None:
        if self._failure:
            raise PubSubReaderError(self._failure)

    def _answer(self, message: messages.DriverRequest, peer: PeerId) -> Any:
        with self._changed:
            reply = self._decide(message, peer)
            self._changed.notify_all()
            return reply

    def _decide(self, message: messages.DriverRequest, peer: PeerId) -> Any:
        grants = self._grants
        match message:
            case State():
                return self._heard(message, peer)
            case messages.ClaimPartition():
                return self._granted(message)
            case messages.Unreachable():
                logger.warning(
                    "batch %d partition %d: its holder %s does not answer; the messages will be "
                    "redelivered",
                    *(*message.slot, message.holder),
                )
                grants.unreachable(message.slot, message.holder)
            case messages.Filled():
                self._heard(message.state, None)
                grants.filled(message.slot, message.state.sidecar, message.rows)
                if self._seen is not None:
                    self._seen.settled(message.slot, copied=message.copied)
            case messages.Admit():
                assert self._seen is not None
                return messages.Known(*self._seen.admit(message.slot, message.keys))
            case messages.Loaded():
                assert self._seen is not None
                self._seen.load(message.slot, message.keys)
            case messages.Confirmed():
                grants.confirmed(message.sidecar, message.slots)
                self._refused += message.refused
            case messages.Goodbye():
                logger.info("sidecar %s has left", message.sidecar)
                grants.gone(message.sidecar)
                self._sidecars.pop(message.sidecar, None)
        return messages.Handled()

    def _heard(self, state: State, peer: PeerId | None) -> Settle:
        sidecar = self._sidecars.get(state.sidecar)
        if sidecar is None:
            logger.info("sidecar %s is up at %s", state.sidecar, state.place.host)
            sidecar = self._sidecars[state.sidecar] = _Sidecar(state, b"")
        elif state.number < sidecar.state.number:
            # A report that was overtaken. Its counts are stale, but the orders are current.
            return self._grants.orders(state.sidecar)
        sidecar.state = state
        sidecar.peer = sidecar.peer if peer is None else peer
        if state.failure and not self._failure:
            self._failure = f"{state.sidecar}: {state.failure}"
        return self._grants.heard(state.sidecar, state.report, time.monotonic())

    def _granted(self, claim: messages.ClaimPartition) -> Grant:
        now_s = time.monotonic()
        grant = self._grants.claim(claim.slot, claim.sidecar, claim.buffered, now_s)
        if not grant.holder:
            return grant
        sidecar = self._sidecars.get(grant.holder)
        if sidecar is None:
            return Grant(mine=False, why=f"its holder {grant.holder} has left")
        return msgspec.structs.replace(grant, place=sidecar.state.place)
