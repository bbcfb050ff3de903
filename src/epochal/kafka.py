"""Public names for Kafka: the listener that commits a Spark query's position to a group."""

from __future__ import annotations

from epochal.connectors.kafka.committer.offset_committer import KafkaGroup, OffsetCommitter

__all__ = ["KafkaGroup", "OffsetCommitter"]
