"""Who may speak: CURVE keys on sockets, and the gatekeeper that lets only one of ours in.

A peer must prove twice that it is ours: it has the listener's public key, or the handshake fails,
and it holds the key pair that all of ours share, or ZeroMQ's authentication (ZAP) turns it away.

What a reader would get wrong: ZAP is answered at a fixed address of a context. There is one
gatekeeper per `zmq.Context`; it must exist before any socket of that context is bound with
`protect`, and it answers only while somebody polls it, or else every handshake hangs.
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
        """A pair nobody has seen yet."""
        return cls(*zmq.curve_keypair())


def protect(socket: zmq.Socket[bytes], keys: CurveKeys) -> None:
    """Make a socket that will be bound admit only whom the context's gatekeeper knows."""
    socket.curve_server = True
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret
    socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)


def introduce(socket: zmq.Socket[bytes], listener: bytes, keys: CurveKeys) -> None:
    """Make a socket that will be connected show `keys`, and trust only the key of `listener`."""
    socket.curve_serverkey = listener
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret


class Gatekeeper:
    """Answers for all protected sockets of a context. Used by the one thread that polls it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admitted: bytes) -> None:
        self.refused = 0
        """Handshakes that failed on watched sockets."""
        self._admitted = admitted
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP_URL)
        self._watched: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Count those that fail at this socket."""
        self._watched.append((socket, socket.get_monitor_socket(_HANDSHAKE_FAILURES)))

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input; `answer` when any of them has some."""
        return [self._zap, *(monitor for _, monitor in self._watched)]

    def answer(self) -> None:
        """Deal with all that has come in; never waits."""
        while self._zap.poll(0):
            self._admit()
        for _, monitor in self._watched:
            while monitor.poll(0):
                recv_monitor_message(monitor)
                self.refused += 1

    def close(self) -> None:
        """Let nobody in any more. Before the watched sockets are closed."""
        for socket, monitor in self._watched:
            socket.disable_monitor()
            monitor.close(linger=0)
        self._watched.clear()
        self._zap.close(linger=0)

    def _admit(self) -> None:
        parts = self._zap.recv_multipart()
        version, request_id = parts[0], parts[1]
        mechanism, credentials = parts[5], parts[6:]
        known = mechanism == b"CURVE" and z85.encode(credentials[0]) == self._admitted
        status = (b"200", b"OK") if known else (b"400", b"unknown key")
        self._zap.send_multipart([version, request_id, *status, b"", b""])
