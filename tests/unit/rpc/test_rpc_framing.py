"""Valid frames are read back; all others are rejected with a reason."""

from __future__ import annotations

import msgspec
import pytest

from epochal.errors import RpcFrameError
from epochal.rpc.envelope import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    decode_body,
    decode_request,
    encode_request,
)


class Add(msgspec.Struct, frozen=True, tag=True):
    left: int
    right: int


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
