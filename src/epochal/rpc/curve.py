"""Authentication: CURVE keys on sockets, and the gatekeeper that admits only peers of this query.

A peer must hold two secrets. Without the listener's public key the handshake fails. Without the key
pair that all clients share, the gatekeeper rejects the peer through ZeroMQ's authentication
protocol (ZAP).

Note: ZeroMQ sends ZAP requests to a fixed address within a context, so there is one gatekeeper per
`zmq.Context`. Create it before binding any socket that was passed to `protect`, and keep polling
it: handshakes hang while it is not polled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

_ZAP_URL = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"epochal"
_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A key pair, in ZeroMQ's printable form."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> CurveKeys:
        return cls(*zmq.curve_keypair())


def protect(socket: zmq.Socket[bytes], keys: CurveKeys) -> None:
    """Make a socket accept only peers that the gatekeeper admits. Call it before `bind`."""
    socket.curve_server = True
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret
    socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)


def introduce(socket: zmq.Socket[bytes], listener: bytes, keys: CurveKeys) -> None:
    """Make a socket present `keys` and trust only the key `listener`. Call it before `connect`."""
    socket.curve_serverkey = listener
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret


class Gatekeeper:
    """Admits or rejects the peers of all protected sockets of a context. Not thread-safe."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admitted: bytes) -> None:
        self.refused = 0
        """Handshakes that failed on watched sockets."""
        self._admitted = admitted
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP_URL)
        self._watched: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Count failed handshakes at this socket."""
        self._watched.append((socket, socket.get_monitor_socket(_HANDSHAKE_FAILURES)))

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets to poll; call `answer` when one of them is readable."""
        return [self._zap, *(monitor for _, monitor in self._watched)]

    def answer(self) -> None:
        """Process everything that has arrived; never waits."""
        while self._zap.poll(0):
            self._admit()
        for _, monitor in self._watched:
            while monitor.poll(0):
                recv_monitor_message(monitor)
                self.refused += 1

    def close(self) -> None:
        """Stop admitting peers. Call it before the watched sockets are closed."""
        for socket, monitor in self._watched:
            socket.disable_monitor()
            monitor.close(linger=0)
        self._watched.clear()
        self._zap.close(linger=0)

    def _admit(self) -> None:
        parts = self._zap.recv_multipart()
        version, request_id = parts[0], parts[1]
        mechanism, credentials = parts[5], parts[6:]
        admitted = mechanism == b"CURVE" and z85.encode(credentials[0]) == self._admitted
        status = (b"200", b"OK") if admitted else (b"400", b"unknown key")
        self._zap.send_multipart([version, request_id, *status, b"", b""])
