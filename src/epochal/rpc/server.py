"""The driver's side: one thread, one socket, the endpoints registered on it.

Every handler runs on that one thread, so an endpoint needs no lock; a handler that blocks delays
all others. A peer must prove twice that it is ours: it has the server's public key, or the
handshake fails, and it holds the client key pair, or ZeroMQ's authentication (ZAP, answered in
the same loop) turns it away. Whatever is refused is counted and answered as little as possible.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from epochal.errors import EpochalError, OptionError, RpcError, RpcFrameError
from epochal.rpc.framing import (
    MAX_FRAME_BYTES,
    decode_body,
    decode_request,
    encode_failure,
    encode_reply,
)
from epochal.rpc.messages import ONE_WAY, EndpointType, RpcAddress

logger = logging.getLogger(__name__)

QUEUED_FRAMES = 10_000
"""Frames waiting per peer and direction; beyond it the sender waits."""

_ZAP_URL = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"epochal"
_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

Handler = Callable[[Any], Any]


@dataclass(slots=True)
class RpcCounters:
    """What a server has seen. Written by its thread, read by anyone."""

    received: int = 0
    failed: int = 0
    malformed: int = 0
    oversized: int = 0
    unknown_version: int = 0
    unknown_endpoint: int = 0
    refused_peers: int = 0

    def count(self, fault: str) -> None:
        """Add one frame that broke the protocol in this way."""
        setattr(self, fault, getattr(self, fault) + 1)


class RpcServer:
    """Listens for one query or driver; `address` is what its clients need to speak to it."""

    def __init__(
        self,
        *,
        advertised_host: str,
        bind_host: str = "0.0.0.0",
        port: int = 0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.counters = RpcCounters()
        self._endpoints: dict[str, tuple[EndpointType, Handler]] = {}
        self._max_frame_bytes = max_frame_bytes
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        self._client_key = client_public
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP_URL)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.curve_publickey = server_public
        self._router.curve_secretkey = server_secret
        self._router.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        # Longer ones never reach us: ZeroMQ drops the connection. Those just above what an
        # endpoint accepts do, so that they can be counted.
        self._router.setsockopt(zmq.MAXMSGSIZE, 2 * max_frame_bytes)
        self._router.setsockopt(zmq.RCVHWM, QUEUED_FRAMES)
        self._router.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
        self._router.setsockopt(zmq.LINGER, 0)
        self._monitor = self._router.get_monitor_socket(_HANDSHAKE_FAILURES)
        self._wake_url = f"inproc://wake-{id(self)}"
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind(self._wake_url)
        try:
            self._router.bind(f"tcp://{bind_host}:{port}")
        except zmq.ZMQError as error:
            self._release()
            raise RpcError(f"Cannot listen at {bind_host}:{port}: {error}.") from None
        bound = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = RpcAddress(
            advertised_host,
            int(bound.rpartition(":")[2]),
            server_public,
            client_public,
            client_secret,
        )
        self._thread = threading.Thread(target=self._run, name="epochal-rpc-server", daemon=True)
        self._stopped = False

    def register(self, endpoint: EndpointType, handle: Handler) -> None:
        """Let `handle` answer the endpoint's requests; its result is the reply to an ask."""
        if endpoint.name in self._endpoints:
            raise OptionError(f"An endpoint named {endpoint.name} is already registered.")
        self._endpoints[endpoint.name] = (endpoint, handle)

    def unregister(self, name: str) -> None:
        """Forget an endpoint; asking it fails from now on."""
        self._endpoints.pop(name, None)

    def start(self) -> RpcServer:
        """Begin to listen."""
        self._thread.start()
        logger.info("listening at %s", self.address.url)
        return self

    def stop(self) -> None:
        """Stop listening and release the port, thread and sockets. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread.is_alive():
            waker = self._context.socket(zmq.PAIR)
            waker.connect(self._wake_url)
            waker.send(b"")
            self._thread.join()
            waker.close(linger=0)
        self._release()

    def __enter__(self) -> RpcServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _release(self) -> None:
        self._router.disable_monitor()
        for socket in (self._router, self._monitor, self._zap, self._wake):
            socket.close(linger=0)
        self._context.term()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._wake, self._zap, self._monitor, self._router):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake in ready:
                return
            if self._zap in ready:
                self._authenticate()
            if self._monitor in ready:
                recv_monitor_message(self._monitor)
                self.counters.refused_peers += 1
            if self._router in ready:
                self._drain()

    def _authenticate(self) -> None:
        parts = self._zap.recv_multipart()
        version, request_id = parts[0], parts[1]
        mechanism, credentials = parts[5], parts[6:]
        known = mechanism == b"CURVE" and z85.encode(credentials[0]) == self._client_key
        status = (b"200", b"OK") if known else (b"400", b"unknown key")
        self._zap.send_multipart([version, request_id, *status, b"", b""])

    def _drain(self) -> None:
        # At most one queue's length at a time, so that a flood cannot starve stop.
        for _ in range(QUEUED_FRAMES):
            try:
                peer, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.counters.received += 1
            reply = self._answer(b"" if len(frames) != 1 else frames[0])
            if reply is not None:
                self._router.send_multipart([peer, reply])

    def _answer(self, frame: bytes) -> bytes | None:
        try:
            if len(frame) > self._max_frame_bytes:
                raise RpcFrameError(f"{len(frame)} bytes are too many", "oversized")
            request = decode_request(frame)
        except RpcFrameError as error:
            self.counters.count(error.fault)
            logger.warning("%s", error)
            return None
        try:
            result = self._handle(request.endpoint, request.body)
        except EpochalError as error:
            self.counters.failed += 1
            kind, reason = type(error).__name__, str(error)
        except Exception as error:
            # An endpoint's bug is the endpoint's: the others go on.
            self.counters.failed += 1
            logger.exception("endpoint %s failed", request.endpoint)
            kind, reason = type(error).__name__, str(error)
        else:
            return None if request.call == ONE_WAY else encode_reply(request.call, result)
        return None if request.call == ONE_WAY else encode_failure(request.call, kind, reason)

    def _handle(self, name: str, body: Any) -> Any:
        found = self._endpoints.get(name)
        if found is None:
            self.counters.unknown_endpoint += 1
            raise RpcFrameError(f"no endpoint is named {name!r}")
        endpoint, handle = found
        try:
            message = decode_body(endpoint.requests, body)
        except RpcFrameError as error:
            self.counters.count(error.fault)
            raise
        return handle(message)
