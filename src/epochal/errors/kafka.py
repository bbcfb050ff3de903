"""What a Kafka cluster may refuse."""

from __future__ import annotations

from epochal.errors.base import EpochalError


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
