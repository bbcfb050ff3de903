"""Public names for Kafka: the listener that commits a Spark query's position to a group."""

from __future__ import annotations

from epochal.connectors.kafka.committer.offset_committer import KafkaGroup, OffsetCommitter

__all__ = ["KafkaGroup", "OffsetCommitter"]


def __dir__() -> list[str]:
    """List the public names, not the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
