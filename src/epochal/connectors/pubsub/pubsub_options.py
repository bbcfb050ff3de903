"""Options of the Pub/Sub source and sink, for Spark's data source and for the continuous engine.

Options may also be spelled as in Databricks' connector (`numFetchPartitions` for `numPartitions`).
Setting `spark.pubsub.NAME` in Spark's conf gives option NAME a default.

Note: the sink's `batchSize` is the number of messages in one publish request. The source's
`maxRecordsPerFetch` is the number of rows in one partition of one micro-batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast

from epochal.connectors.pubsub.pubsub_access import Access, emulator_host, find_credentials
from epochal.errors import OptionError
from epochal.options import ByteSize, option_name, options_of, read_options, suggestion

CONF_PREFIX = "spark.pubsub."
PROJECT_VARIABLES = ("PUBSUB_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
MAX_PUBLISH_MESSAGES = 1000
MAX_PUBLISH_BYTES = 10_000_000
MIN_DEADLINE_S, MAX_DEADLINE_S = 10, 600
SPARK_OPTIONS = {"path", "checkpointlocation", "queryname"}
"""Options that Spark adds for itself, in lower case. They are ignored here."""
_ID = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")


class ColumnNames(StrEnum):
    """Whose names and types the source's columns have."""

    EPOCHAL = "epochal"
    DATABRICKS = "databricks"


class Delivery(StrEnum):
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


