"""Errors of checkpoints."""

from __future__ import annotations

import shlex

from epochal.errors.base import EpochalError


class CheckpointError(EpochalError):
    """The checkpoint is damaged, or cannot be used as it is."""


class MalformedFileError(CheckpointError):
    """The bytes of a file do not match its format."""

    condition = "MALFORMED_LOG_FILE"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Failed to read {self.path}: {self.reason}. A restart would fail "
            f"here. `epochal checkpoint verify` lists what can be repaired."
        )


class UnsupportedVersionError(CheckpointError):
    """The version of a log file is newer than this release supports."""

    condition = "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION"

    def __init__(self, path: str, found: int, newest: int) -> None:
        super().__init__(path, found, newest)
        self.path, self.found, self.newest = path, found, newest

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.path} has version v{self.found}; the newest supported "
            f"version is v{self.newest}. A newer release of Spark wrote it: read it with that "
            f"release, or upgrade Epochal."
        )


class MissingBatchError(CheckpointError):
    """A log lacks a batch that is needed."""

    def __init__(self, path: str, missing: tuple[int, ...], detail: str) -> None:
        super().__init__(path, missing, detail)
        self.path, self.missing, self.detail = path, missing, detail

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class ConcurrentUpdateError(CheckpointError):
    """Another writer created the log entry first."""

    condition = "CONCURRENT_STREAM_LOG_UPDATE"

    def __init__(self, path: str, batch_id: int) -> None:
        super().__init__(path, batch_id)
        self.path, self.batch_id = path, batch_id

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Batch {self.batch_id} is already in {self.path}: another run "
            f"wrote it first. Two runs share one checkpoint: stop one of them, or give it its own "
            f"checkpointLocation."
        )


class CheckpointInUseError(CheckpointError):
    """A live run, or another writer, uses the checkpoint."""

    condition = "CONCURRENT_QUERY"

    def __init__(self, path: str, this_run: str, other_run: str, evidence: str) -> None:
        super().__init__(path, this_run, other_run, evidence)
        self.path, self.this_run = path, this_run
        self.other_run, self.evidence = other_run, evidence

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.path} is in use by run {self.other_run} ({self.evidence}); "
            f"this is run {self.this_run}. Stop the other run first: two writers on "
            f"one checkpoint lose data."
        )


class ClaimExpiredError(CheckpointError):
    """This run did not renew its claim in time, or another run took over; it must claim again."""

    def __init__(self, path: str, this_run: str) -> None:
        super().__init__(path, this_run)
        self.path, self.this_run = path, this_run

    def __str__(self) -> str:
        return (
            f"Run {self.this_run} may no longer write to {self.path}: it did not renew its claim "
            f"within the lease, or another run took over. The tasks are restarted, which claims "
            f"the checkpoint again if nobody else has. If the driver has long pauses, raise lease."
        )


class CheckpointLostError(CheckpointError):
    """This run was fenced: another run owns the checkpoint, or may own it by now."""

    def __init__(self, path: str, this_run: str, reason: str) -> None:
        super().__init__(path, this_run, reason)
        self.path, self.this_run, self.reason = path, this_run, reason

    def __str__(self) -> str:
        return (
            f"Run {self.this_run} no longer owns {self.path}: {self.reason}. It must not write "
            f"there again: stop it, and restart the query unless another run has taken over."
        )


class CheckpointSwitchedError(CheckpointError):
    """The query was switched to another checkpoint, on which it goes on."""

    def __init__(self, path: str, to: str, epoch: int) -> None:
        super().__init__(path, to, epoch)
        self.path, self.to, self.epoch = path, to, epoch

    @property
    def reason(self) -> str:
        return f"after epoch {self.epoch} the query was switched to {self.to}"

    def __str__(self) -> str:
        place = shlex.quote(self.path.removesuffix("/metadata"))
        return (
            f"{self.path}: {self.reason}. Running it here as well would write the same rows again: "
            f"start it on {self.to}, or go back with "
            f"`epochal switch {place} --back {shlex.quote(self.to)} --sink OUTPUT --execute`."
        )


class PlanChangedError(CheckpointError):
    """The checkpoint belongs to a query with different stateful operators."""

    def __init__(self, path: str, stored: str, asked: str) -> None:
        super().__init__(path, stored, asked)
        self.path, self.stored, self.asked = path, stored, asked

    def __str__(self) -> str:
        return (
            f"{self.path} was written by a query with {self.stored}; this query has {self.asked}. "
            f"This query would misread the other's state: go back to the query that wrote the "
            f"checkpoint, or give this query a checkpointLocation of its own."
        )


class NotStoppedError(CheckpointError):
    """A run was asked to stop, and something runs on the checkpoint still."""

    def __init__(self, path: str, run: str, reason: str) -> None:
        super().__init__(path, run, reason)
        self.path, self.run, self.reason = path, run, reason

    def __str__(self) -> str:
        return f"{self.path}: run {self.run} was asked to stop, but {self.reason}."


class EditError(CheckpointError):
    """A tool refused to change the checkpoint; nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
