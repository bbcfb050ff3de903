"""What the embedded server refuses, with Google's status codes and messages.

Topics and subscriptions that clients describe are checked and completed with defaults. An update
copies the fields of its mask into the old description; the result is then checked like a new one.

Note: a field that the server does not support is an error. It is never silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.pubsub_v1.types import pubsub

from epochal.connectors.pubsub.pubsub_options import ROUTING_HEADER
from epochal.connectors.pubsub.server.filters import Predicate, parse_filter
from epochal.connectors.pubsub.server.parts import SECOND_US, Settings
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
        raise invalid(
            f"Invalid resource name given (name={name}). Refer to "
            f"https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more "
            f"information."
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
    if not least <= value <= most:
        size, limit = ("small", "minimum") if value < least else ("large", "maximum")
        raise invalid(
            f"The value for {name} is too {size}. You passed {value} in the request, but the "
            f"{limit} value is {least if value < least else most}."
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


TopicPb: Any = pubsub.Topic.pb()
SubscriptionPb: Any = pubsub.Subscription.pb()
SnapshotPb: Any = pubsub.Snapshot.pb()

DAY = 86_400
UNSUPPORTED_IN_TOPICS = ("schema_settings", "ingestion_data_source_settings", "message_transforms")
UNSUPPORTED = ("bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms")
MUTABLE_IN_TOPICS = {"labels", "message_retention_duration", "message_storage_policy", "tags"}
MUTABLE = {
    *("ack_deadline_seconds", "dead_letter_policy", "enable_exactly_once_delivery"),
    *("expiration_policy", "labels", "message_retention_duration", "push_config"),
    *("retain_acked_messages", "retry_policy", "tags"),
}


def check_topic(topic: Any) -> int:
    """Check and complete a topic; return how long it retains messages, in microseconds."""
    check_name(topic.name, "topics")
    _refuse_fields(topic, UNSUPPORTED_IN_TOPICS)
    topic.state = pubsub.Topic.State.ACTIVE
    if not topic.HasField("message_retention_duration"):
        return 0
    seconds = topic.message_retention_duration.seconds
    check_range("message_retention_duration", seconds, 600, 31 * DAY)
    return int(seconds) * SECOND_US


def check_subscription(subscription: Any) -> tuple[Settings, Predicate | None]:
    """Check and complete a subscription; return its settings and its filter."""
    check_name(subscription.name, "subscriptions")
    _refuse_fields(subscription, UNSUPPORTED)
    if subscription.push_config.push_endpoint:
        raise unimplemented("push delivery")
    subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or 10
    check_range("ack_deadline_seconds", subscription.ack_deadline_seconds, 10, 600)
    if not subscription.HasField("message_retention_duration"):
        subscription.message_retention_duration.FromSeconds(7 * DAY)
    retention = subscription.message_retention_duration.seconds
    check_range("message_retention_duration", retention, 600, 31 * DAY)
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.FromSeconds(31 * DAY)
    subscription.state = pubsub.Subscription.State.ACTIVE
    dead_letter_topic, attempts = _dead_letters(subscription)
    settings = Settings(
        ack_deadline_us=subscription.ack_deadline_seconds * SECOND_US,
        ordered=subscription.enable_message_ordering,
        exactly_once=subscription.enable_exactly_once_delivery,
        retain_acked=subscription.retain_acked_messages,
        retention_us=retention * SECOND_US,
        backoff_us=_backoff(subscription),
        dead_letter_topic=dead_letter_topic,
        max_attempts=attempts,
    )
    return settings, parse_filter(subscription.filter)


def merge_description(old: Any, new: Any, mask: Any, mutable: set[str]) -> Any:
    """Return the old description with the fields of `mask` taken from the new one."""
    if not mask.paths:
        raise invalid("The update_mask in the request is empty: name the fields to update.")
    for path in mask.paths:
        if path.split(".")[0] not in mutable:
            raise invalid(f"Invalid update_mask provided in the request: {path} cannot be updated.")
    mask.MergeMessage(new, old, True, True)
    return old


def _dead_letters(subscription: Any) -> tuple[str, int]:
    if not subscription.HasField("dead_letter_policy"):
        return "", 0
    policy = subscription.dead_letter_policy
    if not policy.dead_letter_topic:
        raise not_found("dead_letter_topic")
    check_name(policy.dead_letter_topic, "topics")
    policy.max_delivery_attempts = policy.max_delivery_attempts or 5
    check_range("max_delivery_attempts", policy.max_delivery_attempts, 5, 100)
    return policy.dead_letter_topic, policy.max_delivery_attempts


def _backoff(subscription: Any) -> tuple[int, int] | None:
    if not subscription.HasField("retry_policy"):
        return None
    policy = subscription.retry_policy
    if not policy.HasField("minimum_backoff"):
        policy.minimum_backoff.FromSeconds(10)
    if not policy.HasField("maximum_backoff"):
        policy.maximum_backoff.FromSeconds(600)
    least, most = policy.minimum_backoff, policy.maximum_backoff
    check_range("minimum_backoff", least.seconds, 0, 600)
    check_range("maximum_backoff", most.seconds, 0, 600)
    if least.ToMicroseconds() > most.ToMicroseconds():
        raise invalid("The minimum_backoff of the retry policy is larger than its maximum_backoff.")
    return least.ToMicroseconds(), most.ToMicroseconds()


def _refuse_fields(message: Any, names: tuple[str, ...]) -> None:
    for field, _ in message.ListFields():
        if field.name in names:
            raise unimplemented(field.name)
