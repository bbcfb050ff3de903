"""What a test gives to a driver, as the engine takes it: a stream, a DataFrame, a writer of one.

Sinks that run a user's code are here, too: `foreach` and `foreach_batch`. Their rows also go to the
driver's own sink, so that a test can read them. The code runs as early as it may run on a cluster:
a function of a row when the row arrives, a function of a batch just before the epoch is prepared
or, for DataFrames, committed. A crash after that moment makes it run again, as on a cluster. It
runs in the thread of the test, so a test is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.connectors.foreach import BatchTaskWriter, ForeachSink, ForeachWriters, OpenEpoch
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import APPEND, StreamWriter, check_mode
from epochal.continuous.plan.compile import sources_of
from epochal.continuous.plan.logical import Node, StreamSource
from epochal.continuous.run.take_over import found_in, operators_of
from epochal.epoch.contract import CommittedSink
from epochal.epoch.event_time.query_watermark import WatermarksMove
from epochal.errors import OptionError
from epochal.files import Files
from epochal.testing.driver.staged_sink import StagedSink

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
    pipeline: Pipeline, checkpoint: Files, output_mode: str | None = None
) -> QueryUnderTest:
    """Return the query that a test has given, as it is run on this checkpoint."""
    if isinstance(pipeline, Stream | StreamWriter):
        if output_mode is not None:
            raise OptionError(
                "The output mode of a stream is set where it is made: agg(..., output_mode=...)."
            )
        if isinstance(pipeline, Stream):
            return QueryUnderTest(pipeline.tree)
        kind, function = pipeline.sink if isinstance(pipeline.sink, tuple) else ("", None)
        sink = UserSink(kind, function) if kind else None
        return QueryUnderTest(pipeline.stream.tree, pipeline.mode, sink)
    frame, function = frame_and_function(pipeline)
    mode = getattr(pipeline, "_mode", APPEND) if output_mode is None else check_mode(output_mode)
    return _of_frame(frame, mode, function, checkpoint)


def frame_and_function(pipeline: Any) -> tuple[DataFrame, tuple[str, Any] | None]:
    """Return the DataFrame of a test, and the function of its writer if it has one."""
    if getattr(pipeline, "isStreaming", False):
        return pipeline, None
    frame = getattr(pipeline, "_frame", None)
    if frame is None or not getattr(frame, "isStreaming", False):
        raise OptionError(
            f"A driver runs a Stream, a streaming DataFrame, or a writer of one, not {pipeline!r}. "
            f"Begin with testing.stream(schema) or testing.frame(schema)."
        )
    return frame, pipeline._function


def _of_frame(
    frame: DataFrame, mode: str, function: tuple[str, Any] | None, checkpoint: Files
) -> QueryUnderTest:
    from epochal.continuous.catalyst.translation import read_plan
    from epochal.continuous.run.state_settings import FRAME_KEYS, session_settings

    operators = found_in(checkpoint)
    session = session_settings(frame.sparkSession, FRAME_KEYS)
    translation = read_plan(frame, output_mode=mode, pinned=operators.pinned)
    operators.check(operators_of(translation.tree), session)
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


def calls_in_tasks(sink: UserSink | None) -> ForeachWriters | None:
    """Return the code that tasks call; None if they call none. OptionError if it cannot be called.

    A function of a batch of a DataFrame is called on the driver instead.
    """
    if sink is None or is_called_on_driver(sink):
        return None
    schema = None if sink.frame is None else sink.frame.schema
    sink_of_functions = ForeachSink(
        sink.function, by_batch=sink.kind == FOREACH_BATCH, schema=schema
    )
    writers = sink_of_functions.writers
    assert isinstance(writers, ForeachWriters)
    return writers


def is_called_on_driver(sink: UserSink | None) -> bool:
    """Whether it is `foreachBatch` of a DataFrame."""
    return sink is not None and sink.frame is not None and sink.kind == FOREACH_BATCH


class CallingWriter(SinkWriter):
    """Writes rows to the driver's own sink, and calls the user's code with them."""

    def __init__(self, staged: SinkWriter, code: ForeachWriters, context: WriterContext) -> None:
        self._staged, self._code, self._context = staged, code, context
        self._epoch = context.epoch
        self._batches = BatchTaskWriter(code.user, context) if code.by_batch else None
        self._open: OpenEpoch | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._staged.write(batch)
        if self._batches is not None:
            self._batches.write(batch)
            return
        if not batch.num_rows:
            return
        if self._open is None:
            task, schema = self._context.task, self._code.schema
            self._open = OpenEpoch(self._code.user, task, self._epoch, schema)
        self._open.process(batch)

    def cut(self, epoch: int) -> Prepare:
        self._epoch = epoch + 1
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(None)
        staged = self._staged.cut(epoch)
        if self._batches is None:
            return staged
        called = self._batches.cut(epoch)

        def prepare() -> bytes:
            called()
            return staged()

        return prepare

    def close(self) -> None:
        self._staged.close()


class CallingSink(CommittedSink):
    """Calls a function with an epoch's rows before the driver's own sink shows them.

    As on a cluster, epochs without rows are left out, or in output mode complete those without
    input.
    """

    decides = False

    def __init__(
        self, staged: StagedSink, deliver: Callable[[pa.Table, int], None], *, complete: bool
    ) -> None:
        self._staged, self._deliver, self._complete = staged, deliver, complete

    def fence(self, attempt: int) -> None:
        self._staged.fence(attempt)

    def decided(self, epoch: int) -> bool:
        return self._staged.decided(epoch)

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        rows = self._staged.rows_of(messages)
        if rows is not None and (
            self._staged.had_input(messages) if self._complete else rows.num_rows
        ):
            self._deliver(rows, epoch)
        self._staged.commit(epoch, messages)


def delivery(sink: UserSink) -> Callable[[pa.Table, int], None]:
    """Return what calls the function of a DataFrame's `foreachBatch` with an epoch's rows."""
    frame: Any = sink.frame

    def deliver(rows: pa.Table, epoch: int) -> None:
        table = rows.combine_chunks().rename_columns(frame.columns)
        sink.function(frame.sparkSession.createDataFrame(table, frame.schema), epoch)

    return deliver
