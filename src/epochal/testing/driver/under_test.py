"""What a test gives to a driver, as the engine takes it: a stream, a DataFrame, a writer of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from epochal.continuous.api.outputs import APPEND, checked_mode
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import StreamWriter
from epochal.continuous.plan.compile import sources_of
from epochal.continuous.plan.logical import Node, StreamSource
from epochal.continuous.run.take_over import found_in, operators_of
from epochal.epoch.event_time.query_watermark import WatermarksMove
from epochal.errors import OptionError
from epochal.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from epochal.continuous.api.dataframe_writer import DataFrameWriter

Pipeline: TypeAlias = "Stream | StreamWriter | DataFrame | DataFrameWriter"

FOREACH, FOREACH_BATCH = "foreach", "foreachBatch"

NAMING_OPTIONS = ("path", "subscribe", "subscribepattern", "assign", "subscriptionid")
"""Options of sources that say what is read."""


@dataclass(frozen=True, slots=True)
class UserSink:
    """Code of the user that gets the rows: `foreach` or `foreach_batch`."""

    kind: str
    function: Any
    frame: DataFrame | None = None
    """Whose columns the rows have; None for a `Stream`."""


@dataclass(frozen=True, slots=True)
class QueryUnderTest:
    """A query as the driver runs it. Its sources are replaced, and so are sinks by name."""

    tree: Node
    output_mode: str = APPEND
    sink: UserSink | None = None
    watermarks_move: WatermarksMove = "turn"
    offset_lines: tuple[int, ...] | None = None
    session: Mapping[str, str] = field(default_factory=dict)
    """The settings of the session that a new checkpoint pins."""

    @property
    def source_names(self) -> list[str]:
        """How a test names the sources, by number."""
        return [_name_of(node) for node in sources_of(self.tree)]


def query_under_test(
    given: Pipeline, checkpoint: Files, output_mode: str | None = None
) -> QueryUnderTest:
    """Return the query that a test has given, as it is run on this checkpoint."""
    if isinstance(given, Stream | StreamWriter):
        if output_mode is not None:
            raise OptionError(
                "The output mode of a stream is set where it is made: agg(..., output_mode=...)."
            )
        if isinstance(given, Stream):
            return QueryUnderTest(given.tree)
        kind, function = given.sink if isinstance(given.sink, tuple) else ("", None)
        sink = UserSink(kind, function) if kind else None
        return QueryUnderTest(given.stream.tree, given.mode, sink)
    frame, function = frame_and_function(given)
    mode = getattr(given, "_mode", APPEND) if output_mode is None else checked_mode(output_mode)
    return _of_frame(frame, mode, function, checkpoint)


def frame_and_function(given: Any) -> tuple[DataFrame, tuple[str, Any] | None]:
    """Return the DataFrame of a test, and the function of its writer if it has one."""
    if getattr(given, "isStreaming", False):
        return given, None
    frame = getattr(given, "_frame", None)
    if frame is None or not getattr(frame, "isStreaming", False):
        raise OptionError(
            f"A driver runs a Stream, a streaming DataFrame, or a writer of one, not {given!r}. "
            f"Begin with testing.stream(schema) or testing.frame(schema)."
        )
    return frame, given._function


def _of_frame(
    frame: DataFrame, mode: str, function: tuple[str, Any] | None, checkpoint: Files
) -> QueryUnderTest:
    from epochal.continuous.catalyst.translation import read_plan
    from epochal.continuous.run.state_settings import FRAME_KEYS, session_settings

    found = found_in(checkpoint)
    session = session_settings(frame.sparkSession, FRAME_KEYS)
    translation = read_plan(frame, output_mode=mode, pinned=found.pinned)
    found.check(operators_of(translation.tree), session)
    return QueryUnderTest(
        translation.tree,
        mode,
        None if function is None else UserSink(*function, frame),
        watermarks_move="epoch",
        offset_lines=translation.occurrences,
        session=session,
    )


def _name_of(node: StreamSource) -> str:
    """Return the last part of a path, the topic, or how the source describes itself."""
    options = {key.lower(): value for key, value in node.options.items()}
    for key in NAMING_OPTIONS:
        if key in options:
            return options[key].rstrip("/").rpartition("/")[2] or options[key]
    return node.description or str(node.number)
