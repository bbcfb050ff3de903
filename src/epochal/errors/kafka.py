"""Errors of Kafka."""

from __future__ import annotations

from epochal.errors.base import EpochalError, OptionError


class KafkaError(EpochalError):
    """A Kafka cluster rejected a request or failed."""

    def __init__(self, servers: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.servers, self.reason = servers, reason

    def __str__(self) -> str:
        return f"Kafka at {self.servers}: {self.reason}"


class KafkaUnavailableError(KafkaError):
    """A cluster did not answer in time, or answered with a retriable error."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} is unavailable: {self.reason}. Check "
            f"kafka.bootstrap.servers, the network and the brokers."
        )


class KafkaRejectedError(KafkaError):
    """Brokers reject the credentials, or one side does not trust the other's certificate."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} and this client do not accept each other: {self.reason}. "
            f"Check the user, the password and the certificates in the settings that start with "
            f"kafka.sasl and kafka.ssl."
        )


class GroupRefusedError(KafkaError):
    """A consumer group must not be written, or the cluster does not allow it."""

    def __init__(self, servers: str, group: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, group, reason)
        self.group = group

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, consumer group {self.group!r}: {self.reason}"


class KafkaTopicError(KafkaError):
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


class KafkaDataLossError(KafkaError):
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


class KafkaRecordError(KafkaError):
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


class KafkaTimestampError(EpochalError):
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
