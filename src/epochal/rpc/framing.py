"""Encodes envelopes as frames and decodes them. Pure.

A frame is a magic byte, a protocol version byte, and the envelope in MessagePack. The version is
checked before anything else is decoded, so that a peer of another release is recognized as such
and not reported as broken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from epochal.errors import RpcFrameError
from epochal.rpc.envelope import ONE_WAY, PROTOCOL_VERSION, Failure, Pushed, Reply, Request

MAGIC = 0xE9
MAX_FRAME_BYTES = 8 << 20
"""Far above the size of any RPC message. Rows are not sent over RPC."""

_HEADER = bytes((MAGIC, PROTOCOL_VERSION))
_EMPTY = msgspec.Raw(msgspec.msgpack.encode(None))
_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode_request(endpoint: str, call: int, message: object) -> bytes:
    """Frame one request."""
    body = msgspec.Raw(_encoder.encode(message))
    return _framed(_encoder.encode(Request(endpoint, call, body)))


def encode_reply(call: int, message: object) -> bytes:
    """Frame the answer to request number `call`."""
    return _framed(_encoder.encode(Reply(call, msgspec.Raw(_encoder.encode(message)))))


def encode_failure(call: int, kind: str, reason: str) -> bytes:
    """Frame the failure of request number `call`."""
    return _framed(_encoder.encode(Reply(call, _EMPTY, Failure(kind, reason))))


def encode_push(endpoint: str, message: object) -> bytes:
    """Frame a message that is not a reply to a request."""
    return encode_reply(ONE_WAY, Pushed(endpoint, msgspec.Raw(_encoder.encode(message))))


def decode_request(frame: bytes) -> Request:
    """Decode the envelope of a request; its body stays encoded."""
    try:
        return _request_decoder.decode(_envelope(frame))
    except (msgspec.DecodeError, ValueError) as error:
        raise RpcFrameError(f"it is not a request ({error})") from None


def decode_reply(frame: bytes) -> Reply:
    """Decode the envelope of a reply; its body stays encoded."""
    try:
        return _reply_decoder.decode(_envelope(frame))
    except (msgspec.DecodeError, ValueError) as error:
        raise RpcFrameError(f"it is not a reply ({error})") from None


def decode_push(reply: Reply) -> Pushed:
    """Decode the pushed message in a reply with call number `ONE_WAY`; its body stays encoded."""
    pushed: Pushed = decode_body(Pushed, reply.body)
    return pushed


def decode_body(union: Any, body: msgspec.Raw) -> Any:
    """Decode a body as one message of a closed union."""
    try:
        return _body_decoder(union).decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RpcFrameError(f"its body is not a known message ({error})") from None


@lru_cache(maxsize=64)
def _body_decoder(union: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(union)


def _framed(envelope: bytes) -> bytes:
    _check_size(len(envelope) + len(_HEADER))
    return _HEADER + envelope


def _envelope(frame: bytes) -> memoryview:
    _check_size(len(frame))
    if len(frame) < len(_HEADER) or frame[0] != MAGIC:
        raise RpcFrameError(f"it does not start with the byte {MAGIC:#x}")
    if frame[1] != PROTOCOL_VERSION:
        raise RpcFrameError(
            f"it has protocol version {frame[1]}, this process has version {PROTOCOL_VERSION}",
            "unknown_version",
        )
    return memoryview(frame)[len(_HEADER) :]


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise RpcFrameError(f"it has {size} bytes, the limit is {MAX_FRAME_BYTES}", "oversized")
