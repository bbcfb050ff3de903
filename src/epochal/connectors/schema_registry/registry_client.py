"""Asks a schema registry, with the REST API that Confluent defined and others speak as well.

A schema never changes under its id, so every answer about an id is kept.

Note: redirects are not followed. They would send the credentials to another host.

A value has a header with the id of its schema, then the payload:

byte 0      0, the magic byte
bytes 1-4   the id of the schema, big-endian
Protobuf    where the message is in its file: a count and that many indices, as zigzag varints.
            One byte 0 stands for the usual case, the first message of the file
the rest    the payload
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from epochal.errors import OptionError, PayloadError, SchemaRegistryError
from epochal.options import suggestion

TRIES = 4
MOST_REFERENCES = 200
BACKOFF_SECONDS = 0.2
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
URL, USER_INFO, TIMEOUT = "url", "basic.auth.user.info", "request.timeout.ms"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
KNOWN = (URL, USER_INFO, TIMEOUT, CA, CERTIFICATE, KEY)
MAGIC = 0
HEADER_BYTES = 5
MAX_DEPTH = 64
"""Messages are not nested deeper than this."""
_UNKNOWN_SUBJECT, _UNKNOWN_VERSION, _UNKNOWN_SCHEMA = 40401, 40402, 40403
_NOT_FOUND = (_UNKNOWN_SUBJECT, _UNKNOWN_VERSION, _UNKNOWN_SCHEMA, 404)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach a registry. It is pickled and sent to tasks."""

    urls: tuple[str, ...]
    authorization: str | None = field(default=None, repr=False)
    timeout_seconds: float = 10.0
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def shown(self) -> str:
        return ", ".join(self.urls)


