"""Translates settings of Kafka's Java client into librdkafka's names. Pure.

Spark's sources carry settings of the Java client. A client that only reads and writes group offsets
needs the connection settings; settings about fetching, polling or decoding are left out. A security
setting without a counterpart in librdkafka is an error: without it the connection would not be the
one that the user asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from epochal.errors import OptionError

COMMIT_GROUP = "consumer.commit.groupid"
"""The source's option, without kafka., that names the consumer group for its position."""
SAME = {
    "bootstrap.servers",
    "client.id",
    "client.dns.lookup",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}
JAAS = "sasl.jaas.config"
STORES = {
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
}
# Security settings that only tune the Java implementation; librdkafka has its own.
HARMLESS = {
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.keymanager.algorithm",
    "ssl.cipher.suites",
}
_HARMLESS_PREFIX = ("sasl.login.refresh.", "sasl.login.retry.", "sasl.login.connect.")
_MODULE = re.compile(
    r"^\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\s*(.*?);?\s*$", re.S
)
_PAIR = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;]+))")
_COMMITTER = "in OffsetCommitter(settings=…) or --client-config"
BYTES_ONLY = "keys and values are bytes"
JAVA_CODE = "it names Java code, and rows do not pass through a JVM"


def require_servers(java: Mapping[str, str]) -> None:
    """Raise OptionError if the settings do not name a broker."""
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
    found: dict[str, str] = {}
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
        found[key] = re.sub(r"\\([=:#! \\])", r"\1", value)
    return found


def connection_settings(java: Mapping[str, str], *, where: str = _COMMITTER) -> dict[str, str]:
    """librdkafka's settings for the connection that these Java settings describe.

    `where` appears in error messages: it tells the user where to give librdkafka's own settings.
    """
    found = {key: value for key, value in java.items() if key in SAME}
    _stores(java, found, where)
    if JAAS in java:
        _jaas(java, found, where)
    for key in java:
        if key.startswith(("ssl.", "sasl.")) and not _known(key):
            raise OptionError(
                f"Kafka setting {key} has no counterpart in librdkafka. "
                f"Give librdkafka's own setting instead, {where}."
            )
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def client_settings(
    java: Mapping[str, str], *, renamed: Mapping[str, str], refused: Mapping[str, str], where: str
) -> dict[str, str]:
    """All settings of a client that reads or writes, not only those of its connection.

    An unknown name is passed on, because it may be one of librdkafka's own.
    """
    for key in java:
        if key in refused:
            raise OptionError(f"kafka: kafka.{key} is not supported: {refused[key]}.")
    found = connection_settings(java, where=where)
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
        found[name] = "0" if name.endswith(".buffer.bytes") and value == "-1" else value
    return found


def _known(key: str) -> bool:
    return (
        key in SAME
        or key == JAAS
        or key in STORES
        or key in HARMLESS
        or key == "sasl.login.callback.handler.class"
        or key.startswith(_HARMLESS_PREFIX)
    )


def _stores(java: Mapping[str, str], found: dict[str, str], where: str) -> None:
    trusted, kind = java.get("ssl.truststore.location"), java.get("ssl.truststore.type", "JKS")
    if "ssl.truststore.certificates" in java:
        found["ssl.ca.pem"] = java["ssl.truststore.certificates"]
    elif trusted and kind.upper() == "PEM":
        found["ssl.ca.location"] = trusted
    elif trusted and "ssl.ca.location" not in java and "ssl.ca.pem" not in java:
        raise OptionError(
            f"Kafka setting ssl.truststore.location={trusted} is a {kind} store, which librdkafka "
            f"cannot read. Export the certificates as PEM and set ssl.ca.location to that file, "
            f"{where}."
        )
    own, kind = java.get("ssl.keystore.location"), java.get("ssl.keystore.type", "JKS")
    if "ssl.keystore.certificate.chain" in java:
        found["ssl.certificate.pem"] = java["ssl.keystore.certificate.chain"]
        found["ssl.key.pem"] = java.get("ssl.keystore.key", "")
    elif own and kind.upper() == "PEM":
        found["ssl.certificate.location"] = found["ssl.key.location"] = own
    elif own and kind.upper() == "PKCS12":
        found["ssl.keystore.location"] = own
    elif own and "ssl.certificate.location" not in java and "ssl.certificate.pem" not in java:
        raise OptionError(
            f"Kafka setting ssl.keystore.location={own} is a {kind} store, which librdkafka cannot "
            f"read. Convert it to PKCS12 or PEM and set ssl.keystore.location, or "
            f"ssl.certificate.location and ssl.key.location, {where}."
        )


def _jaas(java: Mapping[str, str], found: dict[str, str], where: str) -> None:
    match = _MODULE.match(java[JAAS])
    if match is None:
        raise OptionError(
            "Kafka setting sasl.jaas.config cannot be parsed. Write it in the form "
            '`MODULE required key="value";`.'
        )
    module, mechanism = match[1].rsplit(".", 1)[-1], java.get("sasl.mechanism", "GSSAPI")
    given = {
        name: re.sub(r"\\(.)", r"\1", double or single) if double or single else plain
        for name, double, single, plain in _PAIR.findall(match[2])
    }
    translate = _MODULES.get(module)
    if translate is None or (module == "OAuthBearerLoginModule" and "clientId" not in given):
        raise OptionError(
            f"Kafka setting sasl.jaas.config: {module} ({mechanism}) has no counterpart in "
            f"the librdkafka build on PyPI. Use PLAIN, SCRAM or OAuth client credentials, or "
            f"give librdkafka's own settings instead, {where}."
        )
    found |= translate(given)
    if module == "OAuthBearerLoginModule":
        url = java.get("sasl.oauthbearer.token.endpoint.url") or given.get("tokenEndpointUri")
        found |= {"sasl.oauthbearer.token.endpoint.url": url} if url else {}


def _password(given: Mapping[str, str]) -> dict[str, str]:
    return {
        "sasl.username": given.get("username", ""),
        "sasl.password": given.get("password", ""),
    }


def _oauth(given: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": given["clientId"],
        "sasl.oauthbearer.client.secret": given.get("clientSecret", ""),
    }
    if "scope" in given:
        settings["sasl.oauthbearer.scope"] = given["scope"]
    return settings


_MODULES: dict[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "PlainLoginModule": _password,
    "ScramLoginModule": _password,
    "OAuthBearerLoginModule": _oauth,
}
