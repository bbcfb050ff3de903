"""What travels between driver and tasks: the envelope, addresses, and what an endpoint speaks.

An endpoint speaks a closed union of requests and a closed union of replies; anything else is
refused. The keys in an `RpcAddress` are the right to speak: whoever has them is one of ours. They
reach executors inside Spark's task closures, so they are as secret as the job itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
ONE_WAY = 0
"""The call number of a request that expects no reply, and of a reply that nobody asked for."""

PeerId: TypeAlias = bytes
"""Who sent a message, as the server names it: a client's own for as long as it is open."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One message to an endpoint; `body` is one of the endpoint's requests."""

    endpoint: str
    call: int
    body: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why an endpoint could not do what was asked."""

    kind: str
    reason: str


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to request number `call`: one of the endpoint's replies, or a failure."""

    call: int
    body: msgspec.Raw
    failure: Failure | None = None


class Pushed(msgspec.Struct, frozen=True, array_like=True):
    """A message that an endpoint sends by itself: the body of a reply to call number `ONE_WAY`."""

    endpoint: str
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class EndpointType:
    """The language of an endpoint: its name, and the unions of tagged structs it speaks."""

    name: str
    requests: Any
    replies: Any


@dataclass(frozen=True, slots=True)
class RpcAddress:
    """Where a driver listens, and the keys that it lets in."""

    host: str
    port: int
    server_public_key: bytes = field(repr=False)
    client_public_key: bytes = field(repr=False)
    client_secret_key: bytes = field(repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"
