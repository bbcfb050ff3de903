"""LIKE and regular expressions. Pure. Patterns have Java's syntax."""

from __future__ import annotations

import functools
import re
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Literal, Value
from epochal.continuous.operators.expressions.nested.maps import LAST_WINS
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.expressions.textual.texts import BOOL, INT, TEXT, rowwise
from epochal.continuous.operators.spark_values.java_regex import compiled, replacement
from epochal.errors import ExpressionError, OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


@functools.lru_cache(maxsize=1024)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        each = pattern[at]
        if each == escape:
            following = pattern[at + 1 : at + 2]
            if following not in ("_", "%", escape) or not following:
                raise ExpressionError(
                    f"INVALID_FORMAT: in the LIKE pattern {pattern!r}, the escape character "
                    f"{escape!r} must stand before _, % or itself."
                )
            parts.append(re.escape(following))
            at += 1
        else:
            parts.append({"_": ".", "%": ".*"}.get(each) or re.escape(each))
        at += 1
    return re.compile("".join(parts), re.DOTALL)


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Whether a text matches a pattern of LIKE."""
    return _like_pattern(pattern, escape).fullmatch(text) is not None


def _like(call: Call, value: Value, pattern: Value) -> Value:
    escape = str(call.extra.get("escapeChar", "\\"))
    return by_row(lambda text, found: like(text, found, escape), BOOL, value, pattern)


def _replace(text: str, pattern: str, new: str, position: int) -> str:
    if position - 1 > len(text) or position < 1:
        return text
    parts = replacement(new)

    def filled(found: re.Match[str]) -> str:
        return "".join((found[p] or "") if isinstance(p, int) else p for p in parts)

    try:
        return text[: position - 1] + compiled(pattern).sub(filled, text[position - 1 :])
    except IndexError:
        raise ExpressionError(
            f"The replacement {new!r} has a group that {pattern!r} lacks."
        ) from None


def _group(found: re.Match[str], pattern: str, group: int) -> str:
    if not 0 <= group <= found.re.groups:
        raise ExpressionError(
            f"INVALID_PARAMETER_VALUE.REGEX_GROUP_INDEX: {pattern!r} has {found.re.groups} groups, "
            f"but group {group} is wanted."
        )
    return found[group] or ""


def _extract(text: str, pattern: str, group: int) -> str:
    found = compiled(pattern).search(text)
    return "" if found is None else _group(found, pattern, group)


def _extract_all(text: str, pattern: str, group: int) -> list[str]:
    return [_group(found, pattern, group) for found in compiled(pattern).finditer(text)]


def _position(text: str, pattern: str, _: int) -> int:
    found = compiled(pattern).search(text)
    return 0 if found is None else found.start() + 1


def split_text(text: str, pattern: str, limit: int) -> list[str]:
    """The parts of a text between the matches of a pattern, at most `limit` if that is positive."""
    if not pattern:
        if not text or 0 < limit < len(text):
            return [*text[: limit - 1], text[limit - 1 :]] if text else [text]
        return list(text)
    found: list[str] = []
    at = 0
    for match in compiled(pattern).finditer(text):
        if 0 < limit == len(found) + 1:
            break
        if match.end() == 0:
            continue  # Java has no empty text before a match of nothing at the start
        found.append(text[at : match.start()])
        at = match.end()
    return [*found, text[at:]]


def untranslatable(call: Call) -> str | None:
    """Why the constant pattern of a call, or its replacement, is not supported; else None."""
    if call.function not in PATTERNS:
        return None
    constants = [each.value.as_py() for each in call.arguments[1:3] if isinstance(each, Literal)]
    try:
        if isinstance(call.arguments[1], Literal) and constants[0] is not None:
            compiled(constants[0])
        if call.function == "RegExpReplace" and isinstance(constants[-1], str):
            replacement(constants[-1])
    except OptionError as error:
        return str(error)
    return None


def _likes(name: str) -> Function:
    """One of LIKE ALL, LIKE ANY and their negations, with constant patterns."""
    merge: Any = pc.and_kleene if name.endswith("All") else pc.or_kleene

    def apply(call: Call, value: Value) -> Value:
        tests = []
        for pattern in call.extra["patterns"]:
            found = by_row(like, BOOL, value, pa.scalar(pattern, TEXT))
            tests.append(pc.invert(found) if name.startswith("Not") else found)
        return functools.reduce(merge, tests)

    return apply


PATTERNS = frozenset(
    {"RLike", "RegExpExtract", "RegExpExtractAll", "RegExpInStr", "RegExpReplace", "StringSplit"}
)
"""Functions whose second argument is a regular expression."""


def _to_map(call: Call, text: Value, pairs: Value, between: Value) -> Value:
    last_wins = call.extra.get(LAST_WINS)

    def single(text: str, pairs: str, between: str) -> list[tuple[str, str | None]]:
        found: dict[str, str | None] = {}
        for each in split_text(text, pairs, -1):
            key, *value = split_text(each, between, 2)
            if key in found and not last_wins:
                raise ExpressionError(
                    f"DUPLICATED_MAP_KEY: the key {key!r} occurs twice in a map. Remove the "
                    f"duplicate first, or set spark.sql.mapKeyDedupPolicy to LAST_WIN."
                )
            found[key] = value[0] if value else None
        return list(found.items())

    return by_row(single, call.type, text, pairs, between)


FUNCTIONS: dict[str, Function] = {
    "Like": _like,
    "LikeAll": _likes("LikeAll"),
    "LikeAny": _likes("LikeAny"),
    "NotLikeAll": _likes("NotLikeAll"),
    "NotLikeAny": _likes("NotLikeAny"),
    "RLike": rowwise(lambda text, pattern: compiled(pattern).search(text) is not None, BOOL),
    "RegExpExtract": rowwise(_extract, TEXT),
    "RegExpExtractAll": rowwise(_extract_all, pa.list_(TEXT)),
    "RegExpInStr": rowwise(_position, INT),
    "RegExpReplace": rowwise(_replace, TEXT),
    "StringToMap": _to_map,
    "StringSplit": rowwise(split_text, pa.list_(TEXT)),
}
