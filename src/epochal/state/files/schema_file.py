"""Parses and writes state schema files, versions 1 to 3. Pure.

Spark writes them with Java's DataOutput. Strings are in modified UTF-8: NUL takes two bytes, and a
character outside the first 65536 is written as its two surrogates. A schema longer than 65535
characters is split into chunks. A character here is one of Java's 16-bit units, so a chunk may end
in the middle of a surrogate pair.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from epochal.errors import StateSchemaError, UnsupportedVersionError
from epochal.state.rows.types import StructType, parse_schema, schema_json
from epochal.wording import counted

NEWEST_VERSION = 3
DEFAULT_FAMILY = "default"
_CHUNK_CHARACTERS = 65535
_NO_USER_KEY = "{    }"
_ENCODERS = {
    "NoPrefixKeyStateEncoderSpec": "plain",
    "PrefixKeyScanStateEncoderSpec": "prefix",
    "RangeKeyScanStateEncoderSpec": "range",
    "TimestampAsPrefixKeyStateEncoderSpec": "timestamp-prefix",
    "TimestampAsPostfixKeyStateEncoderSpec": "timestamp-postfix",
}
_ENCODER_NAMES = {kind: name for name, kind in _ENCODERS.items()}


@dataclass(frozen=True, slots=True)
class KeyEncoder:
    """How a RocksDB-backed store turns keys into bytes that sort as its operator needs.

    `kind` is plain, prefix, range, timestamp-prefix or timestamp-postfix.
    """

    kind: str
    prefix_columns: int = 0
    ordering: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FamilySchema:
    """The schemas of one column family; a store without families has a single one, `default`."""

    name: str
    key: StructType
    value: StructType
    key_schema_id: int = 0
    value_schema_id: int = 0
    encoder: KeyEncoder | None = None
    user_key: StructType | None = None


def parse_schema_file(data: bytes, *, source: str = "state schema") -> list[FamilySchema]:
    """Read the column families in the file; StateSchemaError if it is not a schema file."""
    reader = _Reader(data, source)
    version = reader.version()
    if version > NEWEST_VERSION:
        raise UnsupportedVersionError(source, version, NEWEST_VERSION)
    if version < 3:
        read = reader.utf if version == 1 else reader.text
        key, value = reader.schema(read()), reader.schema(read())
        families = [FamilySchema(DEFAULT_FAMILY, key, value)]
        reader.finish()
        return families
    try:
        families = [_read_family(reader) for _ in range(reader.number(">i"))]
        reader.finish()
    except StateSchemaError:
        if _is_of_a_preview(data):
            raise StateSchemaError(
                source,
                "it has the layout of the previews of Spark 4.0.0, which lacks the schemas' ids. "
                "No release of Spark reads it",
            ) from None
        raise
    return families


def _is_of_a_preview(data: bytes) -> bool:
    reader = _Reader(data, "")
    try:
        reader.version()
        for _ in range(reader.number(">i")):
            _read_family(reader, has_ids=False)
        reader.finish()
    except StateSchemaError:
        return False
    return True


def encode_schema_file(families: Sequence[FamilySchema], *, version: int = 2) -> bytes:
    """Write the column families as Spark does; versions 1 and 2 hold exactly one."""
    out = [_utf(f"v{version}")]
    if version < 3:
        (family,) = families
        write = _utf if version == 1 else _text
        return b"".join([*out, write(schema_json(family.key)), write(schema_json(family.value))])
    out.append(struct.pack(">i", len(families)))
    for family in families:
        user_key = _NO_USER_KEY if family.user_key is None else schema_json(family.user_key)
        out += (
            _utf(family.name),
            struct.pack(">h", family.key_schema_id),
            _text(schema_json(family.key)),
            struct.pack(">h", family.value_schema_id),
            _text(schema_json(family.value)),
            _text(_encoder_json(family.encoder or KeyEncoder("plain"))),
            _text(user_key),
        )
    return b"".join(out)


def _read_family(reader: _Reader, *, has_ids: bool = True) -> FamilySchema:
    name = reader.utf()
    key_id = reader.number(">h") if has_ids else 0
    key = reader.schema(reader.text())
    value_id = reader.number(">h") if has_ids else 0
    value = reader.schema(reader.text())
    encoder = reader.encoder(reader.text())
    user_key = reader.text()
    user = reader.schema(user_key) if user_key.strip("{ }") else None
    return FamilySchema(name, key, value, key_id, value_id, encoder, user)


def _encoder_json(encoder: KeyEncoder) -> str:
    document: dict[str, object] = {"keyStateEncoderType": _ENCODER_NAMES[encoder.kind]}
    if encoder.kind == "prefix":
        document["numColsPrefixKey"] = encoder.prefix_columns
    if encoder.kind == "range":
        document["orderingOrdinals"] = list(encoder.ordering)
    return json.dumps(document, separators=(",", ":"))


class _Reader:
    """Java's DataInput over one file; StateSchemaError if the file is malformed."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data = data
        self._source = source
        self._at = 0

    def version(self) -> int:
        text = self.utf()
        if not (re.fullmatch(r"v\d{1,9}", text, re.ASCII) and int(text[1:])):
            raise self._error(f"its version line is {text[:20]!r}, not v and a number")
        return int(text[1:])

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        return int(struct.unpack(form, self._take(size))[0])

    def utf(self) -> str:
        return self._surrogates_joined(self._utf_units())

    def text(self) -> str:
        count = self.number(">i")
        if not 0 <= count <= len(self._data) - self._at:
            raise self._error(f"a text claims {count} chunks")
        return self._surrogates_joined("".join(self._utf_units() for _ in range(count)))

    def schema(self, text: str) -> StructType:
        return parse_schema(text, source=self._source)

    def encoder(self, text: str) -> KeyEncoder:
        try:
            match json.loads(text):
                case {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec"} as document:
                    return KeyEncoder("prefix", prefix_columns=int(document["numColsPrefixKey"]))
                case {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec"} as document:
                    ordinals = tuple(int(ordinal) for ordinal in document["orderingOrdinals"])
                    return KeyEncoder("range", ordering=ordinals)
                case {"keyStateEncoderType": str(name)} if name in _ENCODERS:
                    return KeyEncoder(_ENCODERS[name])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._error(f"{text[:120]!r} is not a key encoder")

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self._error(f"{len(self._data) - self._at} bytes follow its end")

    def _utf_units(self) -> str:
        length = self.number(">H")
        raw = self._take(length)
        try:
            units = raw.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self._error(f"a text is not modified UTF-8 ({error.reason})") from None
        if any(ord(unit) > 0xFFFF for unit in units):
            raise self._error("a text is plain UTF-8, which Java cannot read here")
        return units

    def _surrogates_joined(self, units: str) -> str:
        try:
            return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
        except UnicodeDecodeError:
            raise self._error("a text has half a character") from None

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise self._error(f"it ends {counted(size - len(taken), 'byte')} early")
        self._at += size
        return taken

    def _error(self, reason: str) -> StateSchemaError:
        return StateSchemaError(f"{self._source}, byte {self._at}", reason)


def _units(text: str) -> list[str]:
    """The text as Java's 16-bit units: a character outside the first 65536 becomes two."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return [chr(unit) for (unit,) in struct.iter_unpack(">H", raw)]


def _utf(text: str) -> bytes:
    raw = "".join(_units(text)).encode("utf-8", "surrogatepass").replace(b"\x00", b"\xc0\x80")
    if len(raw) > 0xFFFF:
        raise StateSchemaError(
            "state schema",
            f"a chunk of {len(text)} characters takes {len(raw)} bytes, Java's format ends at "
            f"65535. Spark cannot write such a schema either",
        )
    return struct.pack(">H", len(raw)) + raw


def _text(text: str) -> bytes:
    units = "".join(_units(text))
    starts = range(0, max(len(units), 1), _CHUNK_CHARACTERS)
    chunks = [_utf(units[start : start + _CHUNK_CHARACTERS]) for start in starts]
    return struct.pack(">i", len(chunks)) + b"".join(chunks)
