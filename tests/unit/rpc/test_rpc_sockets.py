"""Frames, valid and not, and server and clients over real sockets on loopback."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import zmq
from tests.waiting import eventually

from epochal.errors import RpcError, RpcFrameError, RpcRemoteError, RpcTimeoutError, StateError
from epochal.rpc.client import RpcClient
from epochal.rpc.curve import CurveKeys
from epochal.rpc.envelope import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    EndpointType,
    PeerId,
    RpcAddress,
    decode_body,
    decode_request,
    encode_request,
)
from epochal.rpc.server import RpcServer


class Add(msgspec.Struct, frozen=True, tag=True):
    left: int
    right: int


class Note(msgspec.Struct, frozen=True, tag=True):
    text: str


class Fail(msgspec.Struct, frozen=True, tag=True):
    pass


class Wait(msgspec.Struct, frozen=True, tag=True):
    pass


class Sum(msgspec.Struct, frozen=True, tag=True):
    value: int


SUMS = EndpointType("Sums", Add | Note | Fail | Wait, Sum | None)


class Sums:
    """Adds numbers, and keeps the messages it received."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.gate = threading.Event()

    def handle(self, message: Add | Note | Fail | Wait, peer: PeerId) -> Sum | None:
        match message:
            case Add(left, right):
                return Sum(left + right)
            case Note(text):
                self.notes.append(text)
            case Fail():
                raise StateError("it broke")
            case Wait():
                self.gate.wait(30)
        return None


@pytest.fixture
def sums() -> Sums:
    return Sums()


@pytest.fixture
def server(sums: Sums) -> Iterator[RpcServer]:
    with RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1") as server:
        server.register(SUMS, sums.handle)
        yield server
        sums.gate.set()


