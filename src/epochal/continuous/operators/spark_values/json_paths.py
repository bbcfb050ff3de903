"""Paths into JSON, as Spark's get_json_object takes them: `$.a.b[0]['c'][*]`. Pure.

`[*]` selects all elements of an array. What it makes of arrays in arrays, and of a single element,
is Hive's, and not a plain selection. A path with `.*` is accepted, but never selects anything.
"""

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from epochal.continuous.operators.spark_values.json_nodes import MalformedJson, Node, parse
from epochal.continuous.operators.spark_values.json_writing import compact

Step: TypeAlias = str | int | None
"""The name of a field, an index, or None for all elements."""

_WIDE = re.compile("[\U00010000-\U0010ffff]")
_STEP = re.compile(r"\.(?!\*)([^.\[]+)|\[(\d+)\]|\['(?!\*')([^'?]+)'\]|\[(\*)\]")

_RAW, _QUOTED, _FLAT = range(3)


@functools.lru_cache(maxsize=1024)
def steps_of(path: str) -> tuple[Step, ...] | None:
    """The names and indexes of a path; None if it is not one, or selects nothing."""
    if not path.startswith("$"):
        return None
    steps: list[Step] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return None
        name, index, quoted_name, everything = found.groups()
        if everything:
            steps.append(None)
        else:
            steps.append(int(index) if index is not None else name or quoted_name)
        at = found.end()
    return tuple(steps)


def select(text: str, path: str) -> str | None:
    """The value at a path, as text: a string without quotes, anything else as JSON."""
    steps = steps_of(path)
    if steps is None:
        return None
    try:
        node = parse(text, strict_numbers=True)
        if node is None:
            return None
        found: list[str] = []
        return " ".join(found) if _write(node, steps, _RAW, found, escape=True) else None
    except (MalformedJson, RecursionError):
        return None


def _write(
    node: Node, steps: tuple[Step, ...], style: int, out: list[str], *, escape: bool
) -> bool:
    """Append what a path selects, as texts of JSON, and say whether it selects anything.

    Spark also keeps the brackets of arrays in which nothing was selected.
    """
    if not steps:
        if node.kind == "array" and style == _FLAT:
            return _write_all(node, (), _FLAT, out, escape=escape)
        raw = node.kind == "string" and style == _RAW
        text = str(node.value) if raw else compact(node)
        out.append(text if raw or not escape else _WIDE.sub(_escaped, text))
        return True
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if node.kind != "object":
            return False
        same = (value for name, value in node.value if name == step and value.kind != "null")
        return any(_write(each, rest, style, out, escape=escape) for each in same)
    if node.kind != "array":
        return False
    if step is None:
        return _write_elements(node, rest, style, out, escape=escape)
    if step >= len(node.value):
        return False
    style = _QUOTED if rest and rest[0] is None else style
    return _write(node.value[step], rest, style, out, escape=escape)


def _write_elements(
    node: Node, rest: tuple[Step, ...], style: int, out: list[str], *, escape: bool
) -> bool:
    inner: list[str] = []
    if rest and rest[0] is None:
        dirty = _write_all(node, rest[1:], _FLAT, inner, escape=escape)
        out.append(_array(inner))
        return dirty
    if style == _QUOTED:
        dirty = _write_all(node, rest, _QUOTED, inner, escape=escape)
        out.append(_array(inner))
        return dirty
    inner_style = _QUOTED if style == _RAW else _FLAT
    selected = [_write(each, rest, inner_style, inner, escape=False) for each in node.value]
    if sum(selected) > 1:
        out.append(_array(inner))
    elif any(selected):
        out.append(_array(inner)[1:-1])
    return any(selected)


def _write_all(
    node: Node, rest: tuple[Step, ...], style: int, out: list[str], *, escape: bool
) -> bool:
    selected = [_write(each, rest, style, out, escape=escape) for each in node.value]
    return any(selected)


def _array(texts: list[str]) -> str:
    return "[" + ",".join(texts) + "]"


def _escaped(found: re.Match[str]) -> str:
    """A character outside of Unicode's first plane, as Jackson writes it to a stream of bytes."""
    halves = found.group().encode("utf-16-be").hex().upper()
    return f"\\u{halves[:4]}\\u{halves[4:]}"
