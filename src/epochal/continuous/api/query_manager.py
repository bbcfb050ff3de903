"""Starts and lists the continuous queries of a Spark session, and manages their listeners.

`streams(spark)` returns the one manager of a session. Names are unique among the active queries of
a session. The claim on a checkpoint, not this module, ensures that only one run uses it at a time.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from epochal.continuous.api.query_handle import StreamingQuery
from epochal.continuous.run.engine import Engine, open_engine
from epochal.continuous.run.listeners import ListenerBus
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.continuous.spark_job.barrier_job import warm_evaluator
from epochal.errors import OptionError, StorageError

LISTENERS_TIMEOUT_SECONDS = 10.0
"""How long the end of a query waits until its listeners have been called."""


class StreamingQueryManager:
    """The counterpart of `spark.streams` for continuous queries.

    Each method has Python's spelling, `add_listener`, and PySpark's, `addListener`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._sc = spark.sparkContext
        self._bus = ListenerBus()
        self._changed = threading.Condition()
        self._active: dict[str, StreamingQuery] = {}
        self._starting: set[str] = set()
        self._ended: list[StreamingQuery] = []

    @property
    def active(self) -> list[StreamingQuery]:
        """The queries that have not ended."""
        with self._changed:
            return list(self._active.values())

    def get(self, query_id: str) -> StreamingQuery | None:
        """Return the active query with this id; None if there is none."""
        with self._changed:
            return next((query for query in self._active.values() if query.id == query_id), None)

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Call a PySpark `StreamingQueryListener` with the events of this session's queries."""
        self._bus.add(listener)

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Call the listener no more."""
        self._bus.remove(listener)

    def await_any_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until a query has ended since the last `reset_terminated`; return whether one has.

        Raise its error if it failed.
        """
        with self._changed:
            ended = self._changed.wait_for(lambda: bool(self._ended), timeout_seconds)
            error = self._ended[0].exception() if self._ended else None
        if error is not None:
            raise error
        return ended

    def reset_terminated(self) -> None:
        """Forget ended queries, so that `await_any_termination` waits for the next one."""
        with self._changed:
            self._ended.clear()

    addListener = add_listener
    removeListener = remove_listener
    awaitAnyTermination = await_any_termination
    resetTerminated = reset_terminated

    def start(self, definition: QueryDefinition) -> StreamingQuery:
        """Run a query; return when its first attempt is prepared and listeners were called."""
        name = definition.options.query_name
        self._reserve(name)
        try:
            if definition.needs_evaluator:
                warm_evaluator(self._sc, definition.options.evaluator_mb)
            engine = open_engine(self._sc, definition, self._bus, self._forget)
            query = StreamingQuery(engine)
            with self._changed:
                self._active[engine.run_id] = query
            try:
                engine.start()
            except BaseException:
                with self._changed:
                    self._active.pop(engine.run_id, None)
                raise
        except OSError as error:
            raise StorageError.of(error.filename or "storage", error) from error
        finally:
            with self._changed:
                self._starting.discard(name or "")
        return query

    def _reserve(self, name: str | None) -> None:
        with self._changed:
            taken = {query.name for query in self._active.values()} | self._starting
            if name and name in taken:
                raise OptionError(
                    f"A query named {name!r} is already active in this session. Names identify "
                    f"queries in progress reports and logs: stop it, or use another query_name."
                )
            if name:
                self._starting.add(name)

    def _forget(self, engine: Engine) -> None:
        self._bus.drain(LISTENERS_TIMEOUT_SECONDS)
        with self._changed:
            query = self._active.pop(engine.run_id, None)
            if query is not None:
                self._ended = [*self._ended[-99:], query]
            self._changed.notify_all()


_managers: WeakKeyDictionary[SparkSession, StreamingQueryManager] = WeakKeyDictionary()
_managers_lock = threading.Lock()


def streams(spark: SparkSession) -> StreamingQueryManager:
    """Return the manager of a session's continuous queries."""
    with _managers_lock:
        manager = _managers.get(spark)
        if manager is None:
            manager = _managers[spark] = StreamingQueryManager(spark)
        return manager
