"""One query in a sidecar: its streams, its reservoir and its conversation with the driver.

Each stream has a thread that takes its messages. Another thread reports to the driver and carries
out its orders. Workers' reads and other sidecars' fetches run on further threads. One lock guards
the reservoir. A lock per partition makes a second reader of the partition wait for the first.

Note: with copies, a partition may be read only after its copy is on disk. The reservoir alone does
not guarantee this, because it has the rows earlier. The partition's lock does.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.arrow_stream import encode_stream
from epochal.connectors.pubsub.pull.received_rows import ACK_SCHEMA, MESSAGE_SCHEMA, message_keys
from epochal.connectors.pubsub.sidecar import sidecar_messages as messages
from epochal.connectors.pubsub.sidecar.copies import Copies, open_copies
from epochal.connectors.pubsub.sidecar.reservoir import Reservoir, SpillFiles, spans_of
from epochal.connectors.pubsub.sidecar.sidecar_messages import DRIVER, PEER, PartitionReading, Slot
from epochal.connectors.pubsub.sidecar.streams import Streams
from epochal.errors import EpochalError, PubSubReaderError, RpcError, RpcTimeoutError
from epochal.rpc.client import RpcClient
from epochal.rpc.envelope import PeerId
from epochal.rpc.server import RpcServer, local_host

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 0.5
REPORT_APART_S = 0.05
DRIVER_LOST_S = 10.0
"""A driver that does not answer a report for this long counts as dead."""
OPENING_S = 3.0
"""How long a stream may take to open before it counts as idle."""
PIECE_BYTES = 4 << 20


class SidecarFeed:
    """Reads one subscription for one run of a query."""

    def __init__(self, reading: PartitionReading, directory: Path) -> None:
        options = reading.options
        self.name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self.closed = threading.Event()
        self.schema = ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA
        self._copies: Copies | None = None
        if reading.copies:
            self._copies = open_copies(reading.copies, options.subscription)
        self._old_before_us = reading.old_before_us
        self._changed = threading.Condition()
        if options.spill_dir is not None:
            directory = Path(options.spill_dir) / directory.name
        store = SpillFiles(directory / self.name)
        self._reservoir = Reservoir(memory_bytes=options.reservoir_bytes, store=store)
        self._slot_locks: dict[Slot, threading.Lock] = {}
        self._fetched: OrderedDict[Slot, pa.Buffer] = OrderedDict()
        self._committed = -1
        self._numbers = 0
        self._started_s = time.monotonic()
        self._fresh_s = self._started_s + OPENING_S
        self._failure = ""
        self._leaving = False
        # Partitions whose ack was ordered and is not confirmed to the driver yet, and among them
        # those that Pub/Sub has answered, with the number of refused messages.
        self._acking: set[Slot] = set()
        self._acked: list[tuple[Slot, int]] = []
        self._streams = Streams(options, self._keep, self._fail)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._asking = RpcClient(reading.driver)
        self._reporting = RpcClient(reading.driver)
        host = local_host(reading.driver.host)
        self._server = RpcServer(advertised_host=host, bind_host=host)
        self._server.register(PEER, self._piece)
        try:
            self._reporting.ask(DRIVER, self._state())
        except RpcError:
            self._release()
            raise
        self._server.start()
        self._streams.open()
        self._reporter = threading.Thread(target=self._report, name="pubsub-reporter", daemon=True)
        self._reporter.start()
        logger.info("sidecar %s reads %s", self.name, options.subscription)

    # Requests of workers and other sidecars.

    def read(self, reading: PartitionReading) -> list[pa.RecordBatch]:
        """Return the rows of a partition: the same to every reader, or none."""
        self._settle(reading.committed, reading.pending.get(self.name, ()))
        slot = reading.slot
        if not self._holds(slot) and reading.wait_s:
            left_s = self._started_s + reading.wait_s - time.monotonic()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._reservoir.buffered_rows or self._failure or self.closed.is_set(),
                    max(0.0, left_s),
                )
        # One lock per partition: a speculative task that asks meanwhile must not fill it again, but
        # other partitions need not wait.
        with self._slot_lock(slot):
            if self._holds(slot):
                return self._rows(slot)
            grant = self._claim(slot)
            if grant.mine:
                return self._fill(slot, reading.rows, reading.size)
            if grant.place is not None:
                rows = self._fetch(grant, reading)
                if rows is not None:
                    return rows
                if self._copies is None:
                    self._ask(messages.Unreachable(slot, grant.holder))
            if self._copies is not None:
                return self._from_copy(slot)
            logger.warning(
                "batch %d partition %d is read as empty (%s); its messages will be redelivered",
                *(*slot, grant.why or f"{grant.holder} does not answer"),
            )
            return []

    def close(self, *, tell: bool) -> None:
        """Give all messages back and stop; with `tell`, notify the driver.

        A second call does nothing.
        """
        with self._changed:
            if self._leaving:
                return
            self._leaving = True
        self.closed.set()
        self._wake()
        self._streams.close()
        with self._changed:
            self._reservoir.drain()
            self._changed.notify_all()
        if tell:
            try:
                self._asking.ask(DRIVER, messages.Goodbye(self.name), timeout_seconds=1.0)
            except RpcError as error:
                logger.info("%s", error)
        if self._reporter is not threading.current_thread():
            self._reporter.join(2.0)
        self._release()
        logger.info("sidecar %s has left", self.name)

    def _release(self) -> None:
        self._server.stop()
        self._asking.close()
        self._reporting.close()

    def _holds(self, slot: Slot) -> bool:
        with self._changed:
            return self._reservoir.has(slot)

    def _rows(self, slot: Slot) -> list[pa.RecordBatch]:
        with self._changed:
            return list(self._reservoir.read(slot))

    def _slot_lock(self, slot: Slot) -> threading.Lock:
        with self._changed:
            for old in [s for s in self._slot_locks if s[0] < slot[0] - 2]:
                del self._slot_locks[old]
            return self._slot_locks.setdefault(slot, threading.Lock())

    def _claim(self, slot: Slot) -> messages.Grant:
        with self._changed:
            if self._failure:
                raise PubSubReaderError(self._failure)
            buffered = self._reservoir.buffered_rows
        grant: messages.Grant = self._ask(messages.ClaimPartition(self.name, slot, buffered))
        return grant

    def _fill(self, slot: Slot, rows: int, size: int) -> list[pa.RecordBatch]:
        with self._changed:
            if slot[0] <= self._committed:
                # The batch is committed: no reader needs these rows, and the pending orders
                # would acknowledge them unread.
                return []
            self._reservoir.fill(slot, rows=rows, size=size)
            batches = list(self._reservoir.read(slot))
        if self._copies is not None:
            batches = self._copy(slot, batches)
        else:
            rows = sum(batch.num_rows for batch in batches)
            self._ask(messages.Filled(self._state(), slot, rows))
        return batches

    def _copy(self, slot: Slot, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Drop messages the query has seen, and write the rest to disk before it can be read."""
        assert self._copies is not None
        try:
            keys = [key for part in batches for key in message_keys(part)]
            answer = messages.Known([], [])
            if keys:
                answer = self._ask(messages.Admit(slot, keys))
            batches = self._thin(slot, answer) if answer.repeated or answer.unsure else batches
            other = self._copies.decide(slot, self.schema, batches)
        except Exception:
            self._give_back([slot])
            raise
        if other is not None:
            # An earlier reader has decided the partition, so our rows do not belong to it.
            self._give_back([slot])
            return self._from_copy(slot)
        rows = sum(batch.num_rows for batch in batches)
        # A partition of duplicates only must not count as empty: its commit acknowledges them.
        self._ask(messages.Filled(self._state(), slot, rows or len(answer.repeated), copied=True))
        return batches

    def _thin(self, slot: Slot, answer: messages.Known) -> list[pa.RecordBatch]:
        repeated = np.array(answer.repeated, np.int64)
        unsure = np.array(answer.unsure, np.int64)
        with self._changed:
            back = self._reservoir.numbers(slot)[unsure]
            self._reservoir.thin(slot, repeated, unsure)
            rows = list(self._reservoir.read(slot))
        logger.info(
            "batch %d partition %d: dropped %d duplicates; gave back %d possible duplicates",
            *(*slot, len(repeated), len(unsure)),
        )
        self._streams.nack(spans_of(back))
        return rows

    def _from_copy(self, slot: Slot) -> list[pa.RecordBatch]:
        assert self._copies is not None
        rows = self._copies.read_or_seal(slot, self.schema)
        keys = [key for part in rows for key in message_keys(part)]
        self._ask(messages.Loaded(self.name, slot, keys))
        logger.info("batch %d partition %d: read %d rows from its copy", *slot, len(keys))
        return rows

    def _fetch(
        self, grant: messages.Grant, reading: PartitionReading
    ) -> list[pa.RecordBatch] | None:
        """Fetch the rows of a partition from the sidecar that holds it; None if that fails."""
        assert grant.place is not None
        client = RpcClient(grant.place)
        data = bytearray()
        total = -1
        try:
            while total != len(data):
                fetch = messages.Fetch(reading.slot, reading.rows, reading.size, len(data))
                piece: messages.Piece = client.ask(PEER, fetch)
                total = piece.total
                data += piece.data
        except RpcError as error:
            logger.warning(
                "batch %d partition %d cannot be fetched from %s: %s",
                *(*reading.slot, grant.holder, error),
            )
            return None
        finally:
            client.close()
        logger.info("batch %d partition %d was fetched from %s", *reading.slot, grant.holder)
        return list(pa.ipc.open_stream(pa.BufferReader(bytes(data))))

    def _piece(self, fetch: messages.Fetch, _: PeerId) -> messages.Piece:
        slot = fetch.slot
        data = self._fetched.get(slot) if fetch.start else None
        if data is None:
            data = self._fetched[slot] = encode_stream(self.schema, self._own(fetch))
            while len(self._fetched) > 2:
                self._fetched.popitem(last=False)
        length = min(PIECE_BYTES, data.size - fetch.start)
        if fetch.start + length == data.size:
            self._fetched.pop(slot, None)
        return messages.Piece(data.size, data.slice(fetch.start, length).to_pybytes())

    def _own(self, fetch: messages.Fetch) -> list[pa.RecordBatch]:
        slot = fetch.slot
        with self._slot_lock(slot):
            if self._holds(slot):
                return self._rows(slot)
            if not self._claim(slot).mine:
                raise PubSubReaderError(
                    f"Sidecar {self.name} does not hold batch {slot[0]} partition {slot[1]}."
                )
            return self._fill(slot, fetch.rows, fetch.size)

    # The stream.

    def _keep(self, batch: pa.RecordBatch, first: int) -> None:
        rows = batch.select(self.schema.names)
        with self._changed:
            self._reservoir.add(rows, first)
            if self._is_awaited(batch):
                self._fresh_s = time.monotonic()
            self._changed.notify_all()
        self._wake()

    def _is_awaited(self, batch: pa.RecordBatch) -> bool:
        if not self._old_before_us:
            return True
        oldest = pc.min(batch.column("publish_time").cast(pa.int64())).as_py()
        return oldest is None or int(oldest) <= self._old_before_us

    def _fail(self, error: Exception) -> None:
        logger.error("sidecar %s: %s", self.name, error)
        with self._changed:
            self._failure = str(error)
            self._changed.notify_all()
        self._wake()

    # The driver.

    def _ask(self, message: object) -> Any:
        return self._asking.ask(DRIVER, message)

    def _state(self) -> messages.State:
        degraded_s = self._streams.degraded_s
        with self._changed:
            self._numbers += 1
            if degraded_s:
                # Silence means nothing while Pub/Sub is away: `availableNow` must not end now.
                self._fresh_s = time.monotonic()
            held, idle_s = self._reservoir, time.monotonic() - self._fresh_s
            report = messages.SidecarReport(
                held.buffered_rows, held.buffered_bytes, held.held_rows, idle_s
            )
            place = self._server.address
            return messages.State(
                self.name, place, self._numbers, report, self._failure, degraded_s
            )

    def _report(self) -> None:
        try:
            while not self.closed.is_set():
                settle = self._reporting.ask(DRIVER, self._state(), timeout_seconds=DRIVER_LOST_S)
                self._settle(settle.committed, settle.acks)
                self._confirm()
                reported_s = time.monotonic()
                self._wait_for_news()
                if not self.closed.is_set():
                    self.closed.wait(max(0.0, reported_s + REPORT_APART_S - time.monotonic()))
        except RpcTimeoutError:
            logger.warning("sidecar %s: the driver no longer answers", self.name)
        except EpochalError as error:
            logger.warning("sidecar %s: %s", self.name, error)
        threading.Thread(target=self.close, kwargs={"tell": False}, daemon=True).start()

    def _wait_for_news(self) -> None:
        """Wait until there is something to report, the driver pushes an order, or time is up."""
        while (pushed := self._reporting.poll_push(DRIVER)) is not None:
            self._obey(pushed)
        with self._changed:
            if self._acked:
                return
        woken = self._woken.fileno()
        ready, _, _ = select.select([woken, self._reporting.fd], [], [], REPORT_EVERY_S)
        if woken in ready:
            self._woken.recv(4096)
        while (pushed := self._reporting.poll_push(DRIVER)) is not None:
            self._obey(pushed)

    def _obey(self, pushed: object) -> None:
        match pushed:
            case messages.Settle(committed, acks):
                self._settle(committed, acks)
            case messages.Farewell():
                logger.info("sidecar %s: the query has ended", self.name)
                self.closed.set()

    def _settle(self, committed: int, acks: Sequence[Slot]) -> None:
        """Acknowledge committed partitions, and give back those that were not used.

        Orders are repeated until we confirm them. A slot in `acks` that we no longer hold was
        settled before, so it is confirmed at once.
        """
        futures: list[tuple[Slot, Future[dict[int, str]]]] = []
        back: list[Slot] = []
        with self._changed:
            self._committed = max(self._committed, committed)
            for slot in self._reservoir.slots(committed):
                if slot in acks:
                    self._acking.add(slot)
                    spans = spans_of(self._reservoir.settle(slot))
                    futures.append((slot, self._streams.ack(spans)))
                else:
                    back.append(slot)
            gone = [slot for slot in acks if slot not in self._acking]
            self._acked += [(slot, 0) for slot in gone]
            self._acking.update(gone)
        for slot, future in futures:
            future.add_done_callback(partial(self._on_acked, slot))
        self._give_back(back)

    def _give_back(self, slots: list[Slot]) -> None:
        for slot in slots:
            with self._changed:
                if not self._reservoir.has(slot):
                    continue
                spans = spans_of(self._reservoir.give_back(slot))
            logger.info("batch %d partition %d: giving its messages back to Pub/Sub", *slot)
            self._streams.nack(spans)

    def _on_acked(self, slot: Slot, future: Future[dict[int, str]]) -> None:
        # An acknowledgement that failed counts as sent, too: its messages are redelivered, and the
        # driver must not wait for an order that nothing can complete.
        refused = 0
        if future.exception() is None:
            refused = len(future.result())
        if refused:
            logger.warning(
                "batch %d partition %d: %d acknowledgements were refused; the messages will be "
                "redelivered",
                *(*slot, refused),
            )
        with self._changed:
            self._acked.append((slot, refused))
        self._wake()

    def _confirm(self) -> None:
        with self._changed:
            acked, self._acked = self._acked, []
        # A slot stays in `_acking` until the driver has heard of it. So an order that crosses the
        # confirmation finds it there, and does not confirm it a second time.
        if acked:
            slots = tuple(slot for slot, _ in acked)
            refused = sum(number for _, number in acked)
            self._reporting.ask(
                DRIVER, messages.Confirmed(self.name, slots, refused), timeout_seconds=DRIVER_LOST_S
            )
            with self._changed:
                self._acking.difference_update(slots)

    def _wake(self) -> None:
        with suppress(OSError):  # the socket is full, so the reporter wakes up anyway
            self._waker.send(b"\0")
