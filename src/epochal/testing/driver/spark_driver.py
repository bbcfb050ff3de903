"""Runs the query of a test on a real Spark session: `SparkDriver`, for `pytest --epochal-spark`.

It has the calls of `Driver`, so that the same test runs on both. A `Stream` runs on this package's
engine, in a job of the session. A DataFrame runs on Spark itself, in micro-batches. What only a
simulated world can do is refused: crashes, disturbed messages, a clock that is moved by hand.

Note: an epoch here is everything until the query is at rest. `epoch` and `run` do the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import COMPLETE
from epochal.continuous.catalyst.spark_objects import collected
from epochal.continuous.plan.compile import compile_plan, sources_of
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource, Union, Watermarked
from epochal.continuous.run.take_over import settings_in_force, state_conf
from epochal.errors import OptionError
from epochal.files.local import LocalFiles
from epochal.record_batches import joined_tables
from epochal.testing.driver.fed_sources import FedSource, Rows, chosen, local_session
from epochal.testing.driver.rows import OutputRows
from epochal.testing.driver.under_test import (
    Pipeline,
    QueryUnderTest,
    frame_and_function,
    newest_watermark_ms,
    query_under_test,
    stored_values,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_SECONDS = 120.0

Refuse = Callable[[str], NoReturn]
"""Called with the reason why a call cannot be made on Spark."""


def refuse(reason: str) -> NoReturn:
    """Raise an error for a call that only the driver has."""
    raise OptionError(reason)


class SparkDriver:
    """Runs a query on a real session, with the calls of `Driver`."""

    def __init__(
        self,
        stream: Pipeline,
        *,
        output_mode: str | None = None,
        tasks: int = 1,
        partitions: int = 1,
        state_partitions: int | None = None,
        now_ms: int | None = None,
        checkpoint: str | Path | None = None,
        session: SparkSession | None = None,
        refuse: Refuse = refuse,
    ) -> None:
        """`session` is the one to use; by default the active one, or a new local one."""
        self._refuse = refuse
        if now_ms is not None:
            self._only_driver("now_ms", "the time of a real session is the time of day")
        if checkpoint is not None:
            self._only_driver("checkpoint", "a query of a session would continue real sources")
        self._session = local_session() if session is None else session
        self._tasks, self._state_partitions = tasks, state_partitions
        self._base = Path(tempfile.mkdtemp(prefix="epochal-driver-"))
        self._files = LocalFiles(str(self._base / "checkpoint"))
        self._partitions, self._output_mode = partitions, output_mode
        self._query: EngineQuery | BatchQuery | None = None
        self._output = KeptOutput()
        self._fed: list[FedSource] = []
        self._seen: set[int] = set()
        self._settle(stream, output_mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def feed(
        self, source: str | int | Rows, rows: Rows | None = None, *, partition: int | None = None
    ) -> None:
        """Add rows to a source. The query gets them in the next epoch."""
        fed_source, table = chosen(self._fed, source, rows)
        fed_source.feed(table, partition)

    def epoch(self) -> list[dict[str, Any]]:
        """Let the session process all that was fed; return the new rows of output."""
        if self._query is None:
            self._query = self._started()
        tables = [joined_tables(source.fed.values(), source.schema) for source in self._fed]
        self._query.process(tables)
        for source in self._fed:
            source.clear()  # the rows are with the query now
        by_epoch = self._epochs()
        new = [rows for epoch, rows in by_epoch.items() if epoch not in self._seen]
        self._seen.update(by_epoch)
        return OutputRows(row for rows in self._lasting(new) for row in rows.to_pylist())

    run = epoch

    @property
    def output(self) -> list[dict[str, Any]]:
        """All rows of output; in output mode complete those of the newest epoch."""
        tables = list(self._epochs().values())
        return OutputRows(row for rows in self._lasting(tables) for row in rows.to_pylist())

    @property
    def output_by_epoch(self) -> dict[int, list[dict[str, Any]]]:
        """The rows of output, by epochs as the session had them."""
        return {at: OutputRows(rows.to_pylist()) for at, rows in self._epochs().items()}

    @property
    def watermark_ms(self) -> int:
        """The watermark of the query after the newest committed epoch; 0 if it has none."""
        return newest_watermark_ms(self._files)

    def state(self, operator: int = 0, key: Any = None, *, store: str | None = None) -> Any:
        """Return the durable state of an operator, as `Driver.state` does."""
        tested, fed = self._tested, self._fed
        settings = settings_in_force(self._files, tested.session)
        conf = state_conf(self._files, settings, tested.session)
        plan = compile_plan(tested.tree, fed, offset_lines=tested.offset_lines)
        plan = replace(plan, state_partitions=int(settings[SHUFFLE_PARTITIONS]))
        values = stored_values(self._files, plan, conf, operator, store)
        return values if key is None else values.get(key)

    def restart(self, new_pipeline: Pipeline | None = None) -> None:
        """Stop the query, and start it again, or another one on its checkpoint."""
        self._stop()
        if new_pipeline is not None:
            self._settle(new_pipeline, self._output_mode)

    def save(self, checkpoint: str | Path) -> None:
        """Stop the query, and write its checkpoint to a new directory."""
        self._stop()
        shutil.copytree(self._base / "checkpoint", checkpoint, dirs_exist_ok=True)

    def close(self) -> None:
        """Stop the query and remove its files."""
        self._stop()
        shutil.rmtree(self._base, ignore_errors=True)

    def crash(self, at: str) -> None:
        """Refused: a session cannot be killed at a step."""
        self._only_driver(f"crash(at={at!r})", "a session cannot be killed at a step of an epoch")

    def disturb(self, how: str) -> None:
        """Refused: messages of a session cannot be disturbed."""
        self._only_driver(f"disturb({how!r})", "messages of a session cannot be disturbed")

    def advance(self, ms: int) -> None:
        """Refused: the clock of a session cannot be moved."""
        self._only_driver(f"advance({ms})", "the clock of a session cannot be moved")

    @property
    def clock(self) -> Any:
        """Refused: the clock of a session is the time of day."""
        self._only_driver("clock", "the clock of a session is the time of day")

    @property
    def files(self) -> Any:
        """Refused: the files of a session are not in memory."""
        self._only_driver("files", "the files of a session are not in memory")

    def fuzz(self, *_: Any, **__: Any) -> None:
        """Refused: histories with crashes and delays need the driver."""
        self._only_driver("fuzz()", "its histories crash the query and move the clock")

    def _only_driver(self, call: str, why: str) -> NoReturn:
        self._refuse(f"{call} is only in epochal.testing.Driver, not on Spark: {why}.")

    def _settle(self, pipeline: Pipeline, output_mode: str | None) -> None:
        tested = query_under_test(pipeline, self._files, output_mode)
        if tested.sink is not None:
            self._only_driver(
                tested.sink.kind, "its function runs in other processes, where a test cannot look"
            )
        self._given, self._tested = pipeline, tested
        sources = {source.name: source for source in self._fed}
        self._fed = [
            sources[name].with_schema(node.schema)
            if name in sources
            else FedSource(name, node.schema, name, self._partitions)
            for node, name in zip(sources_of(tested.tree), tested.source_names, strict=True)
        ]

    def _started(self) -> EngineQuery | BatchQuery:
        place = self._base / "checkpoint"
        if self._tested.watermarks_move == "epoch":
            frame, _ = frame_and_function(self._given)
            return BatchQuery(frame, self._tested, place, self._output)
        partitions = self._state_partitions or self._tasks
        options = {"parallelism": self._tasks, "statePartitions": partitions}
        return EngineQuery(self._session, self._tested, self._base, self._output, options)

    def _epochs(self) -> dict[int, pa.Table]:
        return dict(sorted(self._output.by_epoch().items()))

    def _lasting(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Return the tables that count: in output mode complete only the newest."""
        return tables[-1:] if self._tested.output_mode == COMPLETE else tables

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._query = None


