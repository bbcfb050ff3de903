"""Runs a user's program in a Spark session: for its queries, or only to learn what they would be.

`run_program` waits until they end or are stopped. `collect_queries` intercepts `start()`, so that
none of them starts.

Note: a separate thread stops the queries. The signal handler runs in the main thread, in which the
program usually waits for its query, so it cannot also wait for the end of an epoch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

import epochal
from epochal.continuous.api.dataframe_writer import DataFrameWriter
from epochal.continuous.api.query_manager import StreamingQueryManager as OurQueryManager
from epochal.continuous.api.stream_writer import StreamWriter
from epochal.errors import OptionError, QueryFailedError
from epochal.files import local_path, scheme_of
from epochal.tools.upgrade.check_query import written_options
from epochal.wording import counted

TURN_SECONDS = 0.2
"""How long to wait for one kind of query before checking the other kind."""


def open_session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Open the program's session; settings not given here come from Spark or spark-submit."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    epochal.register(spark)
    return spark


def run_program(
    path: Path, arguments: Sequence[str], spark: SparkSession, stopping: threading.Event
) -> None:
    """Run the file as a program with the names `spark` and `epochal`, then wait for its queries.

    Setting `stopping` stops them, each at the end of an epoch or batch. Raises QueryFailedError if
    a query failed, or the exception of the program; in both cases the other queries are stopped
    first.
    """
    failures = _Failures()
    epochal.streams(spark).add_listener(failures)
    done = threading.Event()
    stopper = threading.Thread(
        target=_stop_when_set, args=(spark, stopping, done), name="epochal-stopper", daemon=True
    )
    stopper.start()
    try:
        execute(path, arguments, spark)
        _wait(spark, failures)
    finally:
        done.set()
        stopping.set()
        stopper.join()
        _stop_all(spark)
        epochal.streams(spark).remove_listener(failures)


def execute(path: Path, arguments: Sequence[str], spark: SparkSession) -> None:
    """Run the file as `__main__`, with the names `spark` and `epochal`."""
    # The program stays `__main__` until the process ends: whenever tasks restart, its functions are
    # pickled again.
    program = ModuleType("__main__")
    program.__dict__.update(__file__=str(path), spark=spark, epochal=epochal)
    sys.modules["__main__"] = program
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    exec(compile(path.read_bytes(), str(path), "exec"), program.__dict__)


def _wait(spark: SparkSession, failures: _Failures) -> None:
    """Wait until no query is active; raise if one has failed."""
    ours, theirs = epochal.streams(spark), spark.streams
    while True:
        failures.check()
        active = bool(ours.active or theirs.active)
        if ours.await_any_termination(TURN_SECONDS if ours.active else 0):
            failures.check()
            ours.reset_terminated()
        try:
            if theirs.awaitAnyTermination(TURN_SECONDS):
                theirs.resetTerminated()
        except StreamingQueryException as error:
            raise QueryFailedError("of Spark's own", "unknown", None, str(error)) from None
        if not active:
            return


def _stop_when_set(spark: SparkSession, stopping: threading.Event, done: threading.Event) -> None:
    stopping.wait()
    while not done.is_set():  # the program may start another query
        _stop_all(spark)
        done.wait(TURN_SECONDS)


def _stop_all(spark: SparkSession) -> None:
    for ours in epochal.streams(spark).active:
        ours.stop()
    for theirs in spark.streams.active:
        theirs.stop()


class QuietListener(StreamingQueryListener):  # type: ignore[misc]
    """Ignores all events. PySpark's own class requires three of its four methods."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    onQueryProgress = onQueryIdle = onQueryTerminated = onQueryStarted


class _Failures(QuietListener):
    """Remembers the first continuous query that failed.

    Listeners are called before a query leaves the list of active queries, so `_wait` misses none.
    """

    def __init__(self) -> None:
        self._first: QueryFailedError | None = None

    def check(self) -> None:
        if self._first is not None:
            raise self._first

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception and self._first is None:
            # The part after the query's name, if the message names one.
            cause = event.exception.partition("terminated with exception: ")[2] or event.exception
            self._first = QueryFailedError(str(event.id), str(event.runId), None, cause)


MOST_LOOKS = 10
"""More than a program needs that looks at a query which has ended."""


@dataclass(frozen=True, slots=True)
class WouldStart:
    writer: Any
    name: str
    checkpoint: str


class EndOfProgram(BaseException):
    """Ends a program that waits for its query. No `except Exception` of the program catches it."""


