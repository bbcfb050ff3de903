"""Errors of the systems that a query reads and writes: Kafka, Pub/Sub, PostgreSQL, tables."""

from __future__ import annotations

from epochal.errors.base import EpochalError, FailureKind, OptionError


class KafkaError(EpochalError):
    """A Kafka cluster rejected a request or failed."""

    def __init__(self, servers: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.servers, self.reason = servers, reason

    def __str__(self) -> str:
        return f"Kafka at {self.servers}: {self.reason}"


class KafkaUnavailableError(KafkaError, failure=FailureKind.UNAVAILABLE):
    """A cluster did not answer in time, or answered with a retriable error."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} is unavailable: {self.reason}. Check "
            f"kafka.bootstrap.servers, the network and the brokers."
        )


class KafkaRejectedError(KafkaError, failure=FailureKind.REFUSED):
    """Brokers reject the credentials, or one side does not trust the other's certificate."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} and this client do not accept each other: {self.reason}. "
            f"Check the user, the password and the certificates in the settings that start with "
            f"kafka.sasl and kafka.ssl."
        )


class GroupRefusedError(KafkaError, failure=FailureKind.REFUSED):
    """A consumer group must not be written, or the cluster does not allow it."""

    def __init__(self, servers: str, group: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, group, reason)
        self.group = group

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, consumer group {self.group!r}: {self.reason}"


class KafkaTopicError(KafkaError, failure=FailureKind.REFUSED):
    """Topics to read do not exist, or the user may not see them."""

    condition = "UNKNOWN_TOPIC_OR_PARTITION"

    def __init__(self, servers: str, topics: tuple[str, ...]) -> None:
        super().__init__(servers, ", ".join(topics))
        self.args = (servers, topics)
        self.topics = topics

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} shows no topic {self.reason} to this user. Create the topic, "
            f"read another one, or grant the user DESCRIBE on it."
        )


class KafkaDataLossError(KafkaError, failure=FailureKind.REPEATS):
    """Records were deleted before they were read."""

    def __init__(self, servers: str, kind: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, kind, reason)
        self.kind = kind
        self.condition = f"KAFKA_DATA_LOSS.{kind}"

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Kafka at {self.servers}: {self.reason}. Some data may have been "
            f"lost: it expired, or its topic was deleted, before it was read. To continue with the "
            f"remaining data, set the source's option failOnDataLoss to false."
        )


class KafkaStartError(OptionError):
    """A query cannot start at the offsets it was given."""

    def __init__(self, condition: str, reason: str, remedy: str) -> None:
        super().__init__(condition, reason, remedy)
        self.condition, self.reason, self.remedy = condition, reason, remedy

    def __str__(self) -> str:
        named = f"[{self.condition}] " if self.condition else ""
        return f"{named}kafka: {self.reason}. To continue: {self.remedy}."


class KafkaRecordError(KafkaError, failure=FailureKind.REFUSED):
    """A row of a query's output cannot be written as a record."""

    def __init__(self, servers: str, topic: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, topic, reason)
        self.topic = topic

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, topic {self.topic!r}: {self.reason}"


class KafkaFencedError(KafkaError):
    """A transactional producer was fenced; its open transaction is aborted."""

    def __init__(self, servers: str, transactional_id: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, transactional_id, reason)
        self.transactional_id = transactional_id

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} has shut out transactional id {self.transactional_id!r}: "
            f"{self.reason}. Either another run of the query has taken over, or the broker has "
            f"aborted a transaction that was open for longer than kafka.transaction.timeout.ms. "
            f"None of its records are visible. Run one query per checkpoint, or raise the timeout."
        )


class KafkaTimestampError(EpochalError, failure=FailureKind.REPEATS):
    """A record's timestamp does not fit into microseconds."""

    condition = "KAFKA_MALFORMED_RECORD_TIMESTAMP"

    def __init__(self, topic: str, partition: int, offset: int, timestamp: int) -> None:
        super().__init__(topic, partition, offset, timestamp)
        self.topic, self.partition, self.offset = topic, partition, offset
        self.timestamp = timestamp

    def __str__(self) -> str:
        return (
            f"[{self.condition}] The record at offset {self.offset} of {self.topic}-"
            f"{self.partition} has timestamp {self.timestamp}, which does not fit into a "
            f"timestamp. Kafka expects milliseconds; the producer probably writes microseconds or "
            f"nanoseconds. Correct the producer."
        )


