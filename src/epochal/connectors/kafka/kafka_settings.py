"""Translates settings of Kafka's Java client into librdkafka's, and adds defaults. Pure.

Spark's sources carry settings of the Java client. `connection_settings`, `consumer_settings` and
`producer_settings` make those of a client, of a reader and of a sink. A client that only reads and
writes group offsets needs the connection settings; settings about fetching, polling or decoding are
left out. A security setting without a counterpart in librdkafka is an error: without it the
connection would not be the one that the user asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from epochal.errors import OptionError

COMMIT_GROUP = "consumer.commit.groupid"
"""The source's option, without kafka., that names the consumer group for its position."""
SAME = {
    *("bootstrap.servers", "client.id", "client.dns.lookup"),
    *("connections.max.idle.ms", "metadata.max.age.ms"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.keystore.password"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
}
JAAS = "sasl.jaas.config"
STORES = {
    *("ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password"),
    *("ssl.truststore.certificates", "ssl.keystore.location", "ssl.keystore.type"),
    *("ssl.keystore.certificate.chain", "ssl.keystore.key"),
}
# Security settings that only tune the Java implementation; librdkafka has its own.
HARMLESS = {
    *("ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "ssl.cipher.suites"),
    *("ssl.secure.random.implementation", "ssl.trustmanager.algorithm"),
    "ssl.keymanager.algorithm",
}
_HARMLESS_PREFIX = ("sasl.login.refresh.", "sasl.login.retry.", "sasl.login.connect.")
KNOWN = SAME | STORES | HARMLESS | {JAAS, "sasl.login.callback.handler.class"}
_MODULE = re.compile(
    r"^\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\s*(.*?);?\s*$", re.S
)
_PAIR = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;]+))")
_COMMITTER = "in OffsetCommitter(settings=…) or --client-config"
BYTES_ONLY = "keys and values are bytes"
JAVA_CODE = "it names Java code, and rows do not pass through a JVM"


def require_servers(java: Mapping[str, str]) -> None:
    if not java.get("bootstrap.servers"):
        raise OptionError(
            "kafka: option kafka.bootstrap.servers must be given. Set it to host:port of one or "
            "more brokers, separated by commas."
        )


def kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """The client's settings among a Spark source's options, without the prefix `kafka.`."""
    return {
        key.lower().removeprefix("kafka."): value
        for key, value in options.items()
        if key.lower().startswith("kafka.")
    }


