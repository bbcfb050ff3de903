"""The driver's side of RPC: one thread and one socket that serve all registered endpoints.

Every handler runs on that thread, so an endpoint needs no lock, and a handler that blocks delays
all others. Peers without the right keys are rejected (see `curve`). Invalid frames are counted and
not answered.

`push` may be called from any thread, including from a handler; the server's thread sends the
message.

Note: A push is not reliable. It is lost, and counted, if its peer has ended or does not read. A
client that depends on the information must be able to ask for it.

With a local master all tasks run on this machine, so the driver listens on loopback only, unless
`spark.driver.bindAddress` is set. On a cluster it listens where Spark's own driver does: at
`spark.driver.bindAddress`, which is `spark.driver.host` by default. That setting does not
show whether tasks are remote: Spark sets it to a name of this machine with a local master too.
"""

from __future__ import annotations

import logging
import re
import socket as sockets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq

from epochal.errors import EpochalError, OptionError, RpcError, RpcFrameError, StaleAttemptError
from epochal.rpc.curve import CurveKeys, Gatekeeper, protect
from epochal.rpc.envelope import (
    MAX_FRAME_BYTES,
    ONE_WAY,
    EndpointType,
    PeerId,
    Request,
    RpcAddress,
    decode_body,
    decode_request,
    encode_failure,
    encode_push,
    encode_reply,
)

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_LOCAL = re.compile(r"local(?:\[.*\])?")

QUEUED_FRAMES = 10_000
"""Frames that may wait per peer and direction. Above this number the sender waits."""

MAX_PUSHES = 10_000
"""Pushes that may wait for the server's thread. Above this number they are lost."""

_NOBLOCK, _MORE_FOLLOWS = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain numbers: combining ZeroMQ's own constants takes longer than sending."""

Handler = Callable[[Any, PeerId], Any]
"""Takes a message and its sender; returns the reply, which is ignored for one-way messages."""


@dataclass(slots=True)
class RpcCounters:
    """Counts of a server's messages and errors. Written by its thread, read by any."""

    received: int = 0
    failed: int = 0
    malformed: int = 0
    oversized: int = 0
    unknown_version: int = 0
    unknown_endpoint: int = 0
    stale: int = 0
    """Messages of attempts that have ended."""
    refused_peers: int = 0
    pushed: int = 0
    undelivered: int = 0
    """Frames for peers that had ended, or did not read."""

    def count(self, fault: str) -> None:
        """Count one frame with this fault."""
        setattr(self, fault, getattr(self, fault) + 1)


