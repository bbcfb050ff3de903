"""Options of the Pub/Sub source and sink, for Spark's data source and for the continuous engine.

Options may also be spelled as in Databricks' connector (`numFetchPartitions` for `numPartitions`).
Setting `spark.pubsub.NAME` in Spark's conf gives option NAME a default.

Note: the sink's `batchSize` is the number of messages in one publish request. The source's
`maxRecordsPerFetch` is the number of rows in one partition of one micro-batch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

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
EMULATOR = "PUBSUB_EMULATOR_HOST"
ROUTING_HEADER = "x-goog-request-params"
"""The header by which Google routes a call to the region and shard of its resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The options that the source and the sink share."""

    project_id: str | None = None
    emulator_host: str | None = None
    """host:port of an emulator or of the embedded server. Default: $PUBSUB_EMULATOR_HOST."""
    endpoint: str = "pubsub.googleapis.com:443"
    credentials_file: str | None = None
    credentials_json: str | None = field(default=None, repr=False)
    client_email: str | None = None
    client_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    private_key_id: str | None = None
    request_timeout: timedelta = timedelta(seconds=20)
    """The deadline of every unary call."""
    retry_timeout: timedelta | None = timedelta(seconds=30)
    """How long to keep retrying without a success before giving up; None for ever."""


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
        _check_positive(
            self,
            *("max_records_per_fetch", "max_outstanding_messages", "max_outstanding_bytes"),
            *("num_partitions", "max_bytes_per_trigger"),
        )
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
        _check_positive(self, "batch_size", "max_batch_bytes", "max_in_flight")
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
    texts = _merge_options(SourceOptions, options, conf or {})
    return read_options(SourceOptions, texts, of="pubsub")


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
    for name in ("subscription_id", "topic_id", "dead_letter_topic_id"):
        value = getattr(options, name, None)
        if value is not None:
            kind = "subscriptions" if name == "subscription_id" else "topics"
            settled_values[name] = full_name(kind, value, options)
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


def _check_positive(options: Access, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"pubsub: {option_name(name)} must be 1 or more, not {value}.")


def emulator_host(access: Access) -> str | None:
    """The emulator's host:port from the option or the environment; None to use Google's service."""
    return access.emulator_host or os.environ.get(EMULATOR) or None


SCOPES = ("https://www.googleapis.com/auth/pubsub",)
TOKEN_URI = "https://oauth2.googleapis.com/token"


def find_credentials(access: Access) -> tuple[Any, str | None]:
    """Return google-auth's credentials and the project they name; (None, None) for an emulator.

    They are a service account, given as a file, as JSON or as separate fields. Without one,
    Google's application default credentials are used. With an emulator nothing is looked up, so
    tests and quick starts need no credentials.
    """
    if emulator_host(access):
        return None, None
    from google.oauth2 import service_account

    ways = [access.credentials_file, access.credentials_json, access.private_key]
    if sum(way is not None for way in ways) > 1:
        raise OptionError(
            "pubsub: more than one of credentialsFile, credentialsJson and privateKey is set, so "
            "it is unclear which account to use: give one of them."
        )
    info = _account_info(access)
    if info is None:
        return _default_credentials()
    try:
        credentials = service_account.Credentials.from_service_account_info(info, scopes=SCOPES)
    except ValueError as error:
        raise OptionError(
            f"pubsub: Google's library rejects the service account's key: {error} Give the key "
            f"file as Google issued it."
        ) from error
    return credentials, info.get("project_id")


def _account_info(access: Access) -> dict[str, Any] | None:
    if access.credentials_file is not None:
        try:
            with open(access.credentials_file, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise OptionError(
                f"pubsub: credentialsFile {access.credentials_file} cannot be read ({error}). The "
                f"file must exist at this path on the driver and on every executor. Or pass its "
                f"content as credentialsJson."
            ) from error
        return _parse_json(text, "credentialsFile")
    if access.credentials_json is not None:
        return _parse_json(access.credentials_json, "credentialsJson")
    if access.private_key is None:
        return None
    if access.client_email is None:
        raise OptionError(
            "pubsub: privateKey needs clientEmail: set it to the e-mail address of the account "
            "that owns the key."
        )
    return {
        "type": "service_account",
        "client_email": access.client_email,
        "client_id": access.client_id,
        "private_key": access.private_key.replace("\\n", "\n"),
        "private_key_id": access.private_key_id,
        "project_id": access.project_id,
        "token_uri": TOKEN_URI,
    }


def _parse_json(text: str, option: str) -> dict[str, Any]:
    # The text is a secret, so the error must not quote it.
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise OptionError(
            f"pubsub: {option} is not the JSON of a service account's key. Give the key file as "
            f"Google issued it."
        )
    return info


def _default_credentials() -> tuple[Any, str | None]:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        credentials, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise OptionError(
            f"pubsub: no credentials were found: {error} Give credentialsFile or credentialsJson. "
            f"To use an emulator, give emulatorHost, or set {EMULATOR} before "
            f"epochal.register(spark): Spark's own processes do not see it later."
        ) from error
    return credentials, project