def raw_socket(address: RpcAddress, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = address.server_public_key
    socket.curve_publickey = address.client_public_key
    socket.curve_secretkey = address.client_secret_key
    socket.linger = 0
    socket.connect(address.url)
    return socket


def test_one_way_messages_arrive_in_order_and_before_a_later_ask(
    client: RpcClient, sums: Sums
) -> None:
    for n in range(100):
        client.send(SUMS, Note(str(n)))
    client.ask(SUMS, Add(0, 0))
    assert sums.notes == [str(n) for n in range(100)]


STRICT = EndpointType("Strict", SUMS.requests, SUMS.replies, one_way=Note | Fail)


def test_a_message_in_the_wrong_mode_is_refused_and_not_handled(
    server: RpcServer, client: RpcClient, sums: Sums, caplog: pytest.LogCaptureFixture
) -> None:
    server.register(STRICT, sums.handle)
    client.send(STRICT, Note("sent"))
    assert client.ask(STRICT, Add(2, 3)) == Sum(5)
    with pytest.raises(RpcRemoteError, match="Note of endpoint Strict is one-way: send it"):
        client.ask(STRICT, Note("asked"))
    client.send(STRICT, Wait())  # would block the server if it were handled
    assert client.ask(STRICT, Add(1, 1)) == Sum(2)
    assert sums.notes == ["sent"]
    assert server.counters.failed == 2
    assert "Wait of endpoint Strict is answered: ask it" in caplog.text


def test_threads_share_a_client_without_mixing_up_answers(client: RpcClient) -> None:
    wrong: list[int] = []

    def ask_many(first: int) -> None:
        wrong.extend(
            n for n in range(first, first + 200) if client.ask(SUMS, Add(n, 1)) != Sum(n + 1)
        )

    threads = [threading.Thread(target=ask_many, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_failing_handler_fails_the_ask_and_nothing_else(
    client: RpcClient, server: RpcServer
) -> None:
    with pytest.raises(RpcRemoteError) as failed:
        client.ask(SUMS, Fail())
    assert (failed.value.kind, failed.value.reason) == ("StateError", "it broke")
    assert client.ask(SUMS, Add(1, 1)) == Sum(2)
    assert server.counters.failed == 1


def test_an_ask_gives_up_after_its_time_and_its_late_answer_is_not_mistaken(
    client: RpcClient, sums: Sums
) -> None:
    with pytest.raises(RpcTimeoutError):
        client.ask(SUMS, Wait(), timeout_seconds=0.2)
    sums.gate.set()
    assert client.ask(SUMS, Add(2, 2)) == Sum(4)


def test_an_ask_to_nobody_times_out() -> None:
    server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
    server.stop()
    client = RpcClient(server.address)
    with pytest.raises(RpcTimeoutError):
        client.ask(SUMS, Add(1, 1), timeout_seconds=0.2)
    client.close()


def test_an_unknown_endpoint_is_refused_and_counted(client: RpcClient, server: RpcServer) -> None:
    with pytest.raises(RpcRemoteError):
        client.ask(replace(SUMS, name="Nobody"), Add(1, 1))
    assert server.counters.unknown_endpoint == 1


PUBLIC, SECRET = zmq.curve_keypair()


@pytest.mark.parametrize(
    "keys",
    [{"server_public_key": PUBLIC}, {"client_public_key": PUBLIC, "client_secret_key": SECRET}],
    ids=["of another server", "of its own"],
)
def test_a_peer_with_other_keys_is_refused_and_counted(
    server: RpcServer, keys: dict[str, bytes]
) -> None:
    stranger = RpcClient(replace(server.address, **keys))  # type: ignore[arg-type]
    with pytest.raises(RpcTimeoutError):
        stranger.ask(SUMS, Add(1, 1), timeout_seconds=0.3)
    eventually(lambda: server.counters.refused_peers > 0)
    assert server.counters.received == 0
    stranger.close()


def test_a_peer_without_any_key_is_refused(server: RpcServer) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(server.address.url)
        socket.send(encode_request("Sums", 1, Add(1, 1)))
        assert socket.poll(300) == 0
    assert server.counters.received == 0


def test_frames_that_break_the_protocol_are_counted_and_survived(
    server: RpcServer, client: RpcClient
) -> None:
    good = encode_request("Sums", 1, Add(1, 1))
    with zmq.Context() as context, raw_socket(server.address, context) as socket:
        socket.send(b"nonsense")
        socket.send_multipart([good, good])
        socket.send(good[:1] + b"\x09" + good[2:])
        socket.send(encode_request("Sums", 1, Sum(3)))
        socket.send(b"\xe9\x01" + bytes(9 << 20))
        eventually(lambda: server.counters.received == 5)
    assert server.counters.malformed == 3
    assert server.counters.unknown_version == 1
    assert server.counters.oversized == 1
    assert client.ask(SUMS, Add(1, 1)) == Sum(2)


def test_a_frame_beyond_all_limits_ends_the_connection_not_the_server(
    server: RpcServer, client: RpcClient
) -> None:
    with zmq.Context() as context, raw_socket(server.address, context) as socket:
        socket.send(bytes(40 << 20))
        assert client.ask(SUMS, Add(1, 1)) == Sum(2)
    assert server.counters.malformed == 0


def test_stopping_leaves_no_thread_and_frees_the_port() -> None:
    before = threading.active_count()
    server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1").start()
    client = RpcClient(server.address)
    server.register(SUMS, Sums().handle)
    client.ask(SUMS, Add(1, 1))
    client.close()
    server.stop()
    server.stop()
    assert threading.active_count() == before
    again = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1", port=server.address.port)
    again.stop()


def test_a_port_that_is_taken_is_refused_without_leaking(server: RpcServer) -> None:
    with pytest.raises(RpcError, match=str(server.address.port)):
        RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1", port=server.address.port)


def test_a_closed_client_opens_again_when_it_is_used(client: RpcClient) -> None:
    client.ask(SUMS, Add(1, 1))
    client.close()
    assert client.ask(SUMS, Add(1, 2)) == Sum(3)


def test_a_client_travels_by_pickle_as_its_address(client: RpcClient) -> None:
    client.ask(SUMS, Add(1, 1))
    copy: RpcClient = pickle.loads(pickle.dumps(client))
    assert copy.address == client.address
    assert copy.ask(SUMS, Add(3, 4)) == Sum(7)
    copy.close()


def test_a_client_used_before_a_fork_works_on_both_sides(client: RpcClient) -> None:
    client.ask(SUMS, Add(1, 1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = client.ask(SUMS, Add(40, 2))
            os.write(write, str(answer.value).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"42"
    os.waitpid(child, 0)
    assert client.ask(SUMS, Add(5, 5)) == Sum(10)


def test_keys_do_not_show_in_logs(server: RpcServer) -> None:
    assert "secret" not in repr(server.address)
    assert server.address.client_secret_key.decode() not in repr(server.address)
    keys = CurveKeys.new()
    assert keys.secret.decode() not in repr(keys)


def test_a_server_listens_at_the_host_it_was_given_and_nowhere_else() -> None:
    with RpcServer(advertised_host="localhost", bind_host="localhost") as server:
        sockets = [socket.socket(), socket.socket()]
        codes = [
            each.connect_ex((address, server.address.port))
            for each, address in zip(sockets, ("127.0.0.1", "127.0.0.2"), strict=True)
        ]
        for each in sockets:
            each.close()
    assert codes == [0, errno.ECONNREFUSED]


def test_a_host_that_is_unknown_is_refused_with_the_setting_to_check() -> None:
    with pytest.raises(RpcError, match=r"no\.such\.host\.invalid:0: .* spark\.driver\.bindAddress"):
        RpcServer(advertised_host="127.0.0.1", bind_host="no.such.host.invalid")


class Echo(msgspec.Struct, frozen=True, tag=True):
    text: str


class Other(msgspec.Struct, frozen=True, tag=True):
    text: str


def fault_of(frame: bytes) -> str:
    with pytest.raises(RpcFrameError) as refused:
        decode_request(frame)
    return refused.value.fault


def test_a_message_outside_the_union_is_refused() -> None:
    body = decode_request(encode_request("Sums", 1, Other("x"))).body
    with pytest.raises(RpcFrameError):
        decode_body(Add | Echo, body)


def test_a_field_of_another_type_is_refused() -> None:
    body = msgspec.Raw(msgspec.msgpack.encode({"type": "Add", "left": "one", "right": 2}))
    with pytest.raises(RpcFrameError):
        decode_body(Add | Echo, body)


def test_frames_that_are_not_ours_are_malformed() -> None:
    good = encode_request("Sums", 1, Add(1, 2))
    assert fault_of(b"") == "malformed"
    assert fault_of(b"\xe9") == "malformed"
    assert fault_of(b"GET / HTTP/1.1") == "malformed"
    assert fault_of(good[:-1]) == "malformed"
    assert fault_of(good + b"\x00") == "malformed"
    assert fault_of(good[:2] + b"\xff\xff\xff") == "malformed"


def test_a_frame_of_another_version_is_told_from_a_broken_one() -> None:
    good = encode_request("Sums", 1, Add(1, 2))
    assert fault_of(good[:1] + bytes([PROTOCOL_VERSION + 1]) + good[2:]) == "unknown_version"


def test_a_frame_above_the_limit_is_refused_before_it_is_decoded() -> None:
    assert fault_of(b"\xe9\x01" + bytes(MAX_FRAME_BYTES)) == "oversized"
    with pytest.raises(RpcFrameError) as refused:
        encode_request("Sums", 1, Echo("x" * MAX_FRAME_BYTES))
    assert refused.value.fault == "oversized"
