"""The types of RPC: message envelopes and their frames, endpoint types, server addresses. Pure.

An endpoint accepts a closed union of requests and sends a closed union of replies; anything else
is rejected. The keys in an `RpcAddress` authorize a client: any process that has them is admitted.
They reach executors inside Spark's task closures, so they are as secret as the job itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from epochal.errors import RpcFrameError

PROTOCOL_VERSION = 2
"""Raised when messages change: driver and tasks of different releases refuse each other."""
ONE_WAY = 0
"""The call number of a request without a reply, and of a push, which has no request."""

PeerId: TypeAlias = bytes
"""The server's id for the sender of a message; a client keeps it for as long as it is open."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One message to an endpoint; `body` is one of the endpoint's requests."""

    endpoint: str
    call: int
    body: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why an endpoint could not handle a request."""

    kind: str
    reason: str


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to request number `call`: one of the endpoint's replies, or a failure."""

    call: int
    body: msgspec.Raw
    failure: Failure | None = None


class Pushed(msgspec.Struct, frozen=True, array_like=True):
    """A message that an endpoint sends without a request: the body of reply `ONE_WAY`."""

    endpoint: str
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class EndpointType:
    """The name of an endpoint, and the unions of tagged structs that it accepts and sends."""

    name: str
    requests: Any
    replies: Any
    one_way: Any = None
    """The union of those requests that are never answered. The server refuses such a request if the
    sender waits for a reply, and any other if it does not. None accepts both."""


@dataclass(frozen=True, slots=True)
class RpcAddress:
    """Where a driver listens, and the keys that it admits."""

    host: str
    port: int
    server_public_key: bytes = field(repr=False)
    client_public_key: bytes = field(repr=False)
    client_secret_key: bytes = field(repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


MAGIC = 0xE9
MAX_FRAME_BYTES = 8 << 20
"""Far above the size of any RPC message. Rows are not sent over RPC."""

# A frame is this header and the envelope in MessagePack. The version is checked before anything
# else is decoded, so that a peer of another release is recognized and not reported as broken.
_HEADER = bytes((MAGIC, PROTOCOL_VERSION))
_EMPTY = msgspec.Raw(msgspec.msgpack.encode(None))
_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode_request(endpoint: str, call: int, message: object) -> bytes:
    body = msgspec.Raw(_encoder.encode(message))
    return _frame(_encoder.encode(Request(endpoint, call, body)))


def encode_reply(call: int, message: object) -> bytes:
    return _frame(_encoder.encode(Reply(call, msgspec.Raw(_encoder.encode(message)))))


def encode_failure(call: int, kind: str, reason: str) -> bytes:
    return _frame(_encoder.encode(Reply(call, _EMPTY, Failure(kind, reason))))


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


def _frame(envelope: bytes) -> bytes:
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