class NotStarted:
    """What `start()` returns to the program: a query that has ended already.

    A program may look at its query again and again until some rows have come. They never come, so
    it is ended after `MOST_LOOKS`. It has started its queries by then.
    """

    id = run_id = "00000000-0000-0000-0000-000000000000"

    def __init__(self, name: str) -> None:
        self.name = name or None
        self._looks = 0

    def _look(self) -> None:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise EndOfProgram

    @property
    def is_active(self) -> bool:
        self._look()
        return False

    @property
    def status(self) -> dict[str, Any]:
        self._look()
        return {"message": "Not started", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def last_progress(self) -> None:
        self._look()

    @property
    def recent_progress(self) -> list[Any]:
        self._look()
        return []

    def exception(self) -> None:
        self._look()

    def await_termination(self, timeout: float | None = None) -> bool:
        self._look()
        return True

    def process_all_available(self, timeout_seconds: float | None = None) -> None:
        self._look()

    def stop(self) -> None:
        """Do nothing."""

    def explain(self, extended: bool = False) -> None:
        """Do nothing."""

    runId = run_id
    isActive = is_active
    lastProgress = last_progress
    recentProgress = recent_progress
    awaitTermination = await_termination
    processAllAvailable = process_all_available


def collect_queries(path: Path, arguments: Sequence[str], spark: SparkSession) -> list[WouldStart]:
    starts: list[WouldStart] = []
    with intercept_starts(starts.append), _own_imports(path.resolve().parent):
        try:
            execute(path, arguments, spark)
        except EndOfProgram:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                raise OptionError(
                    f"{path} ended with status {end.code} before its query could be checked."
                ) from None
    return starts


def choose(starts: Sequence[WouldStart], checkpoint: str | None, name: str | None) -> WouldStart:
    """The query of this name, or the one with this checkpoint, or the only one."""
    if name is not None:
        matching = [start for start in starts if start.name == name]
    else:
        place = None if checkpoint is None else _place(checkpoint)
        matching = [
            start for start in starts if start.checkpoint and _place(start.checkpoint) == place
        ]
        matching = matching or list(starts if len(starts) == 1 else ())
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(f"{start.name or 'unnamed'} in {start.checkpoint}" for start in starts)
    raise OptionError(
        f"The program starts {counted(len(starts), 'query')} ({listed or 'none'}), and "
        f"{len(matching)} of them match. Name one with --query NAME."
    )


@contextmanager
def intercept_starts(record: Callable[[WouldStart], None]) -> Iterator[None]:
    """Replace the methods that start queries, wait for them or end the session."""

    names = ("format", "outputMode", "partitionBy", "queryName")

    def start_spark(writer: Any, path: Any = None, *positional: Any, **named: Any) -> NotStarted:
        arguments = {**dict(zip(names, positional, strict=False)), **named}
        for name in names:
            value = arguments.pop(name, None)
            if value is not None:
                getattr(writer, name)(value)
        writer.options(**arguments)
        return keep(writer, written_options(writer))

    def start_frame(writer: Any, path: Any = None, *positional: Any, **named: Any) -> NotStarted:
        arguments = {**dict(zip(names, positional, strict=False)), **named}
        writer._apply(*(arguments.pop(name, None) for name in names), arguments)
        return keep(writer, writer._options)

    def start_stream(writer: Any, path: Any = None) -> NotStarted:
        return keep(writer, writer.option_texts or {})

    def keep(writer: Any, options: Any) -> NotStarted:
        lower = {key.lower(): value for key, value in options.items()}
        name = lower.get("queryname", "")
        record(WouldStart(writer, name, lower.get("checkpointlocation", "")))
        return NotStarted(name)

    with ExitStack() as stack:
        for owner, method, instead in (
            (DataStreamWriter, "start", start_spark),
            (DataStreamWriter, "toTable", start_spark),
            (DataFrameWriter, "start", start_frame),
            (DataFrameWriter, "toTable", start_frame),
            (DataFrameWriter, "to_table", start_frame),
            (StreamWriter, "start", start_stream),
            (StreamingQueryManager, "awaitAnyTermination", lambda *_: True),
            (OurQueryManager, "awaitAnyTermination", lambda *_: True),
            (OurQueryManager, "await_any_termination", lambda *_: True),
            (SparkSession, "stop", lambda _: None),
            (SparkContext, "stop", lambda _: None),
        ):
            stack.enter_context(_replace_method(owner, method, instead))
        yield


@contextmanager
def _own_imports(folder: Path) -> Iterator[None]:
    """Forget afterwards what a program has imported from its folder.

    Another version of the program must import its own modules of the same names.
    """
    paths, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).resolve().is_relative_to(folder):
                del sys.modules[name]


@contextmanager
def _replace_method(owner: type, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Let a class have another method meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _place(location: str) -> str:
    if scheme_of(location) in ("", "file"):
        return str(Path(local_path(location)).resolve())
    return location.rstrip("/")
