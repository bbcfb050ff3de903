"""Java's producer settings in librdkafka's words, and those that a sink starts from. Pure.

What a reader would get wrong: keys must land where Java's producer puts them, or a consumer that
joins two topics by key finds halves; librdkafka's own default is another hash.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.connectors.kafka.kafka_settings import client_settings
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
_BYTES = "keys and values are bytes already: encode them in the query"
_CODE = "it names Java code, and there is no JVM in the path of the rows"
_OURS = "the sink sets it, from the query's id"
REFUSED = {
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "partitioner.class": "keys go where Java's own partitioner puts them; name a partition by a "
    "column partition",
    "partitioner.ignore.keys": "keys go where Java's own partitioner puts them",
    "partitioner.adaptive.partitioning.enable": "it tunes the Java client's partitioner",
    "partitioner.availability.timeout.ms": "it tunes the Java client's partitioner",
    "interceptor.classes": _CODE,
    "metric.reporters": _CODE,
    "security.providers": _CODE,
    "max.block.ms": "a full buffer slows the query's reading down; nothing waits for it",
    "transactional.id": _OURS,
    "transaction.two.phase.commit.enable": "a transaction is committed as soon as it is complete",
    "delivery.report.only.error": "the sink needs it as it is",
}
_WHERE = "as an option of the sink, with kafka. before it"

DEFAULTS = {
    "enable.idempotence": "true",
    "partitioner": "murmur2_random",
    # Rows come in batches already; the smallest wait lets those of one turn go together.
    "queue.buffering.max.ms": "1",
    # An epoch of small rows must fit; what bounds memory are its bytes.
    "queue.buffering.max.messages": "1000000",
    "message.timeout.ms": "120000",
    "socket.nagle.disable": "true",
    "socket.keepalive.enable": "true",
    "reconnect.backoff.max.ms": "1000",
}
TRANSACTION_TIMEOUT_MS = 30_000
TRANSACTIONAL = {
    # A transaction is open only while an epoch is committed. Readers wait for one that was left
    # open by a driver that died, unless its successor comes first.
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
    # The broker still ends the last transaction when the next begins: ask again soon.
    "retry.backoff.ms": "10",
}
MAX_MESSAGE_BYTES = 1_000_000
"""librdkafka's default of message.max.bytes."""


def producer_settings(java: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka needs to write as these settings, in either's names, describe."""
    if not java.get("bootstrap.servers"):
        raise OptionError("kafka: option kafka.bootstrap.servers must be given.")
    found = client_settings(java, renamed=RENAMED, refused=REFUSED, where=_WHERE)
    if "buffer.memory" in java:  # in bytes
        found["queue.buffering.max.kbytes"] = str(max(1, int(java["buffer.memory"]) // 1024))
    return DEFAULTS | found


def transactional_settings(java: Mapping[str, str], transactional_id: str) -> dict[str, str]:
    """The same for a producer of transactions."""
    if java.get("enable.idempotence", "true").lower() != "true":
        raise OptionError(
            "kafka: kafka.enable.idempotence=false cannot be exactly once. Leave it out, or choose "
            "delivery=at-least-once."
        )
    found = TRANSACTIONAL | producer_settings(java)
    # A message may not be tried for longer than its transaction lives.
    if "message.timeout.ms" not in java and "delivery.timeout.ms" not in java:
        found["message.timeout.ms"] = found["transaction.timeout.ms"]
    return found | {"transactional.id": transactional_id}