def _with_aliases(*names: str, default: Any) -> Any:
    return field(default=default, metadata={"also": names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Access):
    """Options of `readStream.format("pubsub")` and of the engine's source."""

    retry_timeout: timedelta | None = None
    """A reader waits for ever: no message is lost or acknowledged while Pub/Sub is away."""
    subscription_id: str
    topic_id: str | None = None
    create_subscription: bool = False
    delete_subscription_on_stream_stop: bool = _with_aliases("deleteSubscription", default=False)
    seek_to_timestamp: str | None = None
    seek_to_snapshot: str | None = None
    num_partitions: int | None = _with_aliases("numFetchPartitions", default=None)
    max_records_per_fetch: int = _with_aliases("maxRecordsPerPartition", default=100_000)
    max_bytes_per_trigger: ByteSize | None = None
    max_fetch_period: timedelta = timedelta(seconds=10)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    dedup_window: timedelta = timedelta(minutes=10)
    ack_deadline: timedelta = timedelta(seconds=60)
    max_outstanding_messages: int = 400_000
    max_outstanding_bytes: ByteSize = 256 << 20
    reservoir_bytes: ByteSize = field(default=256 << 20, metadata={"also": ("maxReservoirBytes",)})
    spill_dir: str | None = None
    wal_location: str | None = None
    """Where `delivery=exactly-once` keeps copies of batches until `dedupWindow` has passed."""
    driver_host: str | None = None
    """The host under which executors reach the driver. Default: Spark's own setting."""
    driver_bind_host: str | None = None
    """Where the driver listens. Default: Spark's own setting, then driver_host, then loopback."""
    drain_silence: timedelta = timedelta(seconds=2)
    """After this long without a message, `availableNow` treats the subscription as drained."""
    include_ack_id: bool = False
    column_names: ColumnNames = ColumnNames.EPOCHAL
    """`databricks`: messageId, payload, attributes as JSON, publishTimestampInMillis."""
    parse: str | None = None
    parse_schema: str | None = None
    parse_message: str | None = None
    dead_letter_topic_id: str | None = None

    def __post_init__(self) -> None:
        deadline_s = self.ack_deadline / timedelta(seconds=1)
        if not MIN_DEADLINE_S <= deadline_s <= MAX_DEADLINE_S:
            raise OptionError(
                f"pubsub: ackDeadline must be 10 to 600 seconds, the range Pub/Sub accepts, not "
                f"{deadline_s:g} s."
            )
        for name in ("max_records_per_fetch", "max_outstanding_messages", "max_outstanding_bytes"):
            _positive(name, getattr(self, name))
        for name in ("num_partitions", "max_bytes_per_trigger"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.seek_to_timestamp and self.seek_to_snapshot:
            raise OptionError("pubsub: give seekToTimestamp or seekToSnapshot, not both.")
        if self.column_names is ColumnNames.DATABRICKS and (self.parse or self.include_ack_id):
            raise OptionError(
                "pubsub: columnNames=databricks gives exactly the columns of Databricks' "
                "connector, so it cannot be combined with parse or includeAckId. Remove one of "
                "them."
            )
        if self.create_subscription and self.topic_id is None:
            raise OptionError(
                f"pubsub: createSubscription needs topicId, the topic to create subscription "
                f"{self.subscription_id} on."
            )

    @property
    def subscription(self) -> str:
        """The subscription's full name."""
        return full_name("subscriptions", self.subscription_id, self)

    @property
    def topic(self) -> str | None:
        return None if self.topic_id is None else full_name("topics", self.topic_id, self)

    @property
    def seek_target(self) -> datetime | str | None:
        """A timestamp, the full name of a snapshot, or None if no seek was requested."""
        if self.seek_to_snapshot is not None:
            return full_name("snapshots", self.seek_to_snapshot, self)
        if self.seek_to_timestamp is None:
            return None
        return parse_timestamp(self.seek_to_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(Access):
    """Options of `write` and `writeStream.format("pubsub")` and of the engine's sink."""

    topic_id: str
    batch_size: int = MAX_PUBLISH_MESSAGES
    linger_ms: int = _with_aliases("lingerMillis", default=50)
    max_batch_bytes: ByteSize = 1 << 20
    max_in_flight: int = 8
    """The number of publish requests that may be in flight at once."""
    ordered: bool | None = None
    """Whether to send ordering keys. Default: only if the ordering key column exists."""
    data_column: str | None = None
    attributes_column: str = "attributes"
    ordering_key_column: str = "ordering_key"
    epoch_attributes: bool = False
    """Whether to add query, epoch and row as attributes, so that readers can drop duplicates."""
    attribute_prefix: str = "epochal-"

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_batch_bytes", "max_in_flight"):
            _positive(name, getattr(self, name))
        if self.batch_size > MAX_PUBLISH_MESSAGES:
            raise OptionError(
                f"pubsub: batchSize is {self.batch_size}, but Pub/Sub accepts at most "
                f"{MAX_PUBLISH_MESSAGES} messages in a request."
            )
        if self.max_batch_bytes > MAX_PUBLISH_BYTES:
            raise OptionError(
                f"pubsub: maxBatchBytes is {self.max_batch_bytes}, but Pub/Sub accepts at most "
                f"{MAX_PUBLISH_BYTES} bytes in a request."
            )
        if self.linger_ms < 0:
            raise OptionError(f"pubsub: lingerMs must be 0 or more, not {self.linger_ms}.")

    @property
    def topic(self) -> str:
        return full_name("topics", self.topic_id, self)


OptionsT = TypeVar("OptionsT", bound=Access)


def source_options(
    options: Mapping[str, str], conf: Mapping[str, str] | None = None
) -> SourceOptions:
    """Read a source's options; `conf` gives defaults."""
    return read_options(
        SourceOptions, _merge_options(SourceOptions, options, conf or {}), of="pubsub"
    )


def merge_source_options(
    options: Mapping[str, str], conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Merge a source's options with the defaults in `conf`, without parsing the values."""
    return _merge_options(SourceOptions, options, conf or {})


def sink_options(options: Mapping[str, str], conf: Mapping[str, str] | None = None) -> SinkOptions:
    """Read a sink's options; `conf` gives defaults."""
    return read_options(SinkOptions, _merge_options(SinkOptions, options, conf or {}), of="pubsub")


def full_name(kind: str, name_or_path: str, access: Access) -> str:
    """Return `projects/P/KIND/ID` for an id or for a full name."""
    match name_or_path.split("/"):
        case ["projects", _, named_kind, name] if named_kind == kind:
            return name_or_path
        case [name]:
            pass
        case _:
            raise OptionError(
                f"pubsub: {name_or_path!r} is neither an id nor a full name in {kind}. "
                f"Give the id alone, or projects/PROJECT/{kind}/ID."
            )
    if not _ID.fullmatch(name):
        raise OptionError(
            f"pubsub: {name_or_path!r} is not a valid id in {kind}. An id has 3 to 255 "
            f"letters, digits and -_.~+% and starts with a letter."
        )
    return f"projects/{project(access)}/{kind}/{name}"


def project(access: Access) -> str:
    """The project of plain ids: from the option, the environment or the credentials."""
    if access.project_id:
        return access.project_id
    for name in PROJECT_VARIABLES:
        if project := os.environ.get(name):
            return project
    _, project = find_credentials(access)
    if not project:
        raise OptionError(
            f"pubsub: option projectId must be given, because neither "
            f"{' nor '.join(PROJECT_VARIABLES)} is set and the credentials name no project."
        )
    return project


def settle_options(options: OptionsT) -> OptionsT:
    """Return options that no longer depend on this process's environment.

    They are sent to tasks, whose environment may differ from the driver's. So ids become full
    names, and the emulator's address becomes an option.
    """
    settled_values: dict[str, Any] = {"emulator_host": emulator_host(options)}
    for name, kind in (("subscription_id", "subscriptions"), ("topic_id", "topics")):
        value = getattr(options, name, None)
        if value is not None:
            settled_values[name] = full_name(kind, value, options)
    if getattr(options, "dead_letter_topic_id", None) is not None:
        value = cast(SourceOptions, options).dead_letter_topic_id or ""
        settled_values["dead_letter_topic_id"] = full_name("topics", value, options)
    return replace(options, **settled_values)


def parse_timestamp(text: str) -> datetime:
    """Read ISO 8601 or milliseconds since 1970. A time without a zone is UTC."""
    if text.strip().isdigit():
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"pubsub: seekToTimestamp must be milliseconds since 1970 or ISO 8601, such as "
            f"2026-05-01T12:00:00Z, not {text!r}."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _merge_options(
    cls: type[Any], options: Mapping[str, str], conf: Mapping[str, str]
) -> dict[str, str]:
    texts = {key: text for key, text in options.items() if key.lower() not in SPARK_OPTIONS}
    canonical, all_names = _canonical(cls), _canonical(SourceOptions) | _canonical(SinkOptions)
    chosen = {canonical.get(key.lower()) for key in texts}
    for key, text in conf.items():
        if not key.startswith(CONF_PREFIX):
            continue
        name = key[len(CONF_PREFIX) :]
        if name.lower() not in all_names:
            raise OptionError(
                f"{key} in Spark's conf is not an option of Pub/Sub."
                f"{suggestion(name, all_names.values())}"
            )
        canonical_name = canonical.get(name.lower())
        # An option beats the conf even if the two use different names of the same option.
        if canonical_name is not None and canonical_name not in chosen:
            texts[name] = text
    return texts


def _canonical(cls: type[Any]) -> dict[str, str]:
    """Map every spelling of an option, in lower case, to the option's main name."""
    return {
        name.lower(): option.name
        for option in options_of(cls)
        for name in (option.name, *option.also)
    }


def _positive(field_name: str, value: int) -> None:
    if value < 1:
        raise OptionError(f"pubsub: {option_name(field_name)} must be 1 or more, not {value}.")