def registry_settings(options: Mapping[str, str]) -> RegistrySettings:
    """Read the options that start with `schemaRegistry.`, with that part removed."""
    settings = {key.lower(): text for key, text in options.items()}
    for key in settings:
        if key not in KNOWN:
            raise OptionError(f"There is no option schemaRegistry.{key}.{suggestion(key, KNOWN)}")
    urls, user_info = [], settings.get(USER_INFO)
    for text in settings.get(URL, "").split(","):
        parts = urlsplit(text.strip().rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(
                "schemaRegistry.url must be the http or https address of a schema registry, or "
                "several, separated by commas."
            )
        if parts.username is not None:
            user_info = user_info or f"{parts.username}:{parts.password or ''}"
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        urls.append(urlunsplit(parts))
    try:
        seconds = int(settings.get(TIMEOUT, "10000")) / 1000
    except ValueError:
        raise OptionError(
            f"schemaRegistry.{TIMEOUT} must be a whole number, not {settings[TIMEOUT]!r}."
        ) from None
    encoded = None if user_info is None else base64.b64encode(user_info.encode()).decode()
    return RegistrySettings(
        tuple(urls),
        None if encoded is None else f"Basic {encoded}",
        seconds,
        *(settings.get(name) for name in (CA, CERTIFICATE, KEY)),
    )


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema, and those that it refers to, the ones needed first first."""

    id: int
    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """(name, text)."""


class RegistryClient:
    """One registry. Answers about ids are kept."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._by_id: dict[tuple[int, bool], RegisteredSchema] = {}
        self._opener = urllib.request.build_opener(
            _NoRedirects(), urllib.request.HTTPSHandler(context=_tls(settings))
        )

    def schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        """The schema with an id; `serialized` asks for Protobuf as base64 instead of text."""
        schema = self._by_id.get((schema_id, serialized))
        if schema is None:
            answer = self._ask(f"schemas/ids/{schema_id}{_format(serialized)}")
            if answer is None:
                raise SchemaRegistryError(
                    self._settings.shown,
                    f"it has no schema with id {schema_id}, but a record was written with that id. "
                    f"Either the record was written with another registry, or the schema was "
                    f"deleted there. Correct schemaRegistry.url, or restore the schema",
                )
            references: dict[str, str] = {}
            self._add_references(answer, serialized, references, ())
            kind, text = str(answer.get("schemaType", "AVRO")), str(answer["schema"])
            schema = RegisteredSchema(schema_id, kind, text, tuple(references.items()))
            self._by_id[schema_id, serialized] = schema
        return schema

    def version(self, subject: str, version: int | None) -> tuple[int, int] | None:
        """The version and id of a subject's schema, None if there is none; None asks for the
        latest."""
        wanted = "latest" if version is None else version
        answer = self._ask(f"subjects/{quote(subject, safe='')}/versions/{wanted}")
        return None if answer is None else (int(answer["version"]), int(answer["id"]))

    def register(self, subject: str, kind: str, text: str) -> int:
        """Add a schema to a subject, unless it has it; return its id."""
        answer = self._ask(f"subjects/{quote(subject, safe='')}/versions", _body(kind, text))
        if answer is None:
            raise SchemaRegistryError(
                self._settings.shown, f"subject {subject} cannot be created there"
            )
        return int(answer["id"])

    def lookup(self, subject: str, kind: str, text: str) -> int | None:
        """The id of a schema in a subject; None if it is not registered there."""
        answer = self._ask(f"subjects/{quote(subject, safe='')}", _body(kind, text))
        return None if answer is None else int(answer["id"])

    def _add_references(
        self,
        answer: Mapping[str, Any],
        serialized: bool,
        references: dict[str, str],
        above: tuple[str, ...],
    ) -> None:
        """Add what a schema refers to. `above` are the names that led to it."""
        for reference in answer.get("references") or ():
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            if name in references:
                continue
            if name in above or len(above) + len(references) >= MOST_REFERENCES:
                how = "in a circle" if name in above else f"more than {MOST_REFERENCES} times"
                raise SchemaRegistryError(
                    self._settings.shown,
                    f"its schemas refer to each other {how}, at {name}. Register a version of "
                    f"that schema which does not",
                )
            path = f"subjects/{quote(subject, safe='')}/versions/{version}{_format(serialized)}"
            inner = self._ask(path)
            if inner is None:
                raise SchemaRegistryError(
                    self._settings.shown,
                    f"a schema refers to version {version} of subject {subject}, but that is not "
                    f"there",
                )
            self._add_references(inner, serialized, references, (*above, name))
            references[name] = str(inner["schema"])

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        """The answer; None if the thing does not exist. Tries every address several times."""
        settings, failure = self._settings, ""
        cause: Exception | None = None
        for attempt in range(TRIES):
            if attempt:
                time.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
            for url in settings.urls:
                request = urllib.request.Request(f"{url}/{path}", body)
                request.add_header("Accept", f"{CONTENT_TYPE}, application/json")
                if body is not None:
                    request.add_header("Content-Type", CONTENT_TYPE)
                if settings.authorization is not None:
                    request.add_header("Authorization", settings.authorization)
                try:
                    with self._opener.open(request, timeout=settings.timeout_seconds) as answer:
                        return json.load(answer)
                except urllib.error.HTTPError as error:
                    code, reason = _error(error)
                    if code in _NOT_FOUND:
                        return None
                    if error.code < 500 and error.code != 429:
                        raise SchemaRegistryError(url, f"it refused {path}: {reason}") from None
                    failure, cause = reason, error
                except (OSError, ValueError) as error:
                    failure, cause = str(getattr(error, "reason", error)), error
        raise SchemaRegistryError(
            settings.shown, f"it did not answer {TRIES} requests for {path}: {failure}"
        ) from cause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _format(serialized: bool) -> str:
    return "?format=serialized" if serialized else ""


def _body(kind: str, text: str) -> bytes:
    # Registries that know only Avro have no field schemaType.
    body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
    return json.dumps(body).encode()


def _error(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own code, or HTTP's, and the reason."""
    with error:
        try:
            answer = json.loads(error.read(100_000))
            text = str(answer.get("message", answer))[:500].rstrip(".")
            return int(answer.get("error_code", error.code)), f"{text} (HTTP {error.code})"
        except (ValueError, TypeError, AttributeError, OSError):
            return error.code, f"HTTP {error.code} {error.reason}"


def _tls(settings: RegistrySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:
        raise OptionError(
            f"schemaRegistry.ssl: a certificate or key cannot be read: {error}. Give paths of PEM "
            f"files that exist on every host."
        ) from None
    return context


def schema_id(value: bytes) -> int:
    """The id in a value's header; PayloadError if there is none."""
    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        start = value[:HEADER_BYTES].hex(" ") or "nothing"
        raise PayloadError(
            f"the value of {len(value)} bytes begins with {start}, not with the byte 0 and the id "
            f"of a schema, so it was not written with a schema registry"
        )
    return int.from_bytes(value[1:HEADER_BYTES])


def header(schema: int, indices: Sequence[int] | None = None) -> bytes:
    """The header of values; `indices` only for Protobuf."""
    start = bytes([MAGIC]) + schema.to_bytes(4)
    if indices is None:
        return start
    if list(indices) == [0]:
        return start + b"\x00"
    return start + b"".join(_varint(number) for number in (len(indices), *indices))


def message_indices(value: bytes) -> tuple[tuple[int, ...], int]:
    """Where a Protobuf message is in its file, and where in the value the payload begins."""
    count, at = _read_varint(value, HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_DEPTH:
        raise PayloadError(f"the header names {count} message indices, which is not possible")
    indices = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        indices.append(index)
    return tuple(indices), at


def _varint(number: int) -> bytes:
    # Zigzag: 0, -1, 1, -2, … become 0, 1, 2, 3, …, so that small numbers stay short.
    left, encoded = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise PayloadError("the header's message indices end too early")
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
