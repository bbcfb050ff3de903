"""Checks the topics and subscriptions that clients describe, and fills in defaults.

It also extracts what the broker needs. An update copies the fields of its mask into the old
description; the result is then checked like a new one.

Note: a field that the server does not support is an error. It is never silently ignored.
"""

from __future__ import annotations

from typing import Any

from google.pubsub_v1.types import pubsub

from epochal.connectors.pubsub.server.filters import Predicate, parse_filter
from epochal.connectors.pubsub.server.parts import SECOND_US, Settings
from epochal.connectors.pubsub.server.refusals import (
    check_name,
    check_range,
    invalid,
    not_found,
    unimplemented,
)

TopicPb: Any = pubsub.Topic.pb()
SubscriptionPb: Any = pubsub.Subscription.pb()
SnapshotPb: Any = pubsub.Snapshot.pb()

DAY = 86_400
UNSUPPORTED_IN_TOPICS = ("schema_settings", "ingestion_data_source_settings", "message_transforms")
UNSUPPORTED = ("bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms")
MUTABLE_IN_TOPICS = {"labels", "message_retention_duration", "message_storage_policy", "tags"}
MUTABLE = {
    "ack_deadline_seconds",
    "dead_letter_policy",
    "enable_exactly_once_delivery",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "push_config",
    "retain_acked_messages",
    "retry_policy",
    "tags",
}


def check_topic(topic: Any) -> int:
    """Check and complete a topic; return how long it retains messages, in microseconds."""
    check_name(topic.name, "topics")
    _refuse_unsupported(topic, UNSUPPORTED_IN_TOPICS)
    topic.state = pubsub.Topic.State.ACTIVE
    if not topic.HasField("message_retention_duration"):
        return 0
    seconds = topic.message_retention_duration.seconds
    check_range("message_retention_duration", seconds, 600, 31 * DAY)
    return int(seconds) * SECOND_US


def check_subscription(subscription: Any) -> tuple[Settings, Predicate | None]:
    """Check and complete a subscription; return its settings and its filter."""
    check_name(subscription.name, "subscriptions")
    _refuse_unsupported(subscription, UNSUPPORTED)
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


def _refuse_unsupported(message: Any, names: tuple[str, ...]) -> None:
    fields = {field.name for field, _ in message.ListFields()}
    for name in names:
        if name in fields:
            raise unimplemented(name)
