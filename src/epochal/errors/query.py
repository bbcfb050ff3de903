"""Why a continuous query cannot run."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class QueryError(EpochalError):
    """A continuous query cannot run, or runs no more."""


class TooFewSlotsError(QueryError):
    """A query's tasks run all at once or not at all, and there is no room for all."""

    def __init__(self, needed: int, free: int, total: int, waited_seconds: float) -> None:
        super().__init__(needed, free, total, waited_seconds)
        self.needed, self.free, self.total = needed, free, total
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return (
            f"The query needs {self.needed} slots at once, one for each task, and "
            f"{self.free} of the cluster's {self.total} are free ({self.waited_seconds:g} s "
            f"waited). Tasks of a continuous query never end, so it would wait for ever: lower "
            f"its parallelism, add cores, or stop what holds the others."
        )


class TaskFailedError(QueryError):
    """A task ended with an error, or the job did; `cause` is its traceback or Spark's words."""

    def __init__(self, task: int | None, error: str, cause: str) -> None:
        super().__init__(task, error, cause)
        self.task, self.error, self.cause = task, error, cause

    def __str__(self) -> str:
        who = "The job of all tasks" if self.task is None else f"Task {self.task}"
        return f"{who} failed: {self.error}\n{self.cause}".rstrip()


class DriverLostError(QueryError):
    """The driver's JVM has ended."""

    def __init__(self, evidence: str) -> None:
        super().__init__(evidence)
        self.evidence = evidence

    def __str__(self) -> str:
        return (
            f"The driver's JVM is gone ({self.evidence}), and with it every executor. The "
            f"checkpoint is sound: start the program again and the query goes on from its last "
            f"decided epoch."
        )


class QueryFailedError(QueryError):
    """A query ended with an error; `cause` says which, in the words of whoever raised it."""

    condition = "STREAM_FAILED"

    def __init__(self, query_id: str, run_id: str, name: str | None, cause: str) -> None:
        super().__init__(query_id, run_id, name, cause)
        self.query_id, self.run_id, self.name, self.cause = query_id, run_id, name, cause

    def __str__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return (
            f"[{self.condition}] Query {name}[id = {self.query_id}, runId = {self.run_id}] "
            f"terminated with exception: {self.cause}"
        )
