"""Functions of texts. Pure. Patterns are in `regexes`, codes such as base64 in `text_codes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.errors import ExpressionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

TEXT, INT, BOOL = pa.string(), pa.int32(), pa.bool_()


def rowwise(function: Callable[..., Any], kind: pa.DataType | None = None) -> Function:
    """A function of Python values, called for each row. Without `kind`, the first argument's."""

    def apply(call: Call, *values: Value) -> Value:
        return by_row(function, values[0].type if kind is None else kind, *values)

    return apply


def _cased(name: str, function: Callable[[str], str]) -> Function:
    def apply(call: Call, value: Value) -> Value:
        ascii_only = pc.string_is_ascii(value)
        if not isinstance(ascii_only, pa.Scalar):
            ascii_only = pc.min(ascii_only)
        if ascii_only.as_py() is not False:
            return pc.call_function(name, [value])
        return by_row(function, TEXT, value)  # Arrow does not know that ß becomes SS

    return apply


def _title(text: str) -> str:
    words = text.lower().split(" ")
    return " ".join(word[:1].title()[:1] + word[1:] if word else word for word in words)


def _part(kernel_name: str, test: Callable[[Any, Any], bool]) -> Function:
    def apply(call: Call, value: Value, part: Value) -> Value:
        if isinstance(part, pa.Scalar) and part.is_valid:
            return pc.call_function(kernel_name, [value], pc.MatchSubstringOptions(part.as_py()))
        return by_row(test, BOOL, value, part)

    return apply


def substring(value: Any, position: int, length: int) -> Any:
    """A part of a text or of bytes, by SQL's rules: the first character is 1, or 0."""
    if position > len(value):
        return value[:0]
    start = position - 1 if position > 0 else len(value) + position if position < 0 else 0
    end = min(start + length, len(value))
    return value[max(start, 0) : max(end, 0)]


def _concat(call: Call, *values: Value) -> Value:
    kind = values[0].type
    empty = b"" if pa.types.is_binary(kind) else ""
    return pc.binary_join_element_wise(*values, pa.scalar(empty, kind), null_handling="emit_null")


def _concat_with(separator: str | None, *values: Any) -> str | None:
    if separator is None:
        return None
    parts: list[str] = []
    for value in values:
        found = value if isinstance(value, list) else [value]
        parts += [each for each in found if each is not None]
    return separator.join(parts)


def _before(text: str, mark: str, count: int) -> str:
    if not mark or not count:
        return ""
    parts = text.split(mark)
    if count > 0:
        return text if len(parts) <= count else mark.join(parts[:count])
    # From the right, marks that overlap are found differently.
    at = len(text)
    for _ in range(-count):
        at = text.rfind(mark, 0, at + len(mark) - 1 if at < len(text) else at)
        if at < 0:
            return text
    return text[at + len(mark) :]


