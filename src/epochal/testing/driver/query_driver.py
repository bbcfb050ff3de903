"""A query under test, run step by step in one process: `Driver`.

It is the engine: operators, exchange, tasks, coordinator, log and recovery are the ones that run on
a cluster. Only the outside is replaced: sources are fed by the test, the sink and the checkpoint
are in memory, the clock moves when the test says so, and an epoch ends when the test asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, get_args
from uuid import uuid4

from epochal.checkpoint.entries import OffsetLog
from epochal.checkpoint.layout import CLAIMS, OFFSETS
from epochal.checkpoint.restart import PROVIDER, SHUFFLE_PARTITIONS
from epochal.continuous.api.stream_writer import COMPLETE
from epochal.continuous.plan.compile import compile_plan, sources_of
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.run.take_over import pinned_partitions, settings_in_force, state_conf
from epochal.errors import EpochError, OptionError
from epochal.files import open_files
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.store_format import DATABASE_FORMAT
from epochal.testing.clock import ManualClock
from epochal.testing.driver.fed_sources import FedSource, Rows, chosen
from epochal.testing.driver.histories import (
    CrashStep,
    Disturbance,
    Fuzzing,
    Result,
    Trouble,
    functions_of,
)
from epochal.testing.driver.processes import CHECKPOINT
from epochal.testing.driver.rows import OutputRows
from epochal.testing.driver.staged_sink import StagedSink, StagingWriter, visible_tables
from epochal.testing.driver.stepped_run import RETAINED, RunSpec, SteppedRun
from epochal.testing.driver.under_test import (
    CallingSink,
    Pipeline,
    QueryUnderTest,
    calls_in_tasks,
    delivery,
    forget_planned,
    newest_watermark_ms,
    query_under_test,
    stored_values,
)
from epochal.testing.files import Crash, MemoryFiles

MAX_EPOCHS = 1_000


class Driver:
    """Runs a query under a test's control. Nothing runs between two calls.

    The query is a stream of `epochal.testing.stream`, a streaming DataFrame, or the writer of one.
    Its sources, whatever they are, are replaced by sources that the test feeds, and sinks by one in
    memory; a function of `foreach` or `foreach_batch` is called. With `checkpoint`, the query goes
    on from a copy of it in memory: the checkpoint itself is only read.
    """

    _query: QueryUnderTest
    _plan: QueryPlan
    _fed: list[FedSource]
    _run: SteppedRun | None

    def __init__(
        self,
        stream: Pipeline,
        *,
        output_mode: str | None = None,
        tasks: int = 1,
        partitions: int = 1,
        state_partitions: int | None = None,
        now_ms: int = 1_700_000_000_000,
        checkpoint: str | Path | None = None,
    ) -> None:
        self.clock = ManualClock(now_ms)
        self.files = MemoryFiles(clock=self.clock)
        """`checkpoint/` is the checkpoint."""
        if checkpoint is not None:
            copied = open_files(str(checkpoint), existing=True)
            for path, _ in copied.walk():
                if not path.startswith(f"{CLAIMS}/"):
                    self.files.create(f"{CHECKPOINT}/{path}", copied.read(path))
            forget_planned(self._checkpoint)
        query = query_under_test(stream, self._checkpoint, output_mode)
        self._begin(query, tasks, partitions, state_partitions, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def feed(
        self, source: str | int | Rows, rows: Rows | None = None, *, partition: int | None = None
    ) -> None:
        """Add rows to a source, by its name or number, which can be left out if it is the only one.

        By default calls take turns over the partitions of the source.
        """
        fed_source, table = chosen(self._fed, source, rows)
        fed_source.feed(table, partition)

    def advance(self, ms: int) -> None:
        """Move the clock. Timers that are due fire in the next epoch."""
        self.clock.advance(ms / 1000)

    def epoch(self) -> list[dict[str, Any]]:
        """Read all that was fed, end the epoch, commit it, and return its rows of output."""
        run = self._running()
        try:
            number = run.end_epoch()
        except BaseException:
            self.close()
            raise
        return self.output_by_epoch.get(number, OutputRows())

    def run(self) -> list[dict[str, Any]]:
        """Run epochs until nothing happens in one; return their rows of output."""
        output, calm = OutputRows(), 0
        # If rows waited at the start, tasks hear of the watermark one epoch after it has moved.
        needed = 2 if self._plan.watermarks and self._plan.watermarks_move == "turn" else 1
        for _ in range(MAX_EPOCHS):
            before = (self.watermark_ms, self._is_read())
            rows = self.epoch()
            output = OutputRows(rows if self._is_complete and rows else [*output, *rows])
            at_rest = before == (self.watermark_ms, True) and (not rows or self._is_complete)
            calm = calm + 1 if at_rest else 0
            if calm == needed:
                return output
        raise EpochError(
            f"The query still has output or a moving watermark after {MAX_EPOCHS} epochs."
        )

    @property
    def output(self) -> list[dict[str, Any]]:
        """All rows that the sink shows, in the order of their epochs.

        In output mode complete these are the rows of the newest epoch that has any.
        """
        epochs = [rows for rows in self.output_by_epoch.values() if rows]
        return OutputRows(row for rows in epochs[-1 if self._is_complete else 0 :] for row in rows)

    @property
    def output_by_epoch(self) -> dict[int, list[dict[str, Any]]]:
        """The rows that the sink shows, by epoch; without those of a copied checkpoint."""
        tables = visible_tables(self.files, self._first_epoch)
        return {epoch: OutputRows(table.to_pylist()) for epoch, table in tables.items()}

    @property
    def watermark_ms(self) -> int:
        """The watermark of the query after the newest committed epoch; 0 if it has none."""
        return newest_watermark_ms(self._checkpoint)

    def state(self, operator: int = 0, key: Any = None, *, store: str | None = None) -> Any:
        """Return the durable state of an operator: values by key, or the value of one key.

        A key is the tuple of its columns, or the column itself if there is just one. A value is a
        dict by column, None if there is none. `store` is needed if the operator has several.
        """
        conf = self._settings(self._query, self._plan)[1]
        values = stored_values(self._checkpoint, self._plan, conf, operator, store)
        return values if key is None else values.get(key)

    def crash(self, at: CrashStep) -> None:
        """Run an epoch and kill all processes of the query just before this step of it.

        The steps of an epoch are: cut its rows off, write the state, prepare the output, log the
        epoch (from here on it is finished, not repeated), commit the output, acknowledge.
        """
        if at not in get_args(CrashStep):
            raise OptionError(f"There is no step {at!r}; the steps are {get_args(CrashStep)}.")
        self._running().die_before(at)
        try:
            self.epoch()
        except Crash:
            return
        self.close()
        raise OptionError(
            f"The epoch was committed without the step {at!r}: a query without state does not "
            f"write any. Crash it at another step."
        )

    def disturb(self, how: Disturbance) -> None:
        """Lose, delay or double messages between tasks and coordinator in the next epoch."""
        if how not in get_args(Disturbance):
            raise OptionError(f"Messages can be {', '.join(get_args(Disturbance))}, not {how!r}.")
        self._running().disturb(how)

    def restart(self, new_pipeline: Pipeline | None = None) -> None:
        """Kill the query if it runs, and start it again, or another one on its checkpoint.

        If the new one is refused, the old one can be started again.
        """
        self.close()
        before = self._query, self._fed, self._plan
        try:
            if new_pipeline is not None:
                self._settle_plan(query_under_test(new_pipeline, self._checkpoint))
            self._start()
        except BaseException:
            self._query, self._fed, self._plan = before
            raise

    def close(self) -> None:
        """Kill the query if it runs. What it has made durable can still be read."""
        if self._run is not None:
            self._run.kill()
        self._run = None

    def save(self, checkpoint: str | Path) -> None:
        """Write the checkpoint to a new directory, for the `epochal` command or another driver."""
        target = open_files(str(checkpoint))
        for path, _ in self._checkpoint.walk():
            if not path.startswith(f"{CLAIMS}/"):
                target.create(path, self._checkpoint.read(path))

    def fuzz(
        self,
        feed: Mapping[str, Sequence[Any]] | Sequence[Any],
        *,
        seeds: int | Iterable[int] = 100,
        result: Result | None = None,
        reset: Callable[[], None] | None = None,
        duplicates: bool = False,
        late_rows: int = 0,
        delays: bool = True,
        crashes: bool = True,
    ) -> None:
        """Run the query through random histories of these rows; FuzzError if one goes wrong.

        `feed` has the rows of each source. They are fed in pieces, epochs end anywhere, the query
        crashes at any step, messages between its processes get lost, late or doubled, and time
        passes, also for code that asks for the time of day. With `duplicates`, sources deliver rows
        again. With `late_rows`, a row may come so many rows later than in `feed`.

        The rows that the sink shows at the end must be the same as without all that, or what
        `result` makes of them. It is needed for queries whose rows depend on where epochs end, as
        in output mode update, and for functions that write to a place of their own. `reset` then
        empties that place; it is called before each history.
        """
        rows = feed if isinstance(feed, Mapping) else {self._fed[0].name: feed}
        for source in rows:
            chosen(self._fed, source, ())
        steps = [step for step in get_args(CrashStep) if self._plan.stages or step != "state"]
        trouble = Trouble(
            steps=tuple(steps) if crashes else (),
            duplicates=duplicates,
            late_rows=late_rows,
            delays=delays,
        )
        functions = functions_of((self._query.tree, self._query.sink))
        fuzzing = Fuzzing(self._again, functions, result, reset)
        fuzzing.search(rows, range(seeds) if isinstance(seeds, int) else seeds, trouble)

    def _again(self, tasks: int, seed: int) -> Driver:
        """Return a driver of the same query that has not run yet, on what this one began with."""
        driver = Driver.__new__(Driver)
        driver.clock = ManualClock(self._began_ms)
        driver.files = MemoryFiles(dict(self._began), clock=driver.clock)
        driver._begin(self._query, tasks, self._partitions, None, random.Random(seed))
        return driver

    # How it runs.

    def _begin(
        self,
        query: QueryUnderTest,
        tasks: int,
        partitions: int,
        state_partitions: int | None,
        chance: random.Random | None,
    ) -> None:
        self._began_ms, self._began = self.clock.now_ms(), dict(self.files.tree)
        self._task_count, self._partitions, self._chance = tasks, partitions, chance
        pinned = pinned_partitions(self._checkpoint)
        self._state_partitions = pinned or state_partitions or tasks
        self._fed, self._run = [], None
        self._runs = self._first_epoch = 0
        self._settle_plan(query)
        self._start()

    @property
    def _checkpoint(self) -> MemoryFiles:
        return self.files.at(CHECKPOINT)

    @property
    def _is_complete(self) -> bool:
        return self._query.output_mode == COMPLETE

    def _settle_plan(self, query: QueryUnderTest) -> None:
        """Plan the query over sources that are fed; those that it had before keep their rows."""
        fed = []
        sources = {source.name: source for source in self._fed}
        for node, name in zip(sources_of(query.tree), query.source_names, strict=True):
            if name in sources:
                fed.append(sources[name].with_schema(node.schema))
            else:
                origin = f"{uuid4().hex}/{name}"
                fed.append(
                    FedSource(name, node.schema, origin, self._partitions, self._acknowledging)
                )
        plan = compile_plan(
            query.tree, fed, watermarks_move=query.watermarks_move, offset_lines=query.offset_lines
        )
        writers = StagingWriter(self.files, None)  # type: ignore[arg-type]
        self._query, self._fed = query, fed
        self._plan = replace(plan, writers=writers, state_partitions=self._state_partitions)

    def _start(self) -> None:
        self._runs += 1
        settings, conf = self._settings(self._query, self._plan)
        sink = self._query.sink

        def wrap(staged: StagedSink) -> Any:
            if sink is None or not sink.is_called_on_driver:
                return staged
            return CallingSink(staged, delivery(sink), complete=self._is_complete)

        spec = RunSpec(
            plan=self._plan,
            sources=self._fed,
            tasks=self._task_count,
            settings=settings,
            conf=conf,
            code=calls_in_tasks(sink),
            wrap=wrap,
        )
        self._run = SteppedRun(spec, self.files, self.clock, f"run-{self._runs}", self._chance)
        if self._runs == 1:
            self._first_epoch = self._run.recovered.first_epoch

    def _settings(
        self, query: QueryUnderTest, plan: QueryPlan
    ) -> tuple[dict[str, str], StateStoreConf]:
        """Return what the checkpoint pins, or will pin, and how state is kept by it."""
        stores = [store for stage in plan.stages for store in stage.stateful.stores]
        session = dict(query.session)
        if any(store.has_families for store in stores):
            session[PROVIDER] = DATABASE_FORMAT.provider_class
        settings = settings_in_force(self._checkpoint, session)
        conf = state_conf(self._checkpoint, settings, session)
        settings = {**settings, SHUFFLE_PARTITIONS: str(self._state_partitions)}
        return settings, replace(conf, min_versions_to_retain=RETAINED)

    def _running(self) -> SteppedRun:
        if self._run is None:
            raise EpochError(
                "The query is not running, because it crashed or failed. Call restart() first."
            )
        return self._run

    def _is_read(self) -> bool:
        newest = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True).get_latest()
        logged = () if newest is None else newest[1].by_source.values()
        lines = self._plan.offset_lines or range(len(self._fed))
        offsets = dict(zip(lines, logged, strict=False))
        return all(
            source.lag(source.resume(offsets.get(number) or "null"), source.latest()) == 0
            for number, source in enumerate(self._fed)
        )

    def _acknowledging(self, epoch: int) -> None:
        del epoch
        if self._run is not None:
            self._run.reach("ack")