class EngineQuery:
    def __init__(
        self,
        session: SparkSession,
        tested: QueryUnderTest,
        base: Path,
        output: KeptOutput,
        options: dict[str, int],
    ) -> None:
        self._sources = [
            MemoryStream(node.schema, directory=str(base / "sources" / str(node.number)))
            for node in sources_of(tested.tree)
        ]
        self._output = output
        stream = Stream(session, _with_sources(tested.tree, self._sources))
        writer = stream.write_stream.format(self._output).options(**options)
        self._query = writer.option("checkpointLocation", str(base / "checkpoint")).start()

    def process(self, fed: list[pa.Table]) -> None:
        """Give rows to each source, and wait until all of them are processed."""
        for source, rows in zip(self._sources, fed, strict=True):
            source.add(rows)
        self._query.process_all_available(PATIENCE_SECONDS)

    def stop(self) -> None:
        self._query.stop()


class BatchQuery:
    """A DataFrame on Spark itself: each epoch is a run that processes what there is and ends."""

    def __init__(
        self, frame: DataFrame, tested: QueryUnderTest, checkpoint: Path, output: KeptOutput
    ) -> None:
        self._frame, self._mode, self._checkpoint = frame, tested.output_mode, checkpoint
        self._places = [_place_of(node) for node in sources_of(tested.tree)]
        self._output = output

    def process(self, fed: list[pa.Table]) -> None:
        for place, rows in zip(self._places, fed, strict=True):
            if rows.num_rows:
                hidden = place / f"_{uuid4().hex}.parquet"
                pq.write_table(rows, hidden)
                hidden.rename(place / hidden.name.removeprefix("_"))
        writer = self._frame.writeStream.outputMode(self._mode).foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(int(PATIENCE_SECONDS)):
            query.stop()
            raise TimeoutError(f"Spark did not process the rows within {PATIENCE_SECONDS} s.")

    def _take(self, rows: DataFrame, batch: int) -> None:
        self._output.take(batch, collected(rows))

    def stop(self) -> None:
        """It has ended already."""


class KeptOutput(MemoryOutput):
    def by_epoch(self) -> dict[int, pa.Table]:
        with self._lock:
            return dict(self._epochs)


def _with_sources(tree: Node, sources: list[MemoryStream]) -> Node:
    def again(child: Node) -> Node:
        return _with_sources(child, sources)

    match tree:
        case StreamSource(number=number):
            return replace(tree, format=sources[number], options={}, user_schema=None)
        case Step(child=child) | Watermarked(child=child):
            return replace(tree, child=again(child))
        case Union(children=children) | Stateful(children=children):
            return replace(tree, children=tuple(map(again, children)))


def _place_of(node: StreamSource) -> Path:
    """Return the directory of a source of `testing.frame`."""
    path = {key.lower(): value for key, value in node.options.items()}.get("path", "")
    place = Path(path.removeprefix("file:"))
    if node.format != "parquet" or "epochal-frame-" not in path:
        raise OptionError(
            f"Source {node.number} is {node.description}. Spark would read the real one, which a "
            f"test cannot feed: begin the DataFrame with testing.frame(schema)."
        )
    return place