def _pad(text: Any, length: int, pad: Any, *, left: bool) -> Any:
    if length <= len(text):
        return text[: max(length, 0)]
    if not pad:
        return text
    missing = length - len(text)
    filled = (pad * (missing // len(pad) + 1))[:missing]
    return filled + text if left else text + filled


def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for index, each in enumerate(old):
        table.setdefault(ord(each), new[index] if index < len(new) else None)
    return text.translate(table)


def _locate(part: str | None, text: str | None, start: int | None) -> int | None:
    if start is None:
        return 0
    if part is None or text is None:
        return None
    if start < 1:
        return 0
    return 1 if not part else text.find(part, start - 1) + 1


def _find_in_set(text: str, options: str) -> int:
    if "," in text:
        return 0
    found = options.split(",")
    return found.index(text) + 1 if text in found else 0


def _overlay(text: Any, new: Any, position: int, length: int) -> Any:
    length = len(new) if length < 0 else length
    rest = substring(text, position + length, 2**31 - 1)
    return substring(text, 1, position - 1) + new + rest


def _levenshtein(left: str, right: str, limit: int | None = None) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return -1 if limit is not None and row[-1] > limit else row[-1]


def _element(call: Call, *values: Value) -> Value:
    def single(index: int | None, *texts: Any) -> Any:
        if index is None:
            return None
        if 1 <= index <= len(texts):
            return texts[index - 1]
        if call.ansi:
            raise ExpressionError(
                f"INVALID_ARRAY_INDEX: elt has {len(texts)} values, but was asked for number "
                f"{index}. Set spark.sql.ansi.enabled to false to get null instead."
            )
        return None

    return by_row(single, values[1].type, *values, nulls=True)


def _trim(function: Callable[[str, str], str]) -> Function:
    return lambda _, value, *marks: by_row(
        lambda text, found=" ": function(text, found) if found else text, TEXT, value, *marks
    )


def _length(call: Call, value: Value) -> Value:
    binary = pa.types.is_binary(value.type)
    return pc.cast(pc.binary_length(value) if binary else pc.utf8_length(value), INT)


def _octets(call: Call, value: Value) -> Value:
    return pc.cast(pc.binary_length(value), INT)


FUNCTIONS: dict[str, Function] = {
    "BitLength": lambda call, value: pc.multiply(_octets(call, value), pa.scalar(8, INT)),
    "ByteArray.lpad": rowwise(lambda v, n, pad: _pad(v, n, pad, left=True)),
    "ByteArray.rpad": rowwise(lambda v, n, pad: _pad(v, n, pad, left=False)),
    "ByteArrayMethods.contains": rowwise(lambda value, part: part in value, BOOL),
    "ByteArrayMethods.endsWith": rowwise(lambda value, part: value.endswith(part), BOOL),
    "ByteArrayMethods.startsWith": rowwise(lambda value, part: value.startswith(part), BOOL),
    "Concat": _concat,
    "ConcatWs": lambda _, *values: by_row(_concat_with, TEXT, *values, nulls=True),
    "Contains": _part("match_substring", lambda value, part: part in value),
    "Elt": _element,
    "EndsWith": _part("ends_with", lambda value, part: value.endswith(part)),
    "FindInSet": rowwise(_find_in_set, INT),
    "InitCap": rowwise(_title, TEXT),
    "Length": _length,
    "Levenshtein": rowwise(_levenshtein, INT),
    "Lower": _cased("ascii_lower", str.lower),
    "OctetLength": _octets,
    "Overlay": rowwise(_overlay),
    "Reverse": rowwise(lambda value: value[::-1]),
    "StartsWith": _part("starts_with", lambda value, part: value.startswith(part)),
    "StringInstr": rowwise(lambda text, part: text.find(part) + 1, INT),
    "StringLPad": rowwise(lambda text, n, pad: _pad(text, n, pad, left=True), TEXT),
    "StringLocate": lambda _, *values: by_row(_locate, INT, *values, nulls=True),
    "StringRPad": rowwise(lambda text, n, pad: _pad(text, n, pad, left=False), TEXT),
    "StringRepeat": rowwise(lambda text, count: text * max(count, 0), TEXT),
    "StringReplace": rowwise(lambda text, old, new: text.replace(old, new) if old else text, TEXT),
    "StringSpace": rowwise(lambda count: " " * max(count, 0), TEXT),
    "StringSplitSQL": rowwise(
        lambda text, mark: text.split(mark) if mark else [text], pa.list_(TEXT)
    ),
    "StringTranslate": rowwise(_translate, TEXT),
    "StringTrim": _trim(str.strip),
    "StringTrimBoth": _trim(str.strip),
    "StringTrimLeft": _trim(str.lstrip),
    "StringTrimRight": _trim(str.rstrip),
    "Substring": rowwise(substring),
    "SubstringIndex": rowwise(_before, TEXT),
    "Upper": _cased("ascii_upper", str.upper),
}
