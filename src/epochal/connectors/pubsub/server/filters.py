"""Parses a subscription's filter, in Pub/Sub's filter language, into a predicate.

    attributes:key   attributes.key = "v"   attributes.key != "v"   hasPrefix(attributes.key, "v")
    NOT x   -x   x AND y   x OR y   (x)

Note: `AND` and `OR` have no precedence, so they cannot be mixed without parentheses. `!=` is the
negation of `=`, so a message without the attribute passes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from epochal.errors import PubSubRefusedError

Predicate = Callable[[Mapping[str, str]], bool]

MAX_BYTES = 256
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<word>[A-Za-z0-9_][A-Za-z0-9_-]*)
    | (?P<sign>!=|[-=:.,()])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))", re.DOTALL
)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def parse_filter(text: str) -> Predicate | None:
    """Return the predicate of a filter; None for an empty one, which passes every message."""
    if len(text.encode()) > MAX_BYTES:
        size = len(text.encode())
        raise PubSubRefusedError(
            "INVALID_ARGUMENT",
            f"The value for filter is too large. You passed {size} bytes in the request, but the "
            f"maximum value is {MAX_BYTES}.",
        )
    if not text.strip():
        return None
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                self._refuse(f"unexpected character at {position + 1}")
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind]))
            position = match.end()

    def whole(self) -> Predicate:
        predicate = self._expression()
        if self._at < len(self._tokens):
            self._refuse(f"unexpected {self._tokens[self._at][1]!r}")
        return predicate

    def _expression(self) -> Predicate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH}")
        terms, operator = [self._term()], ""
        while self._peek() in (("word", "AND"), ("word", "OR")):
            joined = self._next()[1]
            if operator and joined != operator:
                self._refuse("AND and OR cannot be mixed without parentheses")
            operator = joined
            terms.append(self._term())
        self._depth -= 1
        if len(terms) == 1:
            return terms[0]
        combine = any if operator == "OR" else all
        return lambda attributes: combine(term(attributes) for term in terms)

    def _term(self) -> Predicate:
        negations = 0
        while self._peek() in (("word", "NOT"), ("sign", "-")):
            self._next()
            negations += 1
        kind, value = self._next()
        match kind, value:
            case "sign", "(":
                inner = self._expression()
                self._expect(")")
            case "word", "hasPrefix":
                inner = self._prefix()
            case "word", "attributes":
                inner = self._comparison()
            case _:
                self._refuse(f"unexpected {value!r}" if value else "unexpected end")
        return inner if negations % 2 == 0 else lambda attributes: not inner(attributes)

    def _comparison(self) -> Predicate:
        sign = self._next()[1]
        if sign == ":":
            present = self._key()
            return lambda attributes: present in attributes
        if sign != ".":
            self._refuse("`attributes` must be followed by `:` or `.`")
        key, operator = self._key(), self._next()[1]
        if operator not in ("=", "!="):
            self._refuse(f"an attribute can be compared with = or !=, not with {operator!r}")
        value = self._string()
        if operator == "=":
            return lambda attributes: attributes.get(key) == value
        return lambda attributes: attributes.get(key) != value

    def _prefix(self) -> Predicate:
        self._expect("(")
        self._expect("attributes")
        self._expect(".")
        key = self._key()
        self._expect(",")
        prefix = self._string()
        self._expect(")")
        return lambda attributes: key in attributes and attributes[key].startswith(prefix)

    def _key(self) -> str:
        kind, value = self._next()
        match kind:
            case "word":
                return value
            case "string":
                return _unquote(value)
            case _:
                self._refuse("an attribute's key is missing")

    def _string(self) -> str:
        kind, value = self._next()
        if kind != "string":
            self._refuse("a value must be a string in double quotes")
        return _unquote(value)

    def _expect(self, wanted: str) -> None:
        if self._next()[1] != wanted:
            self._refuse(f"{wanted!r} is missing")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _refuse(self, why: str) -> NoReturn:
        raise PubSubRefusedError(
            "INVALID_ARGUMENT", f"Invalid filter (filter={self._text}): {why}."
        )


def _unquote(text: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2] or escape[3]
        if code:
            return chr(min(int(code, 16), 0x10FFFF))
        if escape[4]:
            return chr(int(escape[4], 8))
        return _PLAIN.get(escape[5], escape[5])

    return _ESCAPE.sub(plain, text[1:-1])
