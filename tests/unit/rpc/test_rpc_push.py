"""Pushes: which peers get them, how a client waits for them, and when they are lost."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from tests.waiting import SECONDS, eventually

from epochal.errors import RpcFrameError, RpcRemoteError, StaleAttemptError
from epochal.rpc import server as server_module
from epochal.rpc.client import RpcClient
from epochal.rpc.curve import CurveKeys, introduce
from epochal.rpc.envelope import (
    ONE_WAY,
    EndpointType,
    PeerId,
    decode_push,
    decode_reply,
    encode_push,
    encode_reply,
)
from epochal.rpc.server import RpcServer


class Hello(msgspec.Struct, frozen=True, tag=True):
    name: str


class Shout(msgspec.Struct, frozen=True, tag=True):
    count: int


class Old(msgspec.Struct, frozen=True, tag=True):
    pass


class News(msgspec.Struct, frozen=True, tag=True):
    number: int


ROOM = EndpointType("Room", Hello | Shout | Old, News | None)
CELLAR = EndpointType("Cellar", Hello, News | None)


class Room:
    """Remembers its peers, and pushes to them on request."""

    def __init__(self, server: RpcServer) -> None:
        self.server = server
        self.guests: dict[str, PeerId] = {}

    def handle(self, message: Hello | Shout | Old, peer: PeerId) -> News | None:
        match message:
            case Hello(name):
                self.guests[name] = peer
            case Shout(count):
                for number in range(count):
                    self.server.push(ROOM, self.guests.values(), News(number))
            case Old():
                raise StaleAttemptError(1, 2)
        return None


@pytest.fixture
def server() -> Iterator[RpcServer]:
    with RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1") as server:
        yield server


@pytest.fixture
def room(server: RpcServer) -> Room:
    room = Room(server)
    server.register(ROOM, room.handle)
    return room


def await_push(client: RpcClient) -> object:
    """As a task waits: poll until there is nothing, then sleep on the descriptor."""
    while (message := client.poll_push(ROOM)) is None:
        assert select.select([client.fd], [], [], SECONDS)[0]
    return message


def test_a_push_is_framed_with_its_endpoint_and_is_no_answer() -> None:
    reply = decode_reply(encode_push("Room", News(3)))
    pushed = decode_push(reply)
    assert (reply.call, pushed.endpoint) == (ONE_WAY, "Room")
    with pytest.raises(RpcFrameError):
        decode_push(decode_reply(encode_reply(ONE_WAY, News(3))))


def test_a_push_reaches_whom_it_is_meant_for_and_nobody_else(room: Room, client: RpcClient) -> None:
    other = RpcClient(room.server.address)
    client.ask(ROOM, Hello("ann"))
    other.ask(ROOM, Hello("bob"))
    room.server.push(ROOM, [room.guests["bob"]], News(1))
    room.server.push(ROOM, room.guests.values(), News(2))
    assert await_push(client) == News(2)
    assert [await_push(other), await_push(other)] == [News(1), News(2)]
    other.close()


def test_pushes_that_come_during_an_ask_are_kept_for_later_in_order(
    room: Room, client: RpcClient
) -> None:
    client.ask(ROOM, Hello("ann"))
    client.ask(ROOM, Shout(3))
    eventually(lambda: room.server.counters.pushed == 3)
    client.ask(ROOM, Hello("ann"))
    assert [await_push(client) for _ in range(3)] == [News(0), News(1), News(2)]


def test_a_push_of_another_endpoint_is_passed_over(room: Room, client: RpcClient) -> None:
    client.ask(ROOM, Hello("ann"))
    room.server.push(CELLAR, room.guests.values(), News(1))
    room.server.push(ROOM, room.guests.values(), News(2))
    assert await_push(client) == News(2)


def test_threads_push_at_once_and_nothing_is_lost(room: Room, client: RpcClient) -> None:
    client.ask(ROOM, Hello("ann"))
    peers = [room.guests["ann"]]

    def push_many(first: int) -> None:
        for number in range(first, first + 100):
            room.server.push(ROOM, peers, News(number))

    threads = [threading.Thread(target=push_many, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    got = [await_push(client) for _ in range(400)]
    for thread in threads:
        thread.join()
    numbers = [news.number for news in got if isinstance(news, News)]
    assert sorted(numbers) == [1000 * n + m for n in range(4) for m in range(100)]
    assert [n for n in numbers if n < 1000] == list(range(100))
    assert room.server.counters.pushed == 400


def test_a_push_to_a_peer_that_has_gone_is_counted_and_harms_nobody(
    room: Room, client: RpcClient
) -> None:
    gone = RpcClient(room.server.address)
    gone.ask(ROOM, Hello("gone"))
    gone.close()
    client.ask(ROOM, Hello("ann"))

    def pushed_in_vain() -> bool:
        room.server.push(ROOM, [room.guests["gone"]], News(1))
        return room.server.counters.undelivered > 0

    eventually(pushed_in_vain)
    room.server.push(ROOM, [room.guests["ann"]], News(2))
    assert await_push(client) == News(2)


def test_pushes_beyond_the_limit_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_PUSHES", 2)
    server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
    for number in range(5):
        server.push(ROOM, [b"a", b"b"], News(number))
    assert server.counters.undelivered == 6
    server.stop()


def test_a_client_that_reconnects_is_still_the_same_peer(room: Room) -> None:
    """A raw client, which can reconnect under the same identity."""
    address = room.server.address
    keys = CurveKeys(address.client_public_key, address.client_secret_key)

    def connect(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        introduce(socket, address.server_public_key, keys)
        socket.setsockopt(zmq.IDENTITY, b"same")
        socket.linger = 0
        socket.connect(address.url)
        return socket

    def arrives(socket: zmq.Socket[bytes]) -> bool:
        room.server.push(ROOM, [b"same"], News(9))
        return bool(socket.poll(20))

    with zmq.Context() as context, connect(context) as first:
        eventually(lambda: arrives(first))
        second = connect(context)  # only now, so that it is the second for the server too
        eventually(lambda: arrives(second))
        assert decode_push(decode_reply(second.recv())).endpoint == "Room"
        second.close()


def test_a_forked_client_gets_no_pushes_of_its_parent(room: Room, client: RpcClient) -> None:
    client.ask(ROOM, Hello("parent"))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.ask(ROOM, Hello("child"))
            os.write(write, str(await_push(client)).encode())
        finally:
            os._exit(0)
    os.close(write)
    eventually(lambda: "child" in room.guests)
    assert room.guests["child"] != room.guests["parent"]
    room.server.push(ROOM, [room.guests["parent"]], News(1))
    room.server.push(ROOM, [room.guests["child"]], News(2))
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"News(number=2)"
    os.waitpid(child, 0)
    assert await_push(client) == News(1)


def test_messages_of_attempts_that_are_over_are_refused_and_counted(
    room: Room, client: RpcClient
) -> None:
    client.send(ROOM, Old())
    with pytest.raises(RpcRemoteError) as refused:
        client.ask(ROOM, Old())
    assert refused.value.kind == "StaleAttemptError"
    counters = room.server.counters
    assert (counters.stale, counters.failed, counters.malformed) == (2, 0, 0)
