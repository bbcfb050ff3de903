"""Errors of continuous queries, of the epoch protocol, and between the driver and its tasks."""

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


class UnsupportedPlanError(QueryError, failure=FailureKind.REPEATS):
    """A DataFrame has operators, functions or sources that cannot run here."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__(tuple(refusals))
        self.refusals = tuple(refusals)

    def __str__(self) -> str:
        count = len(self.refusals)
        things = "one part of it is" if count == 1 else f"{count} parts of it are"
        listed = "".join(f"\n  - {refusal}" for refusal in self.refusals)
        return f"The DataFrame cannot run, because {things} not supported:{listed}"


class ExpressionError(QueryError, failure=FailureKind.REPEATS):
    """A column expression has no result for a row, and Spark makes that an error too."""


class EvaluatorError(QueryError, failure=FailureKind.REPEATS):
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


class EvaluatorLostError(EvaluatorError, failure=FailureKind.LOST):
    """The process that runs Spark's own code was killed, or is too slow to start."""


class TooFewSlotsError(QueryError, failure=FailureKind.UNAVAILABLE):
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


class WorkerPythonError(QueryError, failure=FailureKind.REPEATS):
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


class ForeachBatchError(QueryError, failure=FailureKind.REPEATS):
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


class DriverLostError(QueryError, failure=FailureKind.REPEATS):
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


class EpochError(EpochalError):
    """The epoch protocol was violated; the query stops rather than commit wrong results."""


class StaleAttemptError(EpochError):
    """A message belongs to an attempt other than the current one."""

    def __init__(self, attempt: int, current: int) -> None:
        super().__init__(attempt, current)
        self.attempt, self.current = attempt, current

    def __str__(self) -> str:
        return (
            f"A message of attempt {self.attempt} was rejected: attempt {self.current} is running. "
            f"The sender is a leftover task; it stops by itself."
        )


class EpochProtocolError(EpochError):
    """A message came from an unknown sender, or at a point where it is not valid."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who, self.reason = who, reason

    def __str__(self) -> str:
        return (
            f"{self.who}: {self.reason}. The driver and its tasks disagree about what is running, "
            f"so nothing more is committed. The next attempt resumes from the last decided epoch."
        )


class EpochBacklogError(EpochError):
    """Too many reports or epochs wait for a task that does not report.

    `queue` is `partition offset`, `partition commit` or `epoch`, as Spark names them.
    """

    def __init__(self, queue: str, size: int, limit: int) -> None:
        super().__init__(queue, size, limit)
        self.queue, self.size, self.limit = queue, size, limit

    def __str__(self) -> str:
        return (
            f"Size of the {self.queue} queue has exceeded its maximum: it has {self.size} entries, "
            f"the maximum is {self.limit}. A task is too slow or does not report: give the query "
            f"the cores it needs, use longer epochs, or raise "
            f"spark.sql.streaming.continuous.epochBacklogQueueSize."
        )


class EpochStalledError(EpochError):
    """An epoch has ended and was not committed for too long."""

    def __init__(self, epoch: int, missing: tuple[int, ...], tasks: int, seconds: float) -> None:
        super().__init__(epoch, missing, tasks, seconds)
        self.epoch, self.missing = epoch, missing
        self.tasks, self.seconds = tasks, seconds

    def __str__(self) -> str:
        if self.missing:
            named = ", ".join(map(str, self.missing[:8])) + (", …" if len(self.missing) > 8 else "")
            cause = (
                f"{len(self.missing)} of {self.tasks} tasks ({named}) have not reported it: their "
                f"code or their sink hangs, or takes longer than that for one batch"
            )
        else:
            cause = (
                "every task has reported it: the commit of the sink or the storage "
                "of the checkpoint hangs"
            )
        return (
            f"Epoch {self.epoch} has ended, but was not committed for {self.seconds:g} s, and "
            f"{cause}. The tasks are restarted. If they only need more time, raise stallTimeout."
        )


class RecoveryError(EpochError, failure=FailureKind.REPEATS):
    """The logs of a checkpoint do not show which epochs are decided."""

    def __init__(self, paths: tuple[str, ...], reason: str) -> None:
        super().__init__(paths, reason)
        self.paths, self.reason = paths, reason

    def __str__(self) -> str:
        return (
            f"{', '.join(self.paths)}: {self.reason}. Resuming from a guess could lose or "
            f"duplicate rows. `epochal checkpoint verify` shows the problems in the logs; "
            f"`epochal checkpoint repair` or `epochal checkpoint rewind` fixes them."
        )


class MarkerError(RecoveryError):
    """The marker of a query's transactions does not fit the logs of its checkpoint."""

    def __init__(self, place: str, reason: str, remedy: str) -> None:
        super().__init__((place,), reason)
        self.args = (place, reason, remedy)
        self.place, self.remedy = place, remedy

    def __str__(self) -> str:
        return (
            f"The sink's marker in {self.place}: {self.reason}. It is unknown which epochs were "
            f"written, so continuing could lose or duplicate rows. {self.remedy}"
        )


