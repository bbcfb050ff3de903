"""What the embedded server refuses, with Google's status codes and messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from epochal.connectors.pubsub.pubsub_options import ROUTING_HEADER
from epochal.errors import PubSubRefusedError

_NAME = re.compile(
    r"projects/([^/]+)/(topics|subscriptions|snapshots)/([A-Za-z][A-Za-z0-9_.~+%-]{2,254})"
)
DELETED_TOPIC = "_deleted-topic_"
INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
UNORDERED_ACK_ID = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"


def check_name(name: str, kind: str) -> None:
    """Raise unless `name` is the full name of a `kind`: topics, subscriptions or snapshots."""
    match = _NAME.fullmatch(name)
    if match is None or match[2] != kind or match[3].lower().startswith("goog"):
        raise PubSubRefusedError(
            "INVALID_ARGUMENT",
            f"Invalid resource name given (name={name}). Refer to "
            f"https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more "
            f"information.",
        )


def short(name: str) -> str:
    return name.rpartition("/")[2]


def project_of(name: str) -> str:
    return name.split("/")[1]


def not_found(name: str) -> PubSubRefusedError:
    return PubSubRefusedError("NOT_FOUND", f"Resource not found (resource={short(name)}).")


def already_exists(name: str) -> PubSubRefusedError:
    text = f"Resource already exists in the project (resource={short(name)})."
    return PubSubRefusedError("ALREADY_EXISTS", text)


def invalid(text: str) -> PubSubRefusedError:
    return PubSubRefusedError("INVALID_ARGUMENT", text)


def precondition(text: str) -> PubSubRefusedError:
    return PubSubRefusedError("FAILED_PRECONDITION", text)


def unimplemented(what: str) -> PubSubRefusedError:
    text = (
        f"The embedded server does not support {what}. Use Google's service or its emulator for it."
    )
    return PubSubRefusedError("UNIMPLEMENTED", text)


def full(used: int, most: int) -> PubSubRefusedError:
    return PubSubRefusedError(
        "RESOURCE_EXHAUSTED",
        f"The embedded server holds {used} bytes of messages, but may hold {most}. Acknowledge "
        f"some messages, or start it with a larger --max-bytes.",
    )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise if a number is outside the range that Pub/Sub accepts."""
    if value < least:
        raise invalid(
            f"The value for {name} is too small. You passed {value} in the request, but the "
            f"minimum value is {least}."
        )
    if value > most:
        raise invalid(
            f"The value for {name} is too large. You passed {value} in the request, but the "
            f"maximum value is {most}."
        )


def bad_ack_ids(reasons: Mapping[str, str]) -> PubSubRefusedError:
    """The error of an exactly-once subscription, with the reason for each id."""
    text = (
        "Some acknowledgement ids in the request were invalid. This could be because the "
        "acknowledgement ids have expired or the acknowledgement ids were malformed."
    )
    return PubSubRefusedError("FAILED_PRECONDITION", text, dict(reasons))


def malformed_ack_id(ack_id: str) -> PubSubRefusedError:
    return invalid(f"You have passed an invalid ack ID to the service (ack_id={ack_id}).")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChecks:
    """What the server demands of every call, whatever its state: permissions, the routing header.

    Both are off by default. They let tests find out what a client needs: `deny` stands for an
    account that lacks a permission, and `require_routing` refuses calls that Google could only
    route by reading the request.
    """

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
                raise invalid(
                    f"{method} was sent with {ROUTING_HEADER} {sent}, which does not name the "
                    f"resource in the request."
                )


def names_the_resource(header: str, request: Any) -> bool:
    """Whether a header such as `subscription=projects/p/subscriptions/s` matches the request."""
    path, _, value = header.partition("=")
    part = request
    for name in path.split("."):
        part = getattr(part, name, None)
    return isinstance(part, str) and part != "" and unquote(value) == part
