"""Parses JSON as leniently as Jackson with Spark's settings. Pure.

Texts may have single quotes, and NaN and Infinity are numbers. Whatever follows the first value is
not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_MAX_DEPTH = 1000


class MalformedJson(Exception):
    """A text is not JSON."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value: its kind, its content, and where it is in the text.

    Kinds and contents: object (pairs of a name and a node), array (nodes), string (str), integer
    and float (the number's text), true, false, null.
    """

    kind: str
    value: Any
    start: int
    end: int


def parse(text: str, *, strict_numbers: bool = False) -> Node | None:
    """The first value in a text; None if there is none.

    With `strict_numbers`, NaN is no number, but texts may contain control characters: Spark has
    these settings for get_json_object, json_array_length and json_object_keys.
    """
    start = _skip(text, 0)
    if start == len(text):
        return None
    return (_STRICT_NUMBERS if strict_numbers else _LENIENT).value(text, start, 0)


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _ended(text: str, node: Node) -> Node:
    """A number or a word must not run into other characters."""
    following = text[node.end : node.end + 1]
    if following and (following.isalnum() or following in "._$-+"):
        raise MalformedJson(node.end)
    return node


@dataclass(frozen=True, slots=True)
class _Parser:
    words: re.Pattern[str]
    plain: dict[str, re.Pattern[str]]
    """The characters that a text may contain, by its quotes."""

    def value(self, text: str, at: int, depth: int) -> Node:
        first = text[at : at + 1]
        if depth > _MAX_DEPTH:
            raise MalformedJson(at)
        if first == "{":
            return self._object(text, at, depth)
        if first == "[":
            return self._array(text, at, depth)
        if first in ('"', "'") and first:
            value, end = self._string(text, at)
            return Node("string", value, at, end)
        found = self.words.match(text, at)
        if found:
            word = found.group()
            kind = word if word in ("true", "false", "null") else "float"
            return _ended(text, Node(kind, word, at, found.end()))
        found = _NUMBER.match(text, at)
        if found is None:
            raise MalformedJson(at)
        kind = "float" if found.group(1) or found.group(2) else "integer"
        return _ended(text, Node(kind, found.group(), at, found.end()))

    def _object(self, text: str, start: int, depth: int) -> Node:
        pairs: list[tuple[str, Node]] = []
        at = _skip(text, start + 1)
        if text[at : at + 1] == "}":
            return Node("object", pairs, start, at + 1)
        while True:
            if text[at : at + 1] not in ('"', "'"):
                raise MalformedJson(at)
            name, at = self._string(text, at)
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise MalformedJson(at)
            node = self.value(text, _skip(text, at + 1), depth + 1)
            pairs.append((name, node))
            at = _skip(text, node.end)
            if text[at : at + 1] == "}":
                return Node("object", pairs, start, at + 1)
            if text[at : at + 1] != ",":
                raise MalformedJson(at)
            at = _skip(text, at + 1)

    def _array(self, text: str, start: int, depth: int) -> Node:
        values: list[Node] = []
        at = _skip(text, start + 1)
        if text[at : at + 1] == "]":
            return Node("array", values, start, at + 1)
        while True:
            node = self.value(text, at, depth + 1)
            values.append(node)
            at = _skip(text, node.end)
            if text[at : at + 1] == "]":
                return Node("array", values, start, at + 1)
            if text[at : at + 1] != ",":
                raise MalformedJson(at)
            at = _skip(text, at + 1)

    def _string(self, text: str, start: int) -> tuple[str, int]:
        quote, at = text[start], start + 1
        parts: list[str] = []
        while True:
            found = self.plain[quote].match(text, at)
            assert found is not None
            parts.append(found.group())
            at = found.end()
            mark = text[at : at + 1]
            if mark == quote:
                return _joined(parts), at + 1
            if mark != "\\":
                raise MalformedJson(at)
            escape = text[at + 1 : at + 2]
            if escape == "u":
                digits = text[at + 2 : at + 6]
                if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                    raise MalformedJson(at)
                parts.append(chr(int(digits, 16)))
                at += 6
            elif escape in _ESCAPES or escape == "'" == quote:
                parts.append(_ESCAPES.get(escape, escape))
                at += 2
            else:
                raise MalformedJson(at)


def _joined(parts: list[str]) -> str:
    """The parts as one text. Halves of a character, each escaped, become the character."""
    text = "".join(parts)
    if any("\ud800" <= each <= "\udfff" for each in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_LENIENT = _Parser(
    re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF|INF"),
    {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")},
)
_STRICT_NUMBERS = _Parser(
    re.compile(r"true|false|null"),
    {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")},
)
