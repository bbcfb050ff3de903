"""The tasks' side of RPC: `send` and `ask` from any thread, over one socket per process.

The driver's pushes arrive on the same socket. No thread waits for them: the caller fetches them
with `poll_push`, and may wait on the descriptor `fd` in between. A client pickles as its address,
so it can be part of a task closure.

PySpark forks its workers, and a ZeroMQ socket must not be used after a fork. A client therefore
checks whether its process id has changed; if so, it abandons the inherited socket and opens a new
one.

Note: ZeroMQ's descriptor is edge triggered. Call `poll_push` until it returns None, then wait on
`fd`, and do not use the client in between. Otherwise a push can arrive without waking the caller.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import zmq

from epochal.errors import RpcRemoteError, RpcTimeoutError
from epochal.rpc.curve import CurveKeys, introduce
from epochal.rpc.envelope import (
    ONE_WAY,
    EndpointType,
    Pushed,
    RpcAddress,
    decode_body,
    decode_push,
    decode_reply,
    encode_request,
)

QUEUED_FRAMES = 1_000
"""One-way frames that wait for the network. Above this number `send` waits, then fails."""

KEPT_PUSHES = 1_000
"""Pushed messages kept for `poll_push`. Above this number the oldest are dropped."""

CLOSE_LINGER_MS = 1_000


class RpcClient:
    """Sends messages to the endpoints of one server."""

    def __init__(self, address: RpcAddress, *, timeout_seconds: float = 10.0) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._reset()

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(RpcClient, timeout_seconds=self._timeout_seconds), (self.address,))

    def send(self, endpoint: EndpointType, message: object) -> None:
        """Queue a one-way message; it is lost if the driver ends before it arrives."""
        frame = encode_request(endpoint.name, ONE_WAY, message)
        with self._lock_of_process():
            self._put(endpoint, frame, self._timeout_seconds)

    def ask(
        self, endpoint: EndpointType, message: object, *, timeout_seconds: float | None = None
    ) -> Any:
        """Send a request and wait for its reply."""
        allowed = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        # The lock is held until the reply has come: two threads that read the socket would take
        # each other's replies. The time of an ask begins when it has the lock.
        with self._lock_of_process():
            call = next(self._calls)
            deadline = time.monotonic() + allowed
            socket = self._put(endpoint, encode_request(endpoint.name, call, message), allowed)
            while True:
                left_ms = max(0, int((deadline - time.monotonic()) * 1000))
                if not socket.poll(left_ms):
                    raise RpcTimeoutError(endpoint.name, self.address.url, allowed)
                reply = decode_reply(socket.recv())
                if reply.call == call:
                    break  # a reply to an earlier ask that timed out is dropped
                if reply.call == ONE_WAY:
                    self._pushes.append(decode_push(reply))
        if reply.failure is not None:
            raise RpcRemoteError(endpoint.name, reply.failure.kind, reply.failure.reason)
        return decode_body(endpoint.replies, reply.body)

    def poll_push(self, endpoint: EndpointType) -> Any | None:
        """Return the next message that the endpoint has pushed, or None. Never waits."""
        with self._lock_of_process():
            socket = self._connect()
            while True:
                while self._pushes:
                    pushed = self._pushes.popleft()
                    if pushed.endpoint == endpoint.name:
                        return decode_body(endpoint.replies, pushed.body)
                # Read until nothing is left: the edge-triggered descriptor does not report again
                # what was there before. A reply to an ask that timed out is dropped.
                try:
                    reply = decode_reply(socket.recv(zmq.NOBLOCK))
                except zmq.Again:
                    return None
                if reply.call == ONE_WAY:
                    self._pushes.append(decode_push(reply))

    @property
    def fd(self) -> int:
        """A descriptor that is readable when a push may have come; see the module's note."""
        with self._lock_of_process():
            return int(self._connect().getsockopt(zmq.FD))

    def close(self) -> None:
        """Close the socket. Messages that are still queued get a second to be sent."""
        with self._lock_of_process():
            context, socket = self._context, self._socket
            self._context = self._socket = None
        if socket is not None and context is not None:
            socket.close(linger=CLOSE_LINGER_MS)
            context.term()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calls = itertools.count(1)
        self._pushes: deque[Pushed] = deque(maxlen=KEPT_PUSHES)
        self._context = self._socket = None

    def _lock_of_process(self) -> threading.Lock:
        # After a fork the lock is new, too: a thread that held the old one was not inherited, so
        # nobody would ever release it.
        if os.getpid() != self._pid:
            _abandoned.append((self._context, self._socket))
            self._reset()
        return self._lock

    def _put(
        self, endpoint: EndpointType, frame: bytes, timeout_seconds: float
    ) -> zmq.Socket[bytes]:
        socket = self._connect()
        if not socket.poll(int(timeout_seconds * 1000), zmq.POLLOUT):
            raise RpcTimeoutError(endpoint.name, self.address.url, timeout_seconds)
        socket.send(frame, zmq.NOBLOCK)
        return socket

    def _connect(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._context = zmq.Context()
            socket = self._context.socket(zmq.DEALER)
            keys = CurveKeys(self.address.client_public_key, self.address.client_secret_key)
            introduce(socket, self.address.server_public_key, keys)
            # The identity stays the same over reconnections. Otherwise the server would keep
            # pushing to the identity of the connection that broke.
            socket.setsockopt(zmq.IDENTITY, b"e" + os.urandom(16))
            socket.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
            socket.setsockopt(zmq.RCVHWM, QUEUED_FRAMES)
            socket.setsockopt(zmq.LINGER, CLOSE_LINGER_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
            socket.connect(self.address.url)
            self._socket = socket
        return self._socket


_abandoned: list[object] = []
"""Sockets inherited through a fork. They are kept so that they are never closed: closing would wait
for ZeroMQ threads that exist only in the parent process."""
