"""Errors of continuous queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from epochal.errors.base import EpochalError, FailureKind


class QueryError(EpochalError):
    """A continuous query cannot run, or has stopped."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A part of a DataFrame that cannot run here, and what to do instead."""

    operator: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.what}. Instead: {self.instead}."


class UnsupportedPlanError(QueryError):
    """A DataFrame has operators, functions or sources that cannot run here."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(tuple(refusals))
        self.refusals = tuple(refusals)

    def __str__(self) -> str:
        count = len(self.refusals)
        things = "one part of it is" if count == 1 else f"{count} parts of it are"
        listed = "".join(f"\n  - {each}" for each in self.refusals)
        return f"The DataFrame cannot run, because {things} not supported:{listed}"


class ExpressionError(QueryError):
    """A column expression has no result for a row, and Spark makes that an error too."""


class EvaluatorError(QueryError):
    """The process that runs Spark's own code for an executor's tasks cannot do it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{_EVALUATOR}{self.reason}."

    @classmethod
    def of_text(cls, text: str) -> EvaluatorError:
        """The error whose text is known, from another process."""
        return cls(text.removeprefix(_EVALUATOR).removesuffix("."))


_EVALUATOR = "The evaluator, which runs Spark's own code for the tasks: "


class EvaluatorLostError(EvaluatorError):
    """The process that runs Spark's own code was killed, or is too slow to start."""


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


class WorkerPythonError(QueryError):
    """The Python workers of the cluster cannot run our tasks."""

    def __init__(self, reason: str, own_python: str) -> None:
        super().__init__(reason, own_python)
        self.reason, self.own_python = reason, own_python

    def __str__(self) -> str:
        return (
            f"Spark's Python workers cannot run the query: {self.reason}. Set PYSPARK_PYTHON, "
            f"before the session starts, to an interpreter that every worker has, with the same "
            f"versions as the driver's {self.own_python}."
        )


class TaskFailedError(QueryError):
    """A task or the job of all tasks failed; `cause` is its traceback or Spark's message."""

    def __init__(
        self, task: int | None, error: str, cause: str, kind: FailureKind = FailureKind.LOST
    ) -> None:
        super().__init__(task, error, cause, kind)
        self.task, self.error, self.cause, self.kind = task, error, cause, kind

    def __str__(self) -> str:
        who = "The job of all tasks" if self.task is None else f"Task {self.task}"
        return f"{who} failed: {self.error}\n{self.cause}".rstrip()


class ForeachBatchError(QueryError):
    """The function of foreachBatch raised `error`; `cause` is its traceback."""

    condition = "FOREACH_BATCH_USER_FUNCTION_ERROR"

    def __init__(self, epoch: int, error: str, cause: str) -> None:
        super().__init__(epoch, error, cause)
        self.epoch, self.error, self.cause = epoch, error, cause

    def __str__(self) -> str:
        return (
            f"[{self.condition}] The function of foreachBatch failed on epoch {self.epoch}: "
            f"{self.error}. The next start calls it again with the same rows.\n{self.cause}"
        ).rstrip()


class HostSilentError(QueryError):
    """Tasks have sent nothing for too long: their host is cut off, or their processes hang."""

    def __init__(self, silent: Mapping[int, float], executors: Collection[str]) -> None:
        super().__init__(silent, executors)
        self.silent, self.executors = dict(silent), sorted(executors)

    def __str__(self) -> str:
        tasks = ", ".join(str(task) for task in sorted(self.silent))
        seconds = max(self.silent.values(), default=0.0)
        lost = f" Excluded executors: {', '.join(self.executors)}." if self.executors else ""
        return (
            f"Tasks {tasks} have sent no pulse for {seconds:.0f} s (silenceTimeout), so their host "
            f"is cut off or their processes hang.{lost} The query restarts on the other slots."
        )


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
