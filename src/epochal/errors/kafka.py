"""What a Kafka cluster may refuse."""

from __future__ import annotations

from epochal.errors.base import EpochalError, OptionError
from epochal.errors.epoch import RecoveryError


class KafkaError(EpochalError):
    """A Kafka cluster did not do what it was asked."""

    def __init__(self, servers: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.servers, self.reason = servers, reason

    def __str__(self) -> str:
        return f"Kafka at {self.servers}: {self.reason}"


class KafkaUnavailableError(KafkaError):
    """A cluster gave no answer in time, or one that says to ask again."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} cannot be asked: {self.reason}. Check the bootstrap servers, "
            f"the network and the brokers."
        )


class GroupRefusedError(KafkaError):
    """A consumer group must not be written, or the cluster does not let us."""

    def __init__(self, servers: str, group: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, group, reason)
        self.group = group

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, consumer group {self.group!r}: {self.reason}"


class KafkaTopicError(KafkaError):
    """Topics that are to be read do not exist, or may not be seen."""

    condition = "UNKNOWN_TOPIC_OR_PARTITION"

    def __init__(self, servers: str, topics: tuple[str, ...]) -> None:
        super().__init__(servers, ", ".join(topics))
        self.args = (servers, topics)
        self.topics = topics

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} shows no topic {self.reason} to this user. Create it, name "
            f"another one, or give the user DESCRIBE on it."
        )


class KafkaDataLossError(KafkaError):
    """Records that were to be read are not there any more."""

    def __init__(self, servers: str, kind: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, kind, reason)
        self.kind = kind
        self.condition = f"KAFKA_DATA_LOSS.{kind}"

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Kafka at {self.servers}: {self.reason}. Some data may have been "
            f"lost: it was aged out, or its topic deleted, before it was read. If the query is to "
            f"go on with what is there, set the source's option failOnDataLoss to false."
        )


class KafkaStartError(OptionError):
    """A query cannot start where it is told to."""

    def __init__(self, condition: str, reason: str, remedy: str) -> None:
        super().__init__(condition, reason, remedy)
        self.condition, self.reason, self.remedy = condition, reason, remedy

    def __str__(self) -> str:
        named = f"[{self.condition}] " if self.condition else ""
        return f"{named}kafka: {self.reason}. To go on: {self.remedy}."


class KafkaRecordError(KafkaError):
    """A record of a query's output cannot be written as it is."""

    def __init__(self, servers: str, topic: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, topic, reason)
        self.topic = topic

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, topic {self.topic!r}: {self.reason}"


class KafkaFencedError(KafkaError):
    """A transactional producer was shut out: what it had begun is aborted."""

    def __init__(self, servers: str, transactional_id: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, transactional_id, reason)
        self.transactional_id = transactional_id

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} has shut out transactional id {self.transactional_id!r}: "
            f"{self.reason}. Either another run of the query has taken over, or the broker has "
            f"aborted a transaction that was open for longer than kafka.transaction.timeout.ms. "
            f"Nothing of it is visible."
        )


class MarkerError(RecoveryError):
    """The marker of a query's transactions does not fit the checkpoint's log."""

    def __init__(self, group: str, reason: str, remedy: str) -> None:
        super().__init__((group,), reason)
        self.args = (group, reason, remedy)
        self.group, self.remedy = group, remedy

    def __str__(self) -> str:
        return (
            f"Kafka sink, marker in consumer group {self.group!r}: {self.reason}. Which epochs are "
            f"in the topic cannot be told, so going on could lose rows or write them twice. "
            f"{self.remedy}"
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
            f"{self.partition} has timestamp {self.timestamp}, which is beyond what a timestamp "
            f"can hold. Kafka's are milliseconds: its producer seems to write microseconds or "
            f"nanoseconds, and must be set right."
        )
