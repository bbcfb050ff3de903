"""Compares the state that our operator keeps with the state that Spark's operator would keep.

The state of a query must fit both engines. If a layout differs by a type or the order of columns,
the query is refused, before anything is written. Spark does not compare names, and neither do we.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from epochal.continuous.catalyst.plan_steps import Steps
from epochal.continuous.catalyst.spark_objects import JavaObject, items, simple_name
from epochal.continuous.operators.contract import StatefulSpec
from epochal.state.rows.types import Layout, StructType, parse_schema

Types: TypeAlias = tuple[Any, ...]
"""The types of the columns of a key or a value, without names."""

_LONG = '"long"'
_BOOLEAN = '"boolean"'
_VOID = '"void"'
_TIMESTAMP = '"timestamp"'


def check_layout(steps: Steps, spec: StatefulSpec, physical: JavaObject) -> None:
    """Refuse an operator whose state would differ from Spark's."""
    theirs = spark_layout(steps, physical)
    if theirs is None:
        return
    ours = {store.name: (_plain(store.key), _plain(store.value)) for store in spec.stores}
    if (str(physical.shortName()), theirs) == (spec.name, ours):
        return
    steps.findings.refuse(
        simple_name(physical).removesuffix("Exec"),
        f"its state would be {spec.name} {ours} here, but {physical.shortName()} {theirs} in Spark",
        "report this query; Spark itself can run it",
    )


def spark_layout(steps: Steps, physical: JavaObject) -> dict[str, tuple[Types, Types]] | None:
    """The types of key and value in each store of a physical operator; None if not known."""
    match simple_name(physical):
        case "StateStoreSaveExec":
            value = _plain(parse_schema(str(steps.planner.aggregation_value(physical).json())))
            return {"default": (_types(physical.keyExpressions()), value)}
        case "SessionWindowStateStoreSaveExec":
            key = _types(physical.keyWithoutSessionExpressions(), _TIMESTAMP)
            return {"default": (key, _types(physical.child().output()))}
        case "StreamingDeduplicateExec":
            return {"default": (_types(physical.keyExpressions()), _types((), _VOID))}
        case "StreamingDeduplicateWithinWatermarkExec":
            return {"default": (_types(physical.keyExpressions()), _types((), _LONG))}
        case "StreamingGlobalLimitExec":
            return {"default": (_types((), _VOID), _types((), _LONG))}
        case "StreamingSymmetricHashJoinExec":
            found = {}
            for side, keys, child in (
                ("left", physical.leftKeys(), physical.left()),
                ("right", physical.rightKeys(), physical.right()),
            ):
                found[f"{side}-keyToNumValues"] = (_types(keys), _types((), _LONG))
                value = _types(child.output(), _BOOLEAN)
                found[f"{side}-keyWithIndexToValue"] = (_types(keys, _LONG), value)
            return found
    return None


def _types(expressions: JavaObject | tuple[()], *more: str) -> Types:
    texts: Iterable[str] = (
        [] if expressions == () else [str(each.dataType().json()) for each in items(expressions)]
    )
    fields = ", ".join(
        f'{{"name": "c{number}", "type": {text}, "nullable": true, "metadata": {{}}}}'
        for number, text in enumerate([*texts, *more])
    )
    return _plain(parse_schema(f'{{"type": "struct", "fields": [{fields}]}}'))


def _plain(schema: StructType) -> Types:
    return tuple(_unnamed(each) for each in schema.layout.children)


def _unnamed(layout: Layout) -> Any:
    children = tuple(_unnamed(each) for each in layout.children)
    name = layout.kind.name.lower()
    if layout.precision:
        return f"{name}({layout.precision},{layout.scale})"
    return (name, *children) if children else name
