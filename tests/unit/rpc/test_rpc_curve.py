"""The gatekeeper on plain sockets, as the exchange between tasks uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from tests.waiting import eventually

from epochal.rpc.curve import CurveKeys, Gatekeeper, introduce, protect

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


class Listener:
    """A protected PULL socket and its gatekeeper."""

    def __init__(self, context: Context, admitted: bytes) -> None:
        self.keys = CurveKeys.new()
        self.gatekeeper = Gatekeeper(context, admitted)
        self.socket = context.socket(zmq.PULL)
        protect(self.socket, self.keys)
        self.gatekeeper.watch(self.socket)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"tcp://127.0.0.1:{port}"

    def receive(self) -> bytes | None:
        """What comes while the gatekeeper answers; None if a peer is refused."""
        poller = zmq.Poller()
        for socket in (*self.gatekeeper.sockets, self.socket):
            poller.register(socket, zmq.POLLIN)
        heard: list[bytes] = []

        def is_decided() -> bool:
            ready = dict(poller.poll(100))
            if self.socket in ready:
                heard.append(self.socket.recv())
            else:
                self.gatekeeper.answer()
            return bool(heard or self.gatekeeper.refused)

        eventually(is_decided, "a message or a refusal")
        return heard[0] if heard else None

    def close(self) -> None:
        self.gatekeeper.close()
        self.socket.close(linger=0)


def speak(context: Context, listener: Listener, keys: CurveKeys, trusted: bytes) -> bytes | None:
    with context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        introduce(socket, trusted, keys)
        socket.connect(listener.url)
        socket.send(b"rows")
        return listener.receive()


def test_whoever_holds_the_admitted_pair_is_heard(context: Context) -> None:
    ours = CurveKeys.new()
    listener = Listener(context, ours.public)
    assert speak(context, listener, ours, listener.keys.public) == b"rows"
    assert listener.gatekeeper.refused == 0
    listener.close()


def test_a_pair_of_somebody_else_is_refused_and_counted(context: Context) -> None:
    listener = Listener(context, CurveKeys.new().public)
    assert speak(context, listener, CurveKeys.new(), listener.keys.public) is None
    assert listener.gatekeeper.refused == 1
    listener.close()


def test_without_the_listeners_key_nobody_gets_as_far_as_the_gatekeeper(context: Context) -> None:
    ours = CurveKeys.new()
    listener = Listener(context, ours.public)
    assert speak(context, listener, ours, CurveKeys.new().public) is None
    assert listener.gatekeeper.refused > 0
    listener.close()


def test_the_secret_half_does_not_show_in_logs() -> None:
    keys = CurveKeys.new()
    assert keys.secret.decode() not in repr(keys)
