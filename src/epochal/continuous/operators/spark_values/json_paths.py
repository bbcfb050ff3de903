"""Paths into JSON, as Spark's get_json_object takes them: `$.a.b[0]['c']`. Pure.

Wildcards are not supported: Spark's results for them are no plain selection.
"""

from __future__ import annotations

import functools
import re

from epochal.continuous.operators.spark_values.json_nodes import MalformedJson, Node, parse
from epochal.continuous.operators.spark_values.json_writing import compact
from epochal.errors import OptionError

_WIDE = re.compile("[\U00010000-\U0010ffff]")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\['([^'?]+)'\]")


def has_wildcard(path: str) -> bool:
    """Whether a path selects more than one value."""
    return ".*" in path or "[*]" in path or "['*']" in path


@functools.lru_cache(maxsize=1024)
def steps_of(path: str) -> tuple[str | int, ...] | None:
    """The names and indexes of a path; None if it is not one. OptionError if it has wildcards."""
    if not path.startswith("$"):
        return None
    if has_wildcard(path):
        raise OptionError(f"The path {path!r} has a wildcard, which is not supported.")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return None
        name, index, quoted_name = found.groups()
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
    except (MalformedJson, RecursionError):
        return None
    for step in steps:
        node = None if node is None else _step(node, step)
    if node is None or (node.kind == "null" and steps and isinstance(steps[-1], str)):
        return None
    return str(node.value) if node.kind == "string" else _WIDE.sub(_escaped, compact(node))


def _escaped(found: re.Match[str]) -> str:
    """A character outside of Unicode's first plane, as Jackson writes it to a stream of bytes."""
    halves = found.group().encode("utf-16-be").hex().upper()
    return f"\\u{halves[:4]}\\u{halves[4:]}"


def _step(node: Node, step: str | int) -> Node | None:
    if isinstance(step, int):
        if node.kind != "array":
            return None
        return node.value[step] if step < len(node.value) else None
    if node.kind != "object":
        return None
    found = (value for name, value in node.value if name == step and value.kind != "null")
    return next(found, None)
