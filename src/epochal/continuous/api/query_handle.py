"""The handle of a running query, returned by `start()`.

All methods may be called from any thread, also after the query has ended. None of them blocks the
query.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from epochal.continuous.run.engine import Engine
from epochal.errors import QueryFailedError


class StreamingQuery:
    """A continuous query, with the methods of PySpark's `StreamingQuery`.

    Each has Python's spelling, `last_progress`, and PySpark's, `lastProgress`.
    """

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
        """The query's id: the same in all runs from one checkpoint."""
        return self._engine.query_id

    @property
    def run_id(self) -> str:
        """The id of this run: a new one with every `start()`."""
        return self._engine.run_id

    @property
    def name(self) -> str | None:
        """The name given by `query_name`, unique among the active queries of a session."""
        return self._engine.name

    @property
    def is_active(self) -> bool:
        """Whether the query has not ended. A query that is being restarted is active."""
        return self._engine.is_active

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, with Spark's keys and four of our own.

        `isDataAvailable` and `isTriggerActive` apply to micro-batches only and are always False.
        `epoch` is the newest committed epoch, -1 before the first one. `restarts` is how often the
        tasks were restarted in this run. `degraded` says what the query waits for and since when,
        such as storage or a broker that does not work, or why a source cannot be reached from the
        driver; it is empty if all is well.
        """
        state = self._engine.state
        return {
            "message": state.message,
            "isDataAvailable": False,
            "isTriggerActive": False,
            "epoch": state.committed,
            "attempt": state.attempt,
            "restarts": state.restarts,
            "degraded": state.trouble,
        }

    @property
    def last_progress(self) -> StreamingQueryProgress | None:
        """The newest progress report; None before the first one."""
        reports = self._engine.reports()
        return _progress(reports[-1]) if reports else None

    @property
    def recent_progress(self) -> list[StreamingQueryProgress]:
        """The newest hundred progress reports, oldest first."""
        return [_progress(report) for report in self._engine.reports()]

    def exception(self) -> QueryFailedError | None:
        """Return the error that ended the query; None if it is active or was stopped."""
        return self._engine.error

    def process_all_available(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything that the sources contain now is processed and committed.

        For tests. Rows that arrive after the call are not waited for. Raise the query's error if it
        fails meanwhile, TimeoutError if time runs out.
        """
        self._engine.wait_until_read(timeout_seconds)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the query ends; return whether it has. Raise its error if it failed."""
        ended = self._engine.wait(timeout_seconds)
        error = self._engine.error
        if ended and error is not None:
            raise error
        return ended

    def stop(self) -> None:
        """Stop the query at the end of an epoch, and return when it has ended.

        Rows that were read are committed first. If that takes longer than `stopTimeout`, the tasks
        are killed. Nothing is lost: the next start continues from the last decided epoch.
        """
        self._engine.stop()

    def explain(self, extended: bool = False) -> None:
        """Print the plan. `extended` is accepted as in PySpark; there is only one plan to print."""
        del extended
        sys.stdout.write(self._engine.explanation() + "\n")

    runId = run_id
    isActive = is_active
    lastProgress = last_progress
    recentProgress = recent_progress
    processAllAvailable = process_all_available
    awaitTermination = await_termination


def _progress(report: dict[str, Any]) -> StreamingQueryProgress:
    """Return a report as PySpark's class, which is a dict, including the keys that Spark lacks."""
    progress = StreamingQueryProgress.fromJson(report)
    for key in report.keys() - progress.keys():
        dict.__setitem__(progress, key, report[key])
    return progress
