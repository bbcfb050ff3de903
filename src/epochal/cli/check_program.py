"""Runs a user's program with `start()` intercepted: its queries are collected, and none starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from epochal.cli.run_program import execute
from epochal.continuous.api.dataframe_writer import DataFrameWriter
from epochal.continuous.api.query_manager import StreamingQueryManager as OurQueryManager
from epochal.continuous.api.stream_writer import StreamWriter
from epochal.errors import OptionError
from epochal.files import local_path, scheme_of
from epochal.tools.upgrade.check_query import written_options
from epochal.wording import counted

MOST_LOOKS = 10
"""More than a program needs that looks at a query which has ended."""


@dataclass(frozen=True, slots=True)
class WouldStart:
    """A query that the program would have started."""

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
    """Run a program and return the queries that it would have started."""
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

    def start_spark(writer: Any, path: Any = None, *positional: Any, **named: Any) -> NotStarted:
        names = ("format", "outputMode", "partitionBy", "queryName")
        arguments = {**dict(zip(names, positional, strict=False)), **named}
        for name in names:
            value = arguments.pop(name, None)
            if value is not None:
                getattr(writer, name)(value)
        writer.options(**arguments)
        options = written_options(writer)
        return keep(writer, options)

    def start_frame(writer: Any, path: Any = None, *positional: Any, **named: Any) -> NotStarted:
        names = ("format", "outputMode", "partitionBy", "queryName")
        arguments = {**dict(zip(names, positional, strict=False)), **named}
        writer._apply(*(arguments.pop(name, None) for name in names), arguments)
        return keep(writer, writer._options)

    def start_stream(writer: Any, path: Any = None) -> NotStarted:
        return keep(writer, writer.given or {})

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
