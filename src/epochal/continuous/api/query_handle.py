"""The handle of a running query: what `start()` returns.

It shows and steers; the engine runs. Nothing here blocks the query, and everything may be called
from any thread, also after the query has ended.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from epochal.continuous.run.engine import Engine
from epochal.errors import QueryFailedError


class StreamingQuery:
    """A continuous query, with the surface of PySpark's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        state = self._engine.state
        return (
            f"StreamingQuery({name}id={self.id}, run_id={self.run_id}, "
            f"epoch={state.committed}, {state.message!r})"
        )

    @property
    def id(self) -> str:
        """The same over all restarts from one checkpoint."""
        return self._engine.query_id

    @property
    def run_id(self) -> str:
        """Another with every `start()`."""
        return self._engine.run_id

    @property
    def name(self) -> str | None:
        """As given by `query_name`; no two active queries of a session share one."""
        return self._engine.name

    @property
    def is_active(self) -> bool:
        """Whether it has not ended; a query that is being restarted is active."""
        return self._engine.is_active

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing, with Spark's keys; the two flags are for micro-batches: always False.

        `epoch` is the newest committed epoch (-1 before there is one), `restarts` how often the
        tasks were started again in this run.
        """
        state = self._engine.state
        return {
            "message": state.message,
            "isDataAvailable": False,
            "isTriggerActive": False,
            "epoch": state.committed,
            "attempt": state.attempt,
            "restarts": state.restarts,
        }

    @property
    def last_progress(self) -> StreamingQueryProgress | None:
        """The newest report; None before there is one."""
        reports = self._engine.reports()
        return _progress(reports[-1]) if reports else None

    @property
    def recent_progress(self) -> list[StreamingQueryProgress]:
        """The newest hundred reports, oldest first."""
        return [_progress(each) for each in self._engine.reports()]

    def exception(self) -> QueryFailedError | None:
        """Why the query ended, if it ended by itself."""
        return self._engine.error

    def process_all_available(self, timeout_seconds: float | None = None) -> None:
        """Wait until all that is in the sources now is processed and committed.

        For tests: with a source that never pauses it waits for what was there when it was called.
        Raises what ended the query if it ends before, TimeoutError if time runs out.
        """
        self._engine.wait_until_read(timeout_seconds)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the query ends; returns whether it has. Raises if it failed."""
        ended = self._engine.wait(timeout_seconds)
        error = self._engine.error
        if ended and error is not None:
            raise error
        return ended

    def stop(self) -> None:
        """End the query where an epoch ends, and return when it has ended.

        What was read is committed first. If that takes longer than `stopTimeout` the tasks are
        killed; the next start goes on from the last decided epoch, and nothing is lost.
        """
        self._engine.stop()

    def explain(self) -> None:
        """Write the plan to standard output."""
        sys.stdout.write(self._engine.explanation() + "\n")


def _progress(report: dict[str, Any]) -> StreamingQueryProgress:
    """PySpark's own class, a dict, with the keys that Spark has no word for too."""
    found = StreamingQueryProgress.fromJson(report)
    for key in report.keys() - found.keys():
        dict.__setitem__(found, key, report[key])
    return found