class SchemaRegistryError(EpochalError):
    """A schema registry failed, refused a request, or does not have a schema."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"Schema registry at {self.url}: {self.reason}."


class PubSubError(EpochalError):
    """Pub/Sub rejected a request or failed."""


class PubSubFailedError(PubSubError):
    """A call or a stream failed: `code` is gRPC's name for the status.

    `resource` is the full name of the resource in the request, `advice` what to do about it.
    """

    def __init__(self, what: str, resource: str, code: str, text: str, advice: str) -> None:
        super().__init__(what, resource, code, text, advice)
        self.what, self.resource, self.code = what, resource, code
        self.text, self.advice = text, advice

    def __str__(self) -> str:
        return (
            f"Pub/Sub: {self.what} {self.resource} failed: {self.code}: {self.text} {self.advice}"
        )


class PubSubRejectedError(PubSubFailedError, failure=FailureKind.REPEATS):
    """A retry would fail too: something must be changed first."""


class PubSubUnavailableError(PubSubFailedError, failure=FailureKind.UNAVAILABLE):
    """All retries within the time allowed failed; it may work later."""


class PubSubClosedError(PubSubError):
    """A client was used after it was closed."""


class PayloadError(PubSubError, failure=FailureKind.REPEATS):
    """A value or a schema cannot be turned into messages."""


class PubSubReaderError(PubSubError):
    """A process that reads Pub/Sub for Spark failed, or cannot be started or reached."""


class PubSubRefusedError(PubSubError):
    """The embedded server rejects a call as Google would: `code` is gRPC's name for the status.

    `reasons` maps acknowledgement ids to the reason, when only some ids of a call were rejected.
    """

    def __init__(self, code: str, text: str, reasons: dict[str, str] | None = None) -> None:
        super().__init__(code, text, reasons)
        self.code, self.text, self.reasons = code, text, reasons or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class PostgresError(EpochalError):
    """A PostgreSQL server rejected a request or failed."""

    def __init__(self, server: str, reason: str) -> None:
        """`server` is its address and database, without user and password."""
        super().__init__(server, reason)
        self.server, self.reason = server, reason

    def __str__(self) -> str:
        return f"PostgreSQL at {self.server}: {self.reason}"


class PostgresUnavailableError(PostgresError, failure=FailureKind.UNAVAILABLE):
    """A server cannot be reached, is starting or stopping, or lacks resources."""

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server} is unavailable: {self.reason}. No row of the epoch is "
            f"visible unless its marker is. Check the server and the network."
        )


class PostgresRejectedError(PostgresError, failure=FailureKind.REFUSED):
    """A request would fail again: credentials, permissions, or a table that does not fit."""


class PostgresRowError(PostgresRejectedError, failure=FailureKind.REPEATS):
    """A row of a query's output cannot be written to the table."""

    def __init__(self, server: str, table: str, reason: str) -> None:
        super().__init__(server, reason)
        self.args = (server, table, reason)
        self.table = table

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server}, table {self.table}: {self.reason}. No row of the epoch "
            f"was written; the query repeats the epoch at its next start. Correct the query, the "
            f"table or the rows that it contains."
        )


class PostgresFencedError(PostgresError):
    """Another run of the query has taken over its marker."""

    def __init__(self, server: str, query: str, reason: str) -> None:
        super().__init__(server, reason)
        self.args = (server, query, reason)
        self.query = query

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server} has shut out this run of query {self.query}: "
            f"{self.reason}. None of its later rows are visible. Run one query per checkpoint."
        )


class TableError(EpochalError, failure=FailureKind.REFUSED):
    """A table cannot be written."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table, self.reason = table, reason

    def __str__(self) -> str:
        return f"{self.table}: {self.reason}"


class TableUnavailableError(TableError, failure=FailureKind.UNAVAILABLE):
    """A table's catalog or storage does not work at the moment."""


class TableConflictError(TableError, failure=FailureKind.UNAVAILABLE):
    """Other writers changed a table again and again while an epoch was being committed."""

    def __init__(self, table: str, epoch: int, tries: int, reason: str) -> None:
        super().__init__(table, reason)
        self.args = (table, epoch, tries, reason)
        self.epoch, self.tries = epoch, tries

    def __str__(self) -> str:
        return (
            f"{self.table}: epoch {self.epoch} could not be committed in {self.tries} tries, "
            f"because other writers changed the table each time. The last answer was: "
            f"{self.reason}. Nothing is lost: the next attempt commits the epoch. If this happens "
            f"often, let fewer writers change the table, or use longer epochs."
        )


class TableRowError(TableError, failure=FailureKind.REPEATS):
    """A row of a query's output does not fit into its table."""

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.reason}. The row was not written, and no other row of its "
            f"epoch. Correct or filter such rows in the query, or change the table."
        )


class TableMismatchError(OptionError):
    """A query's columns or output mode do not fit a table, or the table needs what we lack."""

    def __init__(self, table: str, reasons: tuple[str, ...]) -> None:
        super().__init__(table, reasons)
        self.table, self.reasons = table, reasons

    def __str__(self) -> str:
        listed = "".join(f"\n  - {reason}" for reason in self.reasons)
        return f"The query cannot write to {self.table}. Nothing was written.{listed}"