def parse_properties(text: str) -> dict[str, str]:
    """The settings in a Java properties file, as Kafka's tools accept with --command-config."""
    properties: dict[str, str] = {}
    joined = re.sub(r"\\\r?\n\s*", "", text)
    for number, line in enumerate(joined.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = re.sub(r"\s*[=:]\s*", "\0", line, count=1).partition("\0")
        if not equals:
            raise OptionError(
                f"Setting {number} of the properties file is not in the form key=value. Correct "
                f"it, or start its line with # to make it a comment."
            )
        properties[key] = re.sub(r"\\([=:#! \\])", r"\1", value)
    return properties


def connection_settings(java: Mapping[str, str], *, where: str = _COMMITTER) -> dict[str, str]:
    """librdkafka's settings for the connection that these Java settings describe.

    `where` appears in error messages: it tells the user where to give librdkafka's own settings.
    """
    settings = {key: value for key, value in java.items() if key in SAME}
    _stores(java, settings, where)
    if JAAS in java:
        _jaas(java, settings, where)
    for key in java:
        is_known = key in KNOWN or key.startswith(_HARMLESS_PREFIX)
        if key.startswith(("ssl.", "sasl.")) and not is_known:
            raise OptionError(
                f"Kafka setting {key} has no counterpart in librdkafka. "
                f"Give librdkafka's own setting instead, {where}."
            )
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return settings


def client_settings(
    java: Mapping[str, str], *, renamed: Mapping[str, str], refused: Mapping[str, str], where: str
) -> dict[str, str]:
    """All settings of a client that reads or writes, not only those of its connection.

    An unknown name is passed on, because it may be one of librdkafka's own.
    """
    for key in java:
        if key in refused:
            raise OptionError(f"kafka: kafka.{key} is not supported: {refused[key]}.")
    settings = connection_settings(java, where=where)
    for key, value in java.items():
        if key in SAME or key.startswith(("ssl.", "sasl.")):
            continue
        name = renamed.get(key, key)
        if name != key and name in java:
            raise OptionError(
                f"kafka: kafka.{key} and kafka.{name} are the same setting, and both are given. "
                f"Remove one of them."
            )
        # -1 means the operating system's default in Java; librdkafka uses 0 for it.
        settings[name] = "0" if name.endswith(".buffer.bytes") and value == "-1" else value
    return settings


def _stores(java: Mapping[str, str], settings: dict[str, str], where: str) -> None:
    trusted, kind = java.get("ssl.truststore.location"), java.get("ssl.truststore.type", "JKS")
    if "ssl.truststore.certificates" in java:
        settings["ssl.ca.pem"] = java["ssl.truststore.certificates"]
    elif trusted and kind.upper() == "PEM":
        settings["ssl.ca.location"] = trusted
    elif trusted and "ssl.ca.location" not in java and "ssl.ca.pem" not in java:
        raise OptionError(
            f"Kafka setting ssl.truststore.location={trusted} is a {kind} store, which librdkafka "
            f"cannot read. Export the certificates as PEM and set ssl.ca.location to that file, "
            f"{where}."
        )
    own, kind = java.get("ssl.keystore.location"), java.get("ssl.keystore.type", "JKS")
    if "ssl.keystore.certificate.chain" in java:
        settings["ssl.certificate.pem"] = java["ssl.keystore.certificate.chain"]
        settings["ssl.key.pem"] = java.get("ssl.keystore.key", "")
    elif own and kind.upper() == "PEM":
        settings["ssl.certificate.location"] = settings["ssl.key.location"] = own
    elif own and kind.upper() == "PKCS12":
        settings["ssl.keystore.location"] = own
    elif own and "ssl.certificate.location" not in java and "ssl.certificate.pem" not in java:
        raise OptionError(
            f"Kafka setting ssl.keystore.location={own} is a {kind} store, which librdkafka cannot "
            f"read. Convert it to PKCS12 or PEM and set ssl.keystore.location, or "
            f"ssl.certificate.location and ssl.key.location, {where}."
        )


def _jaas(java: Mapping[str, str], settings: dict[str, str], where: str) -> None:
    match = _MODULE.match(java[JAAS])
    if match is None:
        raise OptionError(
            "Kafka setting sasl.jaas.config cannot be parsed. Write it in the form "
            '`MODULE required key="value";`.'
        )
    module, mechanism = match[1].rsplit(".", 1)[-1], java.get("sasl.mechanism", "GSSAPI")
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) if double or single else plain
        for name, double, single, plain in _PAIR.findall(match[2])
    }
    match module:
        case "PlainLoginModule" | "ScramLoginModule":
            settings["sasl.username"] = options.get("username", "")
            settings["sasl.password"] = options.get("password", "")
        case "OAuthBearerLoginModule" if "clientId" in options:
            settings["sasl.oauthbearer.method"] = "oidc"
            settings["sasl.oauthbearer.client.id"] = options["clientId"]
            settings["sasl.oauthbearer.client.secret"] = options.get("clientSecret", "")
            if "scope" in options:
                settings["sasl.oauthbearer.scope"] = options["scope"]
            url = java.get("sasl.oauthbearer.token.endpoint.url") or options.get("tokenEndpointUri")
            if url:
                settings["sasl.oauthbearer.token.endpoint.url"] = url
        case _:
            raise OptionError(
                f"Kafka setting sasl.jaas.config: {module} ({mechanism}) has no counterpart in "
                f"the librdkafka build on PyPI. Use PLAIN, SCRAM or OAuth client credentials, or "
                f"give librdkafka's own settings instead, {where}."
            )