class FrameError(EpochError):
    """A task received bytes that are not a frame of the exchange."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"A frame was rejected: {self.reason}. The peer is broken or runs another version: all "
            f"hosts must run the same release of Epochal."
        )


class RowTooLargeError(EpochError, failure=FailureKind.REPEATS):
    """A row is too large to be sent from one task to another."""

    def __init__(self, edge: int, size: int, limit: int) -> None:
        super().__init__(edge, size, limit)
        self.edge, self.size, self.limit = edge, size, limit

    def __str__(self) -> str:
        return (
            f"A row of {self.size / 1e6:,.1f} MB cannot be sent to the task that has the state of "
            f"its key (exchange {self.edge}): the limit is {self.limit / 1e6:,.1f} MB per row. "
            f"Drop large columns before the stateful operator, or store large values elsewhere and "
            f"keep a reference in the row. With parallelism 1 rows are not sent."
        )


class ExchangeError(EpochError):
    """A channel between two tasks lost, repeated or reordered frames."""

    def __init__(self, edge: int, peer: int, reason: str) -> None:
        super().__init__(edge, peer, reason)
        self.edge, self.peer, self.reason = edge, peer, reason

    def __str__(self) -> str:
        return (
            f"The channel of task {self.peer} of exchange {self.edge} is broken: {self.reason}. "
            f"Rows could be lost or duplicated, so the attempt ends; the next one resumes from the "
            f"last decided epoch."
        )


class SinkConflictError(EpochError, failure=FailureKind.REPEATS):
    """A sink's log already has an entry for the epoch, with different output."""

    def __init__(self, log: str, epoch: int, missing: str) -> None:
        super().__init__(log, epoch, missing)
        self.log, self.epoch, self.missing = log, epoch, missing

    def __str__(self) -> str:
        return (
            f"{self.log} already has an entry for epoch {self.epoch}, and it does not list "
            f"{self.missing}, which this query wrote in that epoch. Another query, or an earlier "
            f"checkpoint of this query, wrote to the same directory; committing would lose these "
            f"rows. Give the query its own output directory, or the checkpoint that belongs to "
            f"this one."
        )


class RpcError(EpochalError):
    """A peer is unreachable, or does not speak the protocol."""


class RpcTimeoutError(RpcError):
    """An endpoint did not answer in time."""

    def __init__(self, endpoint: str, address: str, seconds: float) -> None:
        super().__init__(endpoint, address, seconds)
        self.endpoint, self.address, self.seconds = endpoint, address, seconds

    def __str__(self) -> str:
        return (
            f"{self.endpoint} at {self.address} did not answer within {self.seconds} s. The driver "
            f"has ended, cannot be reached from this host, or rejected this process's key."
        )


class RpcFrameError(RpcError):
    """A frame violates the protocol.

    `fault` is `malformed`, `oversized` or `unknown_version`.
    """

    def __init__(self, reason: str, fault: str = "malformed") -> None:
        super().__init__(reason, fault)
        self.reason, self.fault = reason, fault

    def __str__(self) -> str:
        return (
            f"Rejected a frame: {self.reason}. The driver and all executors must run the same "
            f"release of Epochal."
        )


class RpcRemoteError(RpcError):
    """An endpoint answered a request with a failure."""

    def __init__(self, endpoint: str, kind: str, reason: str) -> None:
        super().__init__(endpoint, kind, reason)
        self.endpoint, self.kind, self.reason = endpoint, kind, reason

    def __str__(self) -> str:
        return f"{self.endpoint} failed: {self.kind}: {self.reason}"
