"""Checks of a call that do not depend on the server's state: permissions and the routing header.

Both are off by default. They let tests find out what a client needs: `deny` stands for an account
that lacks a permission, and `require_routing` refuses calls that Google could only route by reading
the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from epochal.connectors.pubsub.pubsub_access import ROUTING_HEADER
from epochal.connectors.pubsub.server import refusals
from epochal.errors import PubSubRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChecks:
    """What the server demands of every call."""

    deny: frozenset[str] = frozenset()
    """The names of methods that are refused with PERMISSION_DENIED."""
    require_routing: bool = False

    def check(self, method: str, request: Any, metadata: Iterable[tuple[str, Any]]) -> None:
        """Raise PubSubRefusedError if a call must be refused. `request` is a protobuf object."""
        if method in self.deny:
            raise PubSubRefusedError(
                "PERMISSION_DENIED", "User not authorized to perform this action."
            )
        if self.require_routing:
            sent = [str(value) for key, value in metadata if key == ROUTING_HEADER]
            if len(sent) != 1 or not names_the_resource(sent[0], request):
                raise refusals.invalid(
                    f"{method} was sent with {ROUTING_HEADER} {sent}, which does not name the "
                    f"resource in the request."
                )


def names_the_resource(header: str, request: Any) -> bool:
    """Whether a header such as `subscription=projects/p/subscriptions/s` matches the request."""
    path, _, value = header.partition("=")
    found = request
    for name in path.split("."):
        found = getattr(found, name, None)
    return isinstance(found, str) and found != "" and unquote(value) == found
