"""The sockets of the exchange: one to listen on, and one to each peer. It decides nothing.

Each task listens with its own key pair, and its public key reaches the peers through the driver.
Peers authenticate with the key pair that all clients of a query share. The credits of the exchange
bound the queues.

Note: ZeroMQ's descriptors are edge-triggered. Call `wait` only after `receive` has drained the
socket; otherwise `select` may sleep although frames are there.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence

import pyarrow as pa
import zmq

from epochal.continuous.tasks.frames import (
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    Frame,
    decode_frame,
    encode_frame,
)
from epochal.epoch.messages import Peer
from epochal.errors import ExchangeError, FrameError, RowTooLargeError
from epochal.rpc.curve import CurveKeys, Gatekeeper, introduce, protect

QUEUED_FRAMES = 10_000
"""Credits keep a channel far below this. At the limit, the peer has stopped reading."""


class Channels:
    """The sending and receiving side of a task; used by one thread."""

    def __init__(self, host: str, clients: CurveKeys, schemas: Sequence[pa.Schema]) -> None:
        self._schemas, self._clients = schemas, clients
        self.malformed = 0
        keys = CurveKeys.new()
        self.key = keys.public
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, clients.public)
        self.guard = self._gatekeeper.answer
        """Answer pending authentication requests; needed if `wait` is not called for a while."""
        self._pull = self._context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, QUEUED_FRAMES)
        self._pull.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._pull.setsockopt(zmq.LINGER, 0)
        self._pull.setsockopt(zmq.IPV6, int(":" in host))
        protect(self._pull, keys)
        self._gatekeeper.watch(self._pull)
        address = f"[{host}]" if ":" in host else host
        self._pull.bind(f"tcp://{address}:*")
        port = self._pull.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        self.url = f"tcp://{address}:{port}"
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        self._guards = [int(socket.getsockopt(zmq.FD)) for socket in self._gatekeeper.sockets]
        self.fd = int(self._pull.getsockopt(zmq.FD))
        """A descriptor that is readable when a frame may have come since `receive`."""
        self._fds = [self.fd, *self._guards]

    @property
    def refused(self) -> int:
        return self._gatekeeper.refused

    def connect(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            push = self._context.socket(zmq.PUSH)
            push.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
            push.setsockopt(zmq.LINGER, 0)
            push.setsockopt(zmq.IPV6, int("[" in peer.url))
            introduce(push, peer.key, self._clients)
            push.connect(peer.url)
            self._peers[peer.task] = push

    def send(self, target: int, frame: Frame) -> None:
        """Send a frame without waiting; RowTooLargeError if the receiver would refuse its rows."""
        body = b"" if frame.batch is None else frame.batch.serialize()
        if len(body) > MAX_BODY_BYTES:
            raise RowTooLargeError(frame.edge, len(body), MAX_BODY_BYTES)
        data = encode_frame(frame, body)
        # An error and not a wait: a thread that waits here receives nothing, and two tasks that
        # wait for each other would wait forever.
        try:
            self._peers[target].send(data, zmq.NOBLOCK)
        except zmq.Again:
            raise ExchangeError(frame.edge, target, "it has stopped reading") from None

    def receive(self) -> list[Frame]:
        """Return all frames that have arrived; malformed ones are counted and dropped."""
        frames: list[Frame] = []
        while True:
            try:
                data = self._pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return frames
            try:
                frames.append(decode_frame(data, self._schemas))
            except FrameError:
                self.malformed += 1  # the gap in the sequence numbers will show it

    def wait(self, seconds: float, *others: int) -> list[int]:
        """Wait until something may have arrived, here or on another descriptor, or time is up.

        Returns the readable descriptors: `fd`, others. Those that are not readable need not be
        asked for messages, which costs as much as a small turn.
        """
        ready, _, _ = select.select([*self._fds, *others], [], [], max(0.0, seconds))
        if ready and any(fd in self._guards for fd in ready):
            self._gatekeeper.answer()
        return ready

    def close(self) -> None:
        """Close all sockets; unsent frames are dropped, because the attempt is over."""
        self._gatekeeper.close()
        for socket in (self._pull, *self._peers.values()):
            socket.close(linger=0)
        self._context.term()
