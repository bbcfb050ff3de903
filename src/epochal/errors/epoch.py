"""What breaks the epoch protocol."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class EpochError(EpochalError):
    """The epoch protocol was broken; the query stops rather than commit something wrong."""


class StaleAttemptError(EpochError):
    """A message belongs to another attempt than the one that runs."""

    def __init__(self, attempt: int, current: int) -> None:
        super().__init__(attempt, current)
        self.attempt, self.current = attempt, current

    def __str__(self) -> str:
        return (
            f"A message of attempt {self.attempt} was refused: attempt {self.current} is running. "
            f"Its sender outlived its attempt; it ends by itself."
        )


class EpochConflictError(EpochError):
    """A task or a reader reported an epoch twice, and not the same."""

    def __init__(self, who: str, epoch: int, known: str, other: str) -> None:
        super().__init__(who, epoch, known, other)
        self.who, self.epoch, self.known, self.other = who, epoch, known, other

    def __str__(self) -> str:
        return (
            f"{self.who} reported epoch {self.epoch} twice: first {self.known}, then {self.other}. "
            f"Only one can be true, so the epoch is not committed; the next attempt cuts it anew."
        )


class EpochProtocolError(EpochError):
    """A message came from somebody, or at a time, that the protocol does not have."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who, self.reason = who, reason

    def __str__(self) -> str:
        return (
            f"{self.who}: {self.reason}. Driver and tasks do not agree on what runs; nothing is "
            f"committed on a guess; the next attempt goes on from the last decided epoch."
        )


class EpochBacklogError(EpochError):
    """Reports or whole epochs wait for something that does not come.

    `queue` is `partition offset`, `partition commit` or `epoch`, as Spark names them.
    """

    def __init__(self, queue: str, size: int, limit: int) -> None:
        super().__init__(queue, size, limit)
        self.queue, self.size, self.limit = queue, size, limit

    def __str__(self) -> str:
        return (
            f"Size of the {self.queue} queue has exceeded its maximum: {self.size} entries wait, "
            f"{self.limit} may. Some task does not report: give the query the cores it needs, "
            f"longer epochs, or raise spark.sql.streaming.continuous.epochBacklogQueueSize."
        )


class RendezvousError(EpochError):
    """The tasks of an attempt did not all come, or not all get ready, in time."""

    def __init__(self, step: str, missing: tuple[int, ...], tasks: int, seconds: float) -> None:
        super().__init__(step, missing, tasks, seconds)
        self.step, self.missing = step, missing
        self.tasks, self.seconds = tasks, seconds

    def __str__(self) -> str:
        named = ", ".join(map(str, self.missing[:8])) + (", …" if len(self.missing) > 8 else "")
        return (
            f"{len(self.missing)} of {self.tasks} tasks ({named}) had not {self.step} after "
            f"{self.seconds:g} s. All of them must run at once: the query needs {self.tasks} free "
            f"slots, and every executor must reach the driver."
        )


class RecoveryError(EpochError):
    """The logs of a checkpoint leave open which epochs are decided."""

    def __init__(self, paths: tuple[str, ...], reason: str) -> None:
        super().__init__(paths, reason)
        self.paths, self.reason = paths, reason

    def __str__(self) -> str:
        return (
            f"{', '.join(self.paths)}: {self.reason}. To go on from a guess could lose rows or "
            f"write them twice; `epochal checkpoint verify` shows the logs, and `rewind` or "
            f"`repair` put them in order."
        )


class FrameError(EpochError):
    """What a task received is not a frame of the exchange."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"A frame was refused: {self.reason}. The peer is broken or of another version."


class ExchangeError(EpochError):
    """A channel between two tasks broke its rules: rows are lost, or would be counted twice."""

    def __init__(self, stage: int, peer: int, reason: str) -> None:
        super().__init__(stage, peer, reason)
        self.stage, self.peer, self.reason = stage, peer, reason

    def __str__(self) -> str:
        return (
            f"The channel of task {self.peer} at stage {self.stage} is broken: {self.reason}. The "
            f"attempt ends here; the next one begins at the last decided epoch."
        )


class DriverSilentError(EpochError):
    """A task has not heard of its driver for longer than it may."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(url, seconds)
        self.url, self.seconds = url, seconds

    def __str__(self) -> str:
        return (
            f"The driver at {self.url} has not answered for {self.seconds:g} s. Whatever this task "
            f"does now could not be committed, so it ends; look for the end of the driver."
        )


class SinkConflictError(EpochError):
    """A sink's log has an epoch already, with other output than this query's."""

    def __init__(self, log: str, epoch: int, missing: str) -> None:
        super().__init__(log, epoch, missing)
        self.log, self.epoch, self.missing = log, epoch, missing

    def __str__(self) -> str:
        return (
            f"{self.log} has an entry for epoch {self.epoch} that does not name {self.missing}, "
            f"which this query wrote in it. Another query, or an earlier checkpoint of this one, "
            f"writes to the same directory; committing would lose these rows. Give the query a "
            f"directory of its own, or the checkpoint that belongs to this one."
        )
