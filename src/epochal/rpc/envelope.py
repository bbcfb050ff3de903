"""The types of RPC: message envelopes, endpoint types and server addresses.

An endpoint accepts a closed union of requests and sends a closed union of replies; anything else
is rejected. The keys in an `RpcAddress` authorize a client: any process that has them is admitted.
They reach executors inside Spark's task closures, so they are as secret as the job itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

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
