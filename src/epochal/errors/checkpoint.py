"""Errors of checkpoints, and of the state in them."""

from __future__ import annotations

import shlex

from epochal.errors.base import EpochalError, FailureKind


class CheckpointError(EpochalError):
    """The checkpoint is damaged, or cannot be used as it is."""


class MalformedFileError(CheckpointError, failure=FailureKind.REPEATS):
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


class UnsupportedVersionError(CheckpointError, failure=FailureKind.REPEATS):
    """The version of a log file is newer than this release supports."""

    condition = "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION"

    def __init__(self, path: str, version: int, newest: int) -> None:
        super().__init__(path, version, newest)
        self.path, self.version, self.newest = path, version, newest

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.path} has version v{self.version}; the newest supported "
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


class CheckpointInUseError(CheckpointError, failure=FailureKind.REPEATS):
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


class CheckpointLostError(CheckpointError, failure=FailureKind.REPEATS):
    """This run was fenced: another run owns the checkpoint, or may own it by now."""

    def __init__(self, path: str, this_run: str, reason: str) -> None:
        super().__init__(path, this_run, reason)
        self.path, self.this_run, self.reason = path, this_run, reason

    def __str__(self) -> str:
        return (
            f"Run {self.this_run} no longer owns {self.path}: {self.reason}. It must not write "
            f"there again: stop it, and restart the query unless another run has taken over."
        )


class CheckpointSwitchedError(CheckpointError, failure=FailureKind.REPEATS):
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


class PlanChangedError(CheckpointError, failure=FailureKind.REPEATS):
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


class StateError(EpochalError):
    """A version of a state store cannot be loaded, or cannot be written."""


class StateFormatError(StateError, failure=FailureKind.REPEATS):
    """The bytes of a state file, a record or a row do not match their format.

    `offset` is the position in `source` at which reading stopped.
    """

    condition = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"

    def __init__(self, source: str, offset: int, reason: str, condition: str = condition) -> None:
        super().__init__(source, offset, reason, condition)
        self.source, self.offset, self.reason = source, offset, reason
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.source}, byte {self.offset}: {self.reason}. The bytes "
            f"after it cannot be trusted, so nothing was loaded. `epochal state verify` shows "
            f"which versions can still be read."
        )


class StateSchemaError(StateError, failure=FailureKind.REPEATS):
    """A state schema, or a schema file, is not one that Spark could have written."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source, self.reason = source, reason

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.reason}. Without its schema the state cannot be decoded: "
            f"compare it with the schema of the query, or restore the file."
        )


class StateSchemaMismatchError(StateError, failure=FailureKind.REPEATS):
    """A query's key or value schema does not fit the stored state."""

    def __init__(self, source: str, stored: str, asked: str, condition: str) -> None:
        super().__init__(source, stored, asked, condition)
        self.source, self.stored, self.asked = source, stored, asked
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.source}: the stored schema is {self.stored}, the query has "
            f"{self.asked}. The query would misread the stored rows: go back to the query that "
            f"wrote the state, use `epochal state evolve`, or start with a new checkpoint."
        )


class StateValueError(StateError, failure=FailureKind.REPEATS):
    """A value does not fit its column."""

    def __init__(self, field: str, type_name: str, reason: str) -> None:
        super().__init__(field, type_name, reason)
        self.field, self.type_name, self.reason = field, type_name, reason

    def __str__(self) -> str:
        return f"{self.field} ({self.type_name}): {self.reason}. Correct it; nothing was changed."


class _PlacedError(StateError):
    """What is wrong with the state in one place, and Spark's name for it."""

    def __init__(self, place: str, reason: str, condition: str) -> None:
        super().__init__(place, reason, condition)
        self.place, self.reason, self.condition = place, reason, condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.place}: {self.reason}"


class StateLoadError(_PlacedError):
    """Files of a state store version are missing, or cannot be repaired."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. The state would be incomplete, so nothing was loaded. "
            f"`epochal state verify` shows which versions can still be read."
        )


class StateReadError(_PlacedError):
    """A read requests a batch, an operator, a store or a variable that does not exist."""


class StateUsageError(_PlacedError):
    """A store was used after its end, or in a way that it does not support."""


class StateCommitError(StateError):
    """A version of a state store could not be made durable."""

    condition = "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT"

    def __init__(self, store: str, version: int, reason: str) -> None:
        super().__init__(store, version, reason)
        self.store, self.version, self.reason = store, version, reason

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.store}: version {self.version} was not committed: "
            f"{self.reason}. The previous version is unchanged: run the batch again."
        )


class LocalStateError(StateError):
    """The local directory in which a task keeps its state cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}. The task keeps the state that does not fit into memory "
            f"there. Nothing is lost, because the checkpoint has all of it. Check that the "
            f"directory can be written and has free space, or set .option('stateLocalDir', ...) to "
            f"another one."
        )
