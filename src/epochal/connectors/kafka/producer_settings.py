"""Translates Java's producer settings into librdkafka's, and adds the sink's defaults. Pure.

Note: the default partitioner is Java's murmur2, not librdkafka's. A consumer that joins two topics
by key relies on equal keys being in equal partitions, whichever producer wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.connectors.kafka.kafka_settings import (
    BYTES_ONLY,
    JAVA_CODE,
    client_settings,
    require_servers,
)
from epochal.errors import OptionError

RENAMED = {
    "max.request.size": "message.max.bytes",
    "buffer.memory": "queue.buffering.max.kbytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "delivery.timeout.ms": "message.timeout.ms",
    "linger.ms": "queue.buffering.max.ms",
}
_BYTES = f"{BYTES_ONLY}: encode them in the query"
_SET_BY_SINK = "the sink sets it, from the query's id"
_PARTITIONER = "keys go to the partition that Java's own partitioner chooses"
_JAVA_TUNING = "it tunes the Java client's partitioner"
REFUSED = {
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "partitioner.class": f"{_PARTITIONER}; to choose the partition yourself, add a column named "
    "partition",
    "partitioner.ignore.keys": _PARTITIONER,
    "partitioner.adaptive.partitioning.enable": _JAVA_TUNING,
    "partitioner.availability.timeout.ms": _JAVA_TUNING,
    "interceptor.classes": JAVA_CODE,
    "metric.reporters": JAVA_CODE,
    "security.providers": JAVA_CODE,
    "max.block.ms": "when the buffer is full, the query reads more slowly; no call blocks for it",
    "transactional.id": _SET_BY_SINK,
    "transaction.two.phase.commit.enable": "a transaction is committed as soon as it is complete",
    "delivery.report.only.error": "the sink relies on its own value",
}
_WHERE = "as an option of the sink, with the prefix kafka."

DEFAULTS = {
    "enable.idempotence": "true",
    "partitioner": "murmur2_random",
    # Rows already come in batches. Even the smallest wait costs a row more than a millisecond, and
    # while requests are on their way, rows collect anyway.
    "queue.buffering.max.ms": "0",
    # An epoch of many small rows must fit. Memory is bounded by bytes, not by messages.
    "queue.buffering.max.messages": "1000000",
    "message.timeout.ms": "120000",
    "socket.nagle.disable": "true",
    "socket.keepalive.enable": "true",
    "reconnect.backoff.max.ms": "1000",
}
TRANSACTION_TIMEOUT_MS = 30_000
TRANSACTIONAL = {
    # A transaction is open only while an epoch is committed. If the driver dies meanwhile, readers
    # of committed records wait until this timeout, or until the next attempt claims the id.
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
    # The broker may still be ending the last transaction when the next begins: retry soon.
    "retry.backoff.ms": "10",
}
MAX_MESSAGE_BYTES = 1_000_000
"""librdkafka's default of message.max.bytes."""


def producer_settings(java: Mapping[str, str]) -> dict[str, str]:
    """The producer's settings in librdkafka's names; accepts Java's and librdkafka's names."""
    require_servers(java)
    found = client_settings(java, renamed=RENAMED, refused=REFUSED, where=_WHERE)
    if "buffer.memory" in java:  # Java counts bytes, librdkafka KiB
        found["queue.buffering.max.kbytes"] = str(max(1, int(java["buffer.memory"]) // 1024))
    return DEFAULTS | found


def transactional_settings(java: Mapping[str, str], transactional_id: str) -> dict[str, str]:
    """The settings of a transactional producer."""
    if java.get("enable.idempotence", "true").lower() != "true":
        raise OptionError(
            "kafka: kafka.enable.idempotence=false cannot be exactly once: a retry could write a "
            "record twice. Remove it, or choose delivery=at-least-once."
        )
    found = TRANSACTIONAL | producer_settings(java)
    # Retrying a message for longer than its transaction lives would be useless.
    if "message.timeout.ms" not in java and "delivery.timeout.ms" not in java:
        found["message.timeout.ms"] = found["transaction.timeout.ms"]
    return found | {"transactional.id": transactional_id}
