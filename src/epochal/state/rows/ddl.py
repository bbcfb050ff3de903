"""Parses Spark's DDL for the schema of a table, such as `"id string, total decimal(10,2)"`. Pure.

Spark parses such text in the JVM, which tasks do not have. This parser reads what Spark's reads for
columns: nested types, backticks, NOT NULL and COMMENT. It does not read generated columns, defaults
or collations.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from epochal.errors import StateSchemaError
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:-]))"
)
_PLAIN_NAMES = (
    *("boolean", "byte", "short", "integer", "long", "float", "double", "binary"),
    *("date", "timestamp", "timestamp_ntz", "void", "variant"),
)
_ALIASES = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_UNITS = ("year", "month", "day", "hour", "minute", "second")


@lru_cache(maxsize=256)
def parse_ddl(text: str) -> StructType:
    """The schema that the text declares; StateSchemaError if the text is not valid DDL."""
    parser = _Parser(text)
    schema = parser.columns()
    parser.end()
    return schema


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        place, stop = 0, len(text.rstrip())
        while place < stop:
            token = _TOKEN.match(text, place)
            if token is None:
                raise self._error(f"{text[place:]!r} is unexpected")
            self._tokens.append((token.lastgroup or "", token[token.lastgroup or 0]))
            place = token.end()
        self._at = 0

    def columns(self) -> StructType:
        fields = [self.column()]
        while self.skip(","):
            fields.append(self.column())
        return StructType(tuple(fields))

    def column(self) -> StructField:
        kind, name = self._next("a column's name")
        if kind == "quoted":
            name = name[1:-1].replace("``", "`")
        elif kind != "word":
            raise self._error(f"{name!r} is not a column's name")
        self.skip(":")
        data_type = self.type()
        nullable, metadata = True, "{}"
        if self._word("not"):
            if not self._word("null"):
                raise self._error("NOT is not followed by NULL")
            nullable = False
        if self._word("comment"):
            kind, comment = self._next("a comment")
            if kind != "text":
                raise self._error(f"the comment {comment} is not quoted")
            plain = re.sub(r"\\(.)", r"\1", comment[1:-1])
            metadata = json.dumps({"comment": plain}, separators=(",", ":"), ensure_ascii=False)
        return StructField(name, data_type, nullable, metadata)

    def type(self) -> DataType:
        kind, word = self._next("a type")
        name = word.lower() if kind == "word" else ""
        match name:
            case "string":
                return StringType()
            case "char" | "character" | "varchar":
                size = self._numbers(name, 1)[0]
                return StringType(f"{'varchar' if name == 'varchar' else 'char'}({size})")
            case "decimal" | "dec" | "numeric":
                precision, scale = (*self._numbers(name, 0), 10, 0)[:2]
                return DecimalType(precision, scale)
            case "array":
                self._need("<")
                element = self.type()
                self._need(">")
                return ArrayType(element)
            case "map":
                self._need("<")
                key = self.type()
                self._need(",")
                value = self.type()
                self._need(">")
                return MapType(key, value)
            case "struct":
                self._need("<")
                if self.skip(">"):
                    return StructType(())
                schema = self.columns()
                self._need(">")
                return schema
            case "interval":
                return self._interval()
            case "time":
                return AtomicType(f"time({(*self._numbers(name, 0), 6)[0]})")
            case _ if _ALIASES.get(name, name) in _PLAIN_NAMES:
                return AtomicType(_ALIASES.get(name, name))
        raise self._error(f"{word!r} is not a type")

    def skip(self, mark: str) -> bool:
        is_next = self._at < len(self._tokens) and self._tokens[self._at] == ("mark", mark)
        self._at += is_next
        return is_next

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at][1]!r} is unexpected")

    def _interval(self) -> AtomicType:
        first = next((unit for unit in _UNITS if self._word(unit)), None)
        if first is None:
            return AtomicType("interval")
        if not self._word("to"):
            return AtomicType(f"interval {first}")
        last = next((unit for unit in _UNITS if self._word(unit)), "")
        return AtomicType(f"interval {first} to {last}")

    def _numbers(self, name: str, needed: int) -> tuple[int, ...]:
        numbers: list[int] = []
        if self.skip("("):
            while True:
                negative = self.skip("-")
                kind, word = self._next("a number")
                if kind != "word" or not word.isdecimal():
                    raise self._error(f"{word!r} is not a number")
                numbers.append(-int(word) if negative else int(word))
                if not self.skip(","):
                    break
            self._need(")")
        if len(numbers) < needed:
            raise self._error(f"{name} needs {needed} number in parentheses")
        if len(numbers) == 1 and name in ("decimal", "dec", "numeric"):
            numbers.append(0)
        return tuple(numbers)

    def _word(self, word: str) -> bool:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "word" and text.lower() == word:
                self._at += 1
                return True
        return False

    def _need(self, mark: str) -> None:
        if not self.skip(mark):
            there = self._tokens[self._at][1] if self._at < len(self._tokens) else "the end"
            raise self._error(f"expected {mark!r}, found {there!r}")

    def _next(self, what: str) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._error(f"{what} is missing at the end")
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _error(self, reason: str) -> StateSchemaError:
        return StateSchemaError(f"schema {self._text!r}", reason)
