"""What users may say about Pub/Sub, for the source and for the sink, in Spark and in the engine.

Names of Databricks' connector and of the plain form are equals (`numFetchPartitions` and
`numPartitions`). Spark's conf `spark.pubsub.NAME` is a default under option NAME.

What a reader would get wrong: the sink's `batchSize` counts messages of one publish request, the
source's `maxRecordsPerFetch` rows of one partition of one micro-batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast

from epochal.errors import OptionError
from epochal.options import options_of, read_options, suggestion

CONF_PREFIX = "spark.pubsub."
EMULATOR = "PUBSUB_EMULATOR_HOST"
PROJECT_VARIABLES = ("PUBSUB_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
MAX_PUBLISH_MESSAGES = 1000
MAX_PUBLISH_BYTES = 10_000_000
MIN_DEADLINE_S, MAX_DEADLINE_S = 10, 600
SPARKS_OWN = {"path", "checkpointlocation", "queryname"}
_ID = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")


class Delivery(StrEnum):
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


def _also(*names: str, default: Any) -> Any:
    return field(default=default, metadata={"also": names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whom to talk to, and as whom."""

    project_id: str | None = None
    emulator_host: str | None = None
    """host:port of an emulator or of the embedded server; the environment's if not given."""
    endpoint: str = "pubsub.googleapis.com:443"
    credentials_file: str | None = None
    credentials_json: str | None = field(default=None, repr=False)
    client_email: str | None = None
    client_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    private_key_id: str | None = None
    request_timeout: timedelta = timedelta(seconds=20)
    """The deadline of every single call."""
    retry_timeout: timedelta = timedelta(seconds=30)
    """How long what can be tried again is tried again without a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Access):
    """Options of `readStream.format("pubsub")` and of the engine's source."""

    subscription_id: str
    topic_id: str | None = None
    create_subscription: bool = False
    delete_subscription_on_stream_stop: bool = _also("deleteSubscription", default=False)
    seek_to_timestamp: str | None = None
    seek_to_snapshot: str | None = None
    num_partitions: int | None = _also("numFetchPartitions", default=None)
    max_records_per_fetch: int = _also("maxRecordsPerPartition", default=100_000)
    max_bytes_per_trigger: int | None = None
    max_fetch_period: timedelta = timedelta(seconds=10)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    dedup_window: timedelta = timedelta(minutes=10)
    ack_deadline: timedelta = timedelta(seconds=60)
    max_outstanding_messages: int = 400_000
    max_outstanding_bytes: int = 256 << 20
    reservoir_bytes: int = _also("maxReservoirBytes", default=256 << 20)
    spill_dir: str | None = None
    wal_location: str | None = None
    """Where `delivery=exactly-once` keeps copies of batches until their window is over."""
    driver_host: str | None = None
    """Where executors reach the driver; by default what Spark uses."""
    driver_bind_host: str = "0.0.0.0"
    drain_silence: timedelta = timedelta(seconds=2)
    """How long nothing must come before `availableNow` takes the subscription for drained."""
    include_ack_id: bool = False
    parse: str | None = None
    parse_schema: str | None = None
    parse_message: str | None = None
    dead_letter_topic_id: str | None = None

    def __post_init__(self) -> None:
        deadline_s = self.ack_deadline / timedelta(seconds=1)
        if not MIN_DEADLINE_S <= deadline_s <= MAX_DEADLINE_S:
            raise OptionError(
                f"pubsub: ackDeadline must be 10 to 600 seconds, as Pub/Sub's own, not "
                f"{deadline_s:g} s."
            )
        for name in ("max_records_per_fetch", "max_outstanding_messages", "max_outstanding_bytes"):
            _positive(name, getattr(self, name))
        for name in ("num_partitions", "max_bytes_per_trigger"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.seek_to_timestamp and self.seek_to_snapshot:
            raise OptionError("pubsub: give seekToTimestamp or seekToSnapshot, not both.")
        if self.create_subscription and self.topic_id is None:
            raise OptionError(
                f"pubsub: createSubscription needs topicId: subscription {self.subscription_id} "
                f"must belong to a topic."
            )

    @property
    def subscription(self) -> str:
        """The full name of the subscription."""
        return full_name("subscriptions", self.subscription_id, self)

    @property
    def topic(self) -> str | None:
        return None if self.topic_id is None else full_name("topics", self.topic_id, self)

    @property
    def seek_target(self) -> datetime | str | None:
        """A moment, the full name of a snapshot, or nothing to seek to."""
        if self.seek_to_snapshot is not None:
            return full_name("snapshots", self.seek_to_snapshot, self)
        if self.seek_to_timestamp is None:
            return None
        return moment(self.seek_to_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(Access):
    """Options of `write` and `writeStream.format("pubsub")` and of the engine's sink."""

    topic_id: str
    batch_size: int = MAX_PUBLISH_MESSAGES
    linger_ms: int = _also("lingerMillis", default=50)
    max_batch_bytes: int = 1 << 20
    max_in_flight: int = 8
    """Publish requests that may be under way at once."""
    ordered: bool | None = None
    """Whether ordering keys are sent; by default if there is a column of them."""
    data_column: str | None = None
    attributes_column: str = "attributes"
    ordering_key_column: str = "ordering_key"
    epoch_attributes: bool = False
    """Whether messages carry query, epoch and row, so that readers can drop repetitions."""
    attribute_prefix: str = "epochal-"

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_batch_bytes", "max_in_flight"):
            _positive(name, getattr(self, name))
        if self.batch_size > MAX_PUBLISH_MESSAGES:
            raise OptionError(
                f"pubsub: batchSize is {self.batch_size}, and Pub/Sub takes at most "
                f"{MAX_PUBLISH_MESSAGES} messages in a request."
            )
        if self.max_batch_bytes > MAX_PUBLISH_BYTES:
            raise OptionError(
                f"pubsub: maxBatchBytes is {self.max_batch_bytes}, and Pub/Sub takes at most "
                f"{MAX_PUBLISH_BYTES} bytes in a request."
            )
        if self.linger_ms < 0:
            raise OptionError(f"pubsub: lingerMs must not be negative, and is {self.linger_ms}.")

    @property
    def topic(self) -> str:
        return full_name("topics", self.topic_id, self)


OptionsT = TypeVar("OptionsT", bound=Access)


def source_options(
    options: Mapping[str, str], conf: Mapping[str, str] | None = None
) -> SourceOptions:
    """A source's options, over the defaults in Spark's conf."""
    return read_options(SourceOptions, _merged(SourceOptions, options, conf or {}), of="pubsub")


def merged_source_options(
    options: Mapping[str, str], conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A source's options and the defaults under them, as they were written."""
    return _merged(SourceOptions, options, conf or {})


def sink_options(options: Mapping[str, str], conf: Mapping[str, str] | None = None) -> SinkOptions:
    """A sink's options, over the defaults in Spark's conf."""
    return read_options(SinkOptions, _merged(SinkOptions, options, conf or {}), of="pubsub")


def full_name(kind: str, given: str, access: Access) -> str:
    """`projects/P/KIND/ID`, of an id or of a full name."""
    match given.split("/"):
        case ["projects", _, found, name] if found == kind:
            return given
        case [name]:
            pass
        case _:
            raise OptionError(
                f"pubsub: {given!r} is neither the id nor the full name of one of the {kind} "
                f"(projects/PROJECT/{kind}/ID)."
            )
    if not _ID.fullmatch(name):
        raise OptionError(
            f"pubsub: {given!r} cannot be an id in {kind}: 3 to 255 letters, digits and -_.~+%, "
            f"beginning with a letter."
        )
    return f"projects/{project(access)}/{kind}/{name}"


def project(access: Access) -> str:
    """The project that ids belong to: the option, the environment, the credentials."""
    if access.project_id:
        return access.project_id
    for name in PROJECT_VARIABLES:
        if found := os.environ.get(name):
            return found
    from epochal.connectors.pubsub.credentials import find_credentials

    _, found = find_credentials(access)
    if not found:
        raise OptionError(
            "pubsub: option projectId must be given: neither GOOGLE_CLOUD_PROJECT nor the "
            "credentials name a project."
        )
    return found


def settled(options: OptionsT) -> OptionsT:
    """The options with full names and the emulator's address in them.

    To be sent to tasks, whose environment may be another than the driver's.
    """
    found: dict[str, Any] = {"emulator_host": emulator_host(options)}
    for name, kind in (("subscription_id", "subscriptions"), ("topic_id", "topics")):
        given = getattr(options, name, None)
        if given is not None:
            found[name] = full_name(kind, given, options)
    if getattr(options, "dead_letter_topic_id", None) is not None:
        given = cast(SourceOptions, options).dead_letter_topic_id or ""
        found["dead_letter_topic_id"] = full_name("topics", given, options)
    return replace(options, **found)


def emulator_host(access: Access) -> str | None:
    return access.emulator_host or os.environ.get(EMULATOR) or None


def moment(text: str) -> datetime:
    """A time as people write it: ISO 8601, or milliseconds since 1970."""
    if text.strip().isdigit():
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"pubsub: seekToTimestamp must be milliseconds since 1970 or ISO 8601, such as "
            f"2026-05-01T12:00:00Z, not {text!r}."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _merged(cls: type[Any], options: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    given = {key: text for key, text in options.items() if key.lower() not in SPARKS_OWN}
    canonical, known = _canonical(cls), _canonical(SourceOptions) | _canonical(SinkOptions)
    said = {canonical.get(key.lower()) for key in given}
    for key, text in conf.items():
        if not key.startswith(CONF_PREFIX):
            continue
        name = key[len(CONF_PREFIX) :]
        if name.lower() not in known:
            raise OptionError(
                f"{key} in Spark's conf is no option of Pub/Sub.{suggestion(name, known.values())}"
            )
        found = canonical.get(name.lower())
        if found is not None and found not in said:
            given[name] = text
    return given


def _canonical(cls: type[Any]) -> dict[str, str]:
    return {
        name.lower(): option.name
        for option in options_of(cls)
        for name in (option.name, *option.also)
    }


def _positive(field_name: str, value: int) -> None:
    if value < 1:
        raise OptionError(f"pubsub: {field_name.replace('_', ' ')} must be 1 or more, not {value}.")
