"""Errors of the epoch protocol."""

from __future__ import annotations

from epochal.errors.base import EpochalError


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


class EpochConflictError(EpochError):
    """A task or a reader reported one epoch twice, with different content."""

    def __init__(self, who: str, epoch: int, known: str, other: str) -> None:
        super().__init__(who, epoch, known, other)
        self.who, self.epoch, self.known, self.other = who, epoch, known, other

    def __str__(self) -> str:
        return (
            f"{self.who} reported epoch {self.epoch} twice: first {self.known}, then {self.other}. "
            f"At most one report is right, so the epoch is not committed; the next attempt reads "
            f"its rows again."
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


class RendezvousError(EpochError):
    """Not all tasks of an attempt registered or became ready in time."""

    def __init__(self, step: str, missing: tuple[int, ...], tasks: int, seconds: float) -> None:
        super().__init__(step, missing, tasks, seconds)
        self.step, self.missing = step, missing
        self.tasks, self.seconds = tasks, seconds

    def __str__(self) -> str:
        named = ", ".join(map(str, self.missing[:8])) + (", …" if len(self.missing) > 8 else "")
        return (
            f"{len(self.missing)} of {self.tasks} tasks ({named}) had not {self.step} after "
            f"{self.seconds:g} s. All tasks must run at the same time: the query needs "
            f"{self.tasks} free slots, and every executor must be able to reach the driver."
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


class RecoveryError(EpochError):
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


class RowTooLargeError(EpochError):
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


class DriverSilentError(EpochError):
    """A task has not heard from its driver for longer than allowed."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(url, seconds)
        self.url, self.seconds = url, seconds

    def __str__(self) -> str:
        return (
            f"The driver at {self.url} has not answered for {self.seconds:g} s. Without it this "
            f"task's work cannot be committed, so the task ends. Find out why the driver stopped."
        )


class SinkConflictError(EpochError):
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
