"""Translates Java's consumer settings into librdkafka's, and adds the reader's defaults. Pure.

A Java setting without a counterpart is rejected with a reason; ignoring it would silently change
what the user asked for. A name that Java does not know is passed on, because it may be one of
librdkafka's own; the client rejects names that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.connectors.kafka.kafka_settings import BYTES_ONLY, JAVA_CODE, client_settings

RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
}
_START = "startingOffsets sets where a query starts, and its checkpoint where it continues"
_BYTES = f"{BYTES_ONLY}: decode them in the query"
_MEMBER = "it is about membership in a consumer group, and this source never joins one"
_POLL = "it tunes the Java client's poll, which this source does not use"
REFUSED = {
    "auto.offset.reset": _START,
    "enable.auto.commit": "offsets are committed with epochs: name the group with "
    "kafka.consumer.commit.groupid",
    "auto.commit.interval.ms": "offsets are committed with epochs",
    "enable.auto.offset.store": "offsets are committed with epochs",
    "enable.partition.eof": "the reader relies on its own value",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": JAVA_CODE,
    "metric.reporters": JAVA_CODE,
    "partition.assignment.strategy": _MEMBER,
    "group.instance.id": _MEMBER,
    "group.protocol": _MEMBER,
    "group.remote.assignor": _MEMBER,
    "session.timeout.ms": _MEMBER,
    "heartbeat.interval.ms": _MEMBER,
    "max.poll.interval.ms": _MEMBER,
    "max.poll.records": _POLL,
    "default.api.timeout.ms": _POLL,
    "exclude.internal.topics": "a pattern never matches an internal topic: subscribe to it by name",
    "security.providers": JAVA_CODE,
}
ADVICE = "as an option of the source, with the prefix kafka."

DEFAULTS = {
    # The default of Java and Spark. librdkafka's default hides uncommitted records.
    "isolation.level": "read_uncommitted",
    # A partition that is missing from a fetch request waits until that request returns. Data is
    # never delayed: a broker that has records answers at once.
    "fetch.wait.max.ms": "100",
    # How long a partition is not fetched after its queue was full. One second here would mean one
    # second of lag.
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "100",
    "socket.nagle.disable": "true",
    "socket.keepalive.enable": "true",
    # Reconnect soon after a broker is back; the client's default waits up to ten seconds.
    "reconnect.backoff.max.ms": "1000",
}


def consumer_settings(java: Mapping[str, str]) -> dict[str, str]:
    """The consumer's settings in librdkafka's names; accepts Java's and librdkafka's names."""
    return DEFAULTS | client_settings(java, renamed=RENAMED, refused=REFUSED, where=ADVICE)
