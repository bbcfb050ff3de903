"""Errors of continuous queries."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class QueryError(EpochalError):
    """A continuous query cannot run, or has stopped."""


class TooFewSlotsError(QueryError):
    """The cluster has too few free slots to run all tasks of a query at the same time."""

    def __init__(self, needed: int, free: int, total: int, waited_seconds: float) -> None:
        super().__init__(needed, free, total, waited_seconds)
        self.needed, self.free, self.total = needed, free, total
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return (
            f"The query needs {self.needed} slots at once, one for each task, but only "
            f"{self.free} of the cluster's {self.total} are free after {self.waited_seconds:g} s. "
            f"Tasks of a continuous query never end, so it cannot run with fewer: lower its "
            f"parallelism, add cores, or stop the jobs that hold the other slots."
        )


class TaskFailedError(QueryError):
    """A task or the job of all tasks failed; `cause` is its traceback or Spark's message."""

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
            f"The driver's JVM has ended ({self.evidence}), and every executor with it. The "
            f"checkpoint is intact: start the program again, and the query resumes from its last "
            f"decided epoch."
        )


class QueryFailedError(QueryError):
    """A query ended with an error; `cause` is the message of that error."""

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
