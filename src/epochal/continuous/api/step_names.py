"""Describes a stream in one line for its `repr`, by the methods that the user called. Pure.

Note: option values are never shown, because they may hold passwords and reprs end up in logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epochal.connectors.formats import SinkFormat, SourceFormat
from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec
from epochal.continuous.operators.deduplication import DropDuplicatesSpec, DropRepeatsSpec
from epochal.continuous.operators.stateless.row_operators import (
    ArrowExpressionSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    ProjectSpec,
)
from epochal.continuous.operators.windows import AssignWindowsSpec, Window
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource, Union, Watermarked

if TYPE_CHECKING:
    from epochal.continuous.api.stream import Stream

ARROW = " → "
MAX_COLUMNS = 4

_UNITS_US = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1_000),
    ("microsecond", 1),
)


def steps_of(stream: Stream) -> str:
    """Return the steps of a stream, sources first, such as `kafka → filter → select(id)`."""
    return _steps(stream.tree)


def groups_of(keys: Sequence[str], window: Window | None) -> str:
    """Return what rows are grouped by, such as `user, tumbling(at, 10 seconds)`."""
    return ", ".join([*keys, *([] if window is None else [_window(window)])]) or "()"


def options_of(names: Sequence[str]) -> str:
    """Return the names of options that were set, for the end of a repr."""
    return f", options: {', '.join(names)}" if names else ""


def format_name(sink_format: Any) -> str:
    """Return the name of a format: as given, or the class of a user's own source or sink."""
    match sink_format:
        case None:
            return "no format"
        case str():
            return sink_format
        case SinkFormat() | SourceFormat():
            return sink_format.name
        case (str(kind), _):
            return kind
        case type():
            return sink_format.__name__
    return type(sink_format).__name__


def duration_text(duration_us: int) -> str:
    """Return a duration in the largest unit that divides it, such as `10 seconds`."""
    for unit, size_us in _UNITS_US:
        count, rest = divmod(duration_us, size_us)
        if count and not rest:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "0 seconds"


def _steps(node: Node) -> str:
    match node:
        case StreamSource(description=description):
            return description
        case Step(child=child, operator=AssignWindowsSpec()):
            # Windows are assigned for a `group_by`, and `_stateful_step` shows them with that.
            return _steps(child)
        case Step(child=child, operator=operator):
            return f"{_steps(child)}{ARROW}{_step(operator)}"
        case Watermarked(child=child, column=column, delay_ms=delay_ms):
            delay = duration_text(1000 * delay_ms)
            return f"{_steps(child)}{ARROW}with_watermark({column}, {delay})"
        case Union(children=children):
            return f"union({', '.join(map(_steps, children))})"
        case Stateful(children=(child,), spec=spec):
            return f"{_steps(child)}{ARROW}{_stateful_step(spec, child)}"
        case Stateful(children=children, spec=spec):
            return f"{spec.name}({', '.join(map(_steps, children))})"


def _step(spec: OperatorSpec) -> str:
    match spec:
        case MapInArrowSpec():
            return "map_in_arrow"
        case MapInPandasSpec():
            return "map_in_pandas"
        case FilterSpec() | ArrowExpressionSpec(filters=True):
            return "filter"
        case ProjectSpec(schema=schema) | ArrowExpressionSpec(schema=schema):
            return f"select({_columns(schema.names)})"
    return type(spec).__name__.removesuffix("Spec")


def _stateful_step(spec: StatefulSpec, before: Node) -> str:
    """Describe a stateful operator; `before` is its input."""
    match spec:
        case AggregateSpec(aggregates=aggregates, key=key):
            window = None
            if isinstance(before, Step) and isinstance(before.operator, AssignWindowsSpec):
                window = before.operator.window
            keys = [column for column in key if window is None or column != window.name]
            columns = _columns([aggregate.alias for aggregate in aggregates])
            return f"agg({columns}) by {groups_of(keys, window)}"
        case DropDuplicatesSpec(within_watermark=True):
            name = "drop_duplicates_within_watermark"
        case DropDuplicatesSpec():
            name = "drop_duplicates"
        case DropRepeatsSpec():
            name = "drop_repeats"
        case _ if "transformwithstate" in spec.name.lower():  # its module would import PySpark
            name = "transform_with_state"
        case _:
            name = spec.name
    return f"{name} by {_columns(spec.keys[0])}"


def _window(window: Window) -> str:
    size = duration_text(window.size_us)
    if window.is_session:
        return f"session({window.column}, {size})"
    if window.slide_us == window.size_us:
        return f"tumbling({window.column}, {size})"
    return f"sliding({window.column}, {size}, {duration_text(window.slide_us)})"


def _columns(names: Sequence[str]) -> str:
    more = ["…"] if len(names) > MAX_COLUMNS else []
    return ", ".join([*names[:MAX_COLUMNS], *more])