CONSUMER_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
}
_START = "startingOffsets sets where a query starts, and its checkpoint where it continues"
_DECODE = f"{BYTES_ONLY}: decode them in the query"
_MEMBER = "it is about membership in a consumer group, and this source never joins one"
_POLL = "it tunes the Java client's poll, which this source does not use"
CONSUMER_REFUSED = {
    "auto.offset.reset": _START,
    "enable.auto.commit": "offsets are committed with epochs: name the group with "
    "kafka.consumer.commit.groupid",
    "auto.commit.interval.ms": "offsets are committed with epochs",
    "enable.auto.offset.store": "offsets are committed with epochs",
    "enable.partition.eof": "the reader relies on its own value",
    "key.deserializer": _DECODE,
    "value.deserializer": _DECODE,
    "interceptor.classes": JAVA_CODE,
    "metric.reporters": JAVA_CODE,
    **dict.fromkeys(("group.instance.id", "group.protocol", "group.remote.assignor"), _MEMBER),
    **dict.fromkeys(("session.timeout.ms", "heartbeat.interval.ms"), _MEMBER),
    **dict.fromkeys(("partition.assignment.strategy", "max.poll.interval.ms"), _MEMBER),
    "max.poll.records": _POLL,
    "default.api.timeout.ms": _POLL,
    "exclude.internal.topics": "a pattern never matches an internal topic: subscribe to it by name",
    "security.providers": JAVA_CODE,
}
SOURCE_ADVICE = "as an option of the source, with the prefix kafka."

CONSUMER_DEFAULTS = {
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
    """The consumer's settings in librdkafka's names; accepts Java's and librdkafka's names.

    A Java setting without a counterpart is rejected with a reason; ignoring it would silently
    change what the user asked for. A name that Java does not know is passed on, because it may be
    one of librdkafka's own; the client rejects names that it does not know.
    """
    return CONSUMER_DEFAULTS | client_settings(
        java, renamed=CONSUMER_RENAMED, refused=CONSUMER_REFUSED, where=SOURCE_ADVICE
    )


PRODUCER_RENAMED = {
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
_ENCODE = f"{BYTES_ONLY}: encode them in the query"
_SET_BY_SINK = "the sink sets it, from the query's id"
_PARTITIONER = "keys go to the partition that Java's own partitioner chooses"
_JAVA_TUNING = "it tunes the Java client's partitioner"
PRODUCER_REFUSED = {
    "key.serializer": _ENCODE,
    "value.serializer": _ENCODE,
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
_SINK_ADVICE = "as an option of the sink, with the prefix kafka."

PRODUCER_DEFAULTS = {
    "enable.idempotence": "true",
    # Java's own, not librdkafka's default. A consumer that joins two topics by key relies on equal
    # keys being in equal partitions, whichever producer wrote them.
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
    settings = client_settings(
        java, renamed=PRODUCER_RENAMED, refused=PRODUCER_REFUSED, where=_SINK_ADVICE
    )
    if "buffer.memory" in java:  # Java counts bytes, librdkafka KiB
        settings["queue.buffering.max.kbytes"] = str(max(1, int(java["buffer.memory"]) // 1024))
    return PRODUCER_DEFAULTS | settings


def transactional_settings(java: Mapping[str, str], transactional_id: str) -> dict[str, str]:
    if java.get("enable.idempotence", "true").lower() != "true":
        raise OptionError(
            "kafka: kafka.enable.idempotence=false cannot be exactly once: a retry could write a "
            "record twice. Remove it, or choose delivery=at-least-once."
        )
    settings = TRANSACTIONAL | producer_settings(java)
    # Retrying a message for longer than its transaction lives would be useless.
    if "message.timeout.ms" not in java and "delivery.timeout.ms" not in java:
        settings["message.timeout.ms"] = settings["transaction.timeout.ms"]
    return settings | {"transactional.id": transactional_id}