class RpcServer:
    """Serves the endpoints of one driver; `address` has all that its clients need to connect."""

    def __init__(self, *, advertised_host: str, bind_host: str = "0.0.0.0", port: int = 0) -> None:
        self.counters = RpcCounters()
        self._endpoints: dict[str, tuple[EndpointType, Handler]] = {}
        """Changed by any thread and read by the server's: single operations, so without a lock."""
        server, client = CurveKeys.new(), CurveKeys.new()
        self._context = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, client.public)
        self._router = self._context.socket(zmq.ROUTER)
        protect(self._router, server)
        # ZeroMQ closes the connection of a peer that sends a longer frame. The limit is above
        # MAX_FRAME_BYTES so that frames that are slightly too long arrive and are counted.
        self._router.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_FRAME_BYTES)
        # HANDOVER lets a client that reconnects keep its identity. MANDATORY makes `send` fail
        # for an unknown peer instead of dropping the frame silently.
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.RCVHWM, QUEUED_FRAMES)
        self._router.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
        self._router.setsockopt(zmq.LINGER, 0)
        self._gatekeeper.watch(self._router)
        self._pushes: deque[tuple[tuple[PeerId, ...], bytes]] = deque()
        self._waker, self._woken = sockets.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        try:
            address = listening_address(bind_host)
            self._router.setsockopt(zmq.IPV6, int(":" in address))
            self._router.bind(f"tcp://{f'[{address}]' if ':' in address else address}:{port}")
        except (zmq.ZMQError, OSError) as error:
            self._release()
            raise RpcError(
                f"Cannot listen at {bind_host}:{port}: {error}. Check spark.driver.bindAddress "
                f"(by default spark.driver.host), and that the port is free."
            ) from None
        bound = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = RpcAddress(
            advertised_host,
            int(bound.rpartition(":")[2]),
            server.public,
            client.public,
            client.secret,
        )
        self._thread = threading.Thread(target=self._run, name="epochal-rpc-server", daemon=True)
        self._stopped = False

    def register(self, endpoint: EndpointType, handle: Handler) -> None:
        """Let `handle` process the endpoint's requests; its result is the reply to an ask."""
        if endpoint.name in self._endpoints:
            raise OptionError(f"An endpoint named {endpoint.name} is already registered.")
        self._endpoints[endpoint.name] = (endpoint, handle)

    def unregister(self, name: str) -> None:
        """Remove an endpoint; requests to it fail from now on. One may be under way still."""
        self._endpoints.pop(name, None)

    def start(self) -> RpcServer:
        self._thread.start()
        logger.info("listening at %s", self.address.url)
        return self

    def stop(self) -> None:
        """Stop serving and release the port, thread and sockets. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join()
        self._release()

    def push(self, endpoint: EndpointType, peers: Iterable[PeerId], message: object) -> None:
        """Queue `message` for these peers, as a push of `endpoint`; the server's thread sends it.

        The message is encoded once for all peers. After `stop` nothing is sent.
        """
        targets = tuple(peers)
        if len(self._pushes) >= MAX_PUSHES:
            self.counters.undelivered += len(targets)
            return
        # First the push, then the byte; the thread takes the byte first and then the pushes. So
        # whatever it misses in this round has a byte that ends the next poll at once. A ZeroMQ
        # socket belongs to one thread, so the others only append to a deque, which needs no lock.
        self._pushes.append((targets, encode_push(endpoint.name, message)))
        self._wake()

    def __enter__(self) -> RpcServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wake(self) -> None:
        with suppress(OSError):  # full: the thread wakes anyway; closed: it has ended
            self._waker.send(b"\0")

    def _release(self) -> None:
        self._gatekeeper.close()
        self._router.close(linger=0)
        self._context.term()
        self._waker.close()
        self._woken.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in self._gatekeeper.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        while not self._stopped:
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if any(socket in ready for socket in self._gatekeeper.sockets):
                self._gatekeeper.answer()
                self.counters.refused_peers = self._gatekeeper.refused
            if self._router in ready:
                self._drain()
            self._send_pushes()

    def _send_pushes(self) -> None:
        while self._pushes:
            peers, frame = self._pushes.popleft()
            for peer in peers:
                self.counters.pushed += self._send(peer, frame)

    def _send(self, peer: PeerId, frame: bytes) -> bool:
        # Part by part: `send_multipart` costs twice as much. Only the first part can fail, because
        # ZeroMQ accepts a message as a whole.
        try:
            self._router.send(peer, _NOBLOCK | _MORE_FOLLOWS)
            self._router.send(frame, _NOBLOCK)
        except zmq.ZMQError:
            self.counters.undelivered += 1
            return False
        return True

    def _drain(self) -> None:
        receive, getsockopt = self._router.recv, self._router.getsockopt
        # The limit lets the loop send pushes and notice `stop` during a flood of messages.
        for _ in range(QUEUED_FRAMES):
            # Part by part: `recv_multipart` costs twice as much.
            try:
                peer = receive(_NOBLOCK)
            except zmq.Again:
                return
            frame = receive(_NOBLOCK)
            while getsockopt(zmq.RCVMORE):
                receive(_NOBLOCK)
                frame = b""  # a message has one frame; this one is invalid as a whole
            self.counters.received += 1
            # A reply is sent at once and may overtake a push that was queued before it.
            reply = self._answer(peer, frame)
            if reply is not None:
                self._send(peer, reply)

    def _answer(self, peer: PeerId, frame: bytes) -> bytes | None:
        try:
            request = decode_request(frame)
        except RpcFrameError as error:
            self.counters.count(error.fault)
            logger.warning("%s", error)
            return None
        try:
            result = self._handle(request, peer)
        except Exception as error:
            self.counters.count("stale" if isinstance(error, StaleAttemptError) else "failed")
            if not isinstance(error, EpochalError):
                # A bug in one endpoint must not stop the others.
                logger.exception("endpoint %s failed", request.endpoint)
            if request.call == ONE_WAY:
                return None
            return encode_failure(request.call, type(error).__name__, str(error))
        return None if request.call == ONE_WAY else encode_reply(request.call, result)

    def _handle(self, request: Request, peer: PeerId) -> Any:
        name = request.endpoint
        registered = self._endpoints.get(name)
        if registered is None:
            self.counters.unknown_endpoint += 1
            raise RpcFrameError(f"it is for endpoint {name!r}, which does not exist")
        endpoint, handle = registered
        try:
            message = decode_body(endpoint.requests, request.body)
        except RpcFrameError as error:
            self.counters.count(error.fault)
            raise
        if endpoint.one_way is not None:
            is_one_way = isinstance(message, endpoint.one_way)
            if is_one_way != (request.call == ONE_WAY):
                wanted = "is one-way: send it" if is_one_way else "is answered: ask it"
                wrong = RpcFrameError(f"{type(message).__name__} of endpoint {name} {wanted}")
                logger.warning("%s", wrong)
                raise wrong
        return handle(message, peer)


@dataclass(frozen=True, slots=True)
class DriverAddress:
    host: str
    """The host that tasks connect to."""
    bind: str
    """The name or address that the driver binds to."""


def driver_address(conf: Mapping[str, str]) -> DriverAddress:
    """Return loopback for a local master, else the addresses that Spark itself uses."""
    bind = conf.get("spark.driver.bindAddress")
    if not bind and _LOCAL.fullmatch(conf.get("spark.master", "")):
        return DriverAddress(LOOPBACK, LOOPBACK)
    host = conf.get("spark.driver.host")
    return DriverAddress(host or LOOPBACK, bind or host or LOOPBACK)


def local_host(peer: str) -> str:
    """The address of the local interface that routes to `peer`; `peer` can reach us there."""
    family = sockets.AF_INET6 if ":" in peer else sockets.AF_INET
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
        # Connecting a datagram socket only chooses a route. No packet leaves the machine, so any
        # port would do.
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def listening_address(host: str) -> str:
    """The numeric address of a host name, because ZeroMQ listens at numeric addresses only.

    IPv4 is preferred. OSError if the name is unknown.
    """
    bare = host.removeprefix("[").removesuffix("]")
    infos = sockets.getaddrinfo(bare, None, type=sockets.SOCK_STREAM)
    addresses = sorted(infos, key=lambda info: info[0] != sockets.AF_INET)
    return str(addresses[0][4][0])
