"""Java's consumer settings in librdkafka's words, and those that a reader starts from. Pure.

What a reader would get wrong: a name that is no Java setting is passed on, because it may be one of
librdkafka's own; the client refuses what it does not know. A Java setting without a counterpart is
refused here, with the reason: a source that ignores what it was told is another source.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.connectors.kafka.kafka_settings import client_settings

RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
}
_START = "where a query starts is said by startingOffsets, where it goes on by its checkpoint"
_BYTES = "keys and values come as bytes: decode them in the query"
_MEMBER = "it is about membership in a consumer group, and this source never joins one"
_POLL = "it tunes the Java client's poll, and there is none here"
_CODE = "it names Java code, and there is no JVM in the path of the rows"
REFUSED = {
    "auto.offset.reset": _START,
    "enable.auto.commit": "offsets are committed with epochs: name a group with "
    "kafka.consumer.commit.groupid",
    "auto.commit.interval.ms": "offsets are committed with epochs",
    "enable.auto.offset.store": "offsets are committed with epochs",
    "enable.partition.eof": "the reader needs it as it is",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": _CODE,
    "metric.reporters": _CODE,
    "partition.assignment.strategy": _MEMBER,
    "group.instance.id": _MEMBER,
    "group.protocol": _MEMBER,
    "group.remote.assignor": _MEMBER,
    "session.timeout.ms": _MEMBER,
    "heartbeat.interval.ms": _MEMBER,
    "max.poll.interval.ms": _MEMBER,
    "max.poll.records": _POLL,
    "default.api.timeout.ms": _POLL,
    "exclude.internal.topics": "a pattern matches no internal topic; subscribe by name",
    "security.providers": _CODE,
}
ADVICE = "as an option of the source, with kafka. before it"

DEFAULTS = {
    # Java's, and Spark's: without it librdkafka hides what is not committed.
    "isolation.level": "read_uncommitted",
    # A partition that was left out of a fetch waits for the one in flight; data never waits.
    "fetch.wait.max.ms": "100",
    # How long a partition rests after its queue was full. A second of it would be a second's lag.
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "100",
    "socket.nagle.disable": "true",
    "socket.keepalive.enable": "true",
    # A broker that is back is to be found soon; by default a client waits up to ten seconds.
    "reconnect.backoff.max.ms": "1000",
}


def consumer_settings(java: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka needs to read as these settings, in either's names, describe."""
    return DEFAULTS | client_settings(java, renamed=RENAMED, refused=REFUSED, where=ADVICE)
