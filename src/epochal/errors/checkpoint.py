"""What can be wrong with a checkpoint."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class CheckpointError(EpochalError):
    """The checkpoint directory cannot be trusted or used as it is."""


class MalformedFileError(CheckpointError):
    """A file's bytes are not what its format demands."""

    condition = "MALFORMED_LOG_FILE"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Failed to read {self.path}: {self.reason}. A restart would stop "
            f"here; `epochal checkpoint verify` lists what can be repaired."
        )


class UnsupportedVersionError(CheckpointError):
    """A log file carries a version above the newest one known."""

    condition = "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION"

    def __init__(self, path: str, found: int, newest: int) -> None:
        super().__init__(path, found, newest)
        self.path, self.found, self.newest = path, found, newest

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.path} has version v{self.found}; the newest known here is "
            f"v{self.newest}. It was written by a newer release of Spark: read it with that one, "
            f"or upgrade Epochal."
        )


class MissingBatchError(CheckpointError):
    """A batch that must be in a log is not there."""

    def __init__(self, path: str, missing: tuple[int, ...], detail: str) -> None:
        super().__init__(path, missing, detail)
        self.path, self.missing, self.detail = path, missing, detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class ConcurrentUpdateError(CheckpointError):
    """A log entry was written by somebody else first."""

    condition = "CONCURRENT_STREAM_LOG_UPDATE"

    def __init__(self, path: str, batch_id: int) -> None:
        super().__init__(path, batch_id)
        self.path, self.batch_id = path, batch_id

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Batch {self.batch_id} is already in {self.path}: another run "
            f"wrote it first. Two runs share one checkpoint: stop one of them, or give it a "
            f"checkpointLocation of its own."
        )


class CheckpointInUseError(CheckpointError):
    """A live run, or something that still writes, owns the checkpoint."""

    condition = "CONCURRENT_QUERY"

    def __init__(self, path: str, this_run: str, other_run: str, evidence: str) -> None:
        super().__init__(path, this_run, other_run, evidence)
        self.path, self.this_run = path, this_run
        self.other_run, self.evidence = other_run, evidence

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.path} is in use by run {self.other_run} ({self.evidence}); "
            f"this is run {self.this_run}. Stop the other one first: two writers on one "
            f"checkpoint lose data."
        )


class CheckpointLostError(CheckpointError):
    """This run was fenced: another one owns the checkpoint, or may by now."""

    def __init__(self, path: str, this_run: str, reason: str) -> None:
        super().__init__(path, this_run, reason)
        self.path, self.this_run, self.reason = path, this_run, reason

    def __str__(self) -> str:
        return (
            f"Run {self.this_run} no longer owns {self.path}: {self.reason}. It must not write "
            f"there again; stop it, and start the query anew if no other run has taken over."
        )


class PlanChangedError(CheckpointError):
    """The checkpoint was made by a query whose stateful operators are not those of this one."""

    def __init__(self, path: str, stored: str, asked: str) -> None:
        super().__init__(path, stored, asked)
        self.path, self.stored, self.asked = path, stored, asked

    def __str__(self) -> str:
        return (
            f"{self.path} was made by a query with {self.stored}; this query has {self.asked}. "
            f"State of the one would be read as state of the other: go back to the query that "
            f"made the checkpoint, or give this one a checkpointLocation of its own."
        )


class EditError(CheckpointError):
    """A tool refuses to change the checkpoint, and changed nothing."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
