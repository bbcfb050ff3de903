"""The query under test, as the engine takes it, and what it has made durable.

A test gives a driver a stream, a DataFrame, or a writer of one. What is durable are its watermark,
its state, and batches of Spark's.

Sinks that run a user's code are here, too: `foreach` and `foreach_batch`. Their rows also go to the
driver's own sink, so that a test can read them. The code runs as early as it may run on a cluster:
a function of a row when the row arrives, a function of a batch just before the epoch is prepared
or, for DataFrames, committed. A crash after that moment makes it run again, as on a cluster. It
runs in the thread of the test, so a test is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS, PLANNED
from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.connectors.foreach import BatchTaskWriter, ForeachEpoch, ForeachSink, ForeachWriters
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import APPEND, StreamWriter, check_mode
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.compile import sources_of
from epochal.continuous.plan.logical import Node, StreamSource, unique_names
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.run.take_over import found_in, operators_of
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.contract import CommittedSink
from epochal.epoch.event_time.query_watermark import WatermarksMove
from epochal.epoch.manifest import is_finished_by_another, manifest_of
from epochal.errors import OptionError
from epochal.files import Files
from epochal.state.store.conf import StateStoreConf
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

    @property
    def is_called_on_driver(self) -> bool:
        return self.frame is not None and self.kind == FOREACH_BATCH


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
    from epochal.continuous.run.take_over import FRAME_KEYS, session_settings

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
    if sink is None or sink.is_called_on_driver:
        return None
    schema = None if sink.frame is None else sink.frame.schema
    sink_of_functions = ForeachSink(
        sink.function, by_batch=sink.kind == FOREACH_BATCH, schema=schema
    )
    writers = sink_of_functions.writers
    assert isinstance(writers, ForeachWriters)
    return writers


class CallingWriter(SinkWriter):
    """Writes rows to the driver's own sink, and calls the user's code with them."""

    def __init__(self, staged: SinkWriter, code: ForeachWriters, context: WriterContext) -> None:
        self._staged, self._code, self._context = staged, code, context
        self._epoch = context.epoch
        self._batches = BatchTaskWriter(code.user, context) if code.by_batch else None
        self._open: ForeachEpoch | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._staged.write(batch)
        if self._batches is not None:
            self._batches.write(batch)
            return
        if not batch.num_rows:
            return
        if self._open is None:
            task, schema = self._context.task, self._code.schema
            self._open = ForeachEpoch(self._code.user, task, self._epoch, schema)
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


def newest_watermark_ms(checkpoint: Files) -> int:
    """Return the watermark after the newest committed epoch; 0 if there is none."""
    newest = CommitLog(checkpoint.at(COMMITS), read_only=True).get_latest()
    return 0 if newest is None else newest[1].next_watermark_ms


def forget_planned(checkpoint: Files) -> None:
    """Remove the batch that Spark has planned but not committed, if there is one.

    The engine would read exactly its rows again, and a test does not have them.
    """
    newest = OffsetLog(checkpoint.at(OFFSETS), read_only=True).get_latest()
    committed = CommitLog(checkpoint.at(COMMITS), read_only=True).latest_batch_id()
    if newest is not None and newest[0] != committed and manifest_of(newest[1], OFFSETS) is None:
        checkpoint.delete(f"{OFFSETS}/{newest[0]}")
    checkpoint.delete_tree(PLANNED)


def stored_values(
    checkpoint: Files, plan: QueryPlan, conf: StateStoreConf, operator: int, store: str | None
) -> dict[Any, dict[str, Any]]:
    """Return the durable state of an operator: values by column, by key.

    A key is the tuple of its columns, or the column itself if there is just one.
    """
    stages = {stage.operator_id: stage for stage in plan.stages}
    if operator not in stages:
        raise OptionError(
            f"There is no stateful operator {operator}; the query has {sorted(stages)}."
        )
    stored = stages[operator].stateful.stores
    schemas = {schema.name: schema.value for schema in stored if not schema.has_families}
    families = [family for schema in stored for family in schema.families]
    schemas |= {family.name: family.rows.schema.value for family in families}
    names = [schema for schema in schemas if store in (None, schema)]
    if len(names) != 1:
        raise OptionError(
            f"Operator {operator} has the stores {sorted(schemas)}. Say which: store=..."
        )
    (name,) = names
    rows = _load_rows(checkpoint, plan, conf).get((operator, name), {})
    columns = unique_names(schemas[name].names)
    return {
        (key[0] if len(key) == 1 else key): dict(zip(columns, row, strict=True))
        for key, row in rows.items()
    }


def _load_rows(
    checkpoint: Files, plan: QueryPlan, conf: StateStoreConf
) -> dict[tuple[int, str], dict[Row, Row]]:
    """Return the rows of all operators as a task gets them that goes on from the checkpoint."""
    rows_by_key: dict[tuple[int, str], dict[Row, Row]] = {}
    start = _start_of(checkpoint, conf)
    if start is None:
        return rows_by_key

    def loading(operator: int) -> Any:
        """What takes the place of an operator that loads its state."""

        def load(partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
            del partition
            loaded = rows_by_key.setdefault((operator, store), {})
            loaded.update({tuple(key): tuple(value) for key, value in rows})

        return SimpleNamespace(load=load)

    partitions = range(plan.state_partitions)
    stores = TaskStores(plan, partitions, checkpoint, conf, attempt=0, run_id="", writers=1)
    stores.load([loading(stage.operator_id) for stage in plan.stages], start)
    return rows_by_key


def _start_of(checkpoint: Files, conf: StateStoreConf) -> StateStart | None:
    """Return the state after the newest epoch that is decided; None before the first."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    commits = CommitLog(checkpoint.at(COMMITS), read_only=True)
    newest, committed = offsets.get_latest(), commits.get_latest()
    if newest is not None:
        epoch, entry = newest
        manifest = manifest_of(entry, OFFSETS, epoch)
        if manifest is not None and not is_finished_by_another(manifest, commits.get(epoch)):
            chain = manifest.chain
            if chain is None:
                return StateStart(epoch + 1, manifest.state)
            commit = commits.get(chain.published - 1) if chain.published else None
            if conf.checkpoint_format_version < 2:
                commit = None  # only unique ids are found in commits
            return StateStart(epoch + 1, None, commit or CommitEntry(), chain)
    return None if committed is None else StateStart(committed[0] + 1, None, committed[1])
