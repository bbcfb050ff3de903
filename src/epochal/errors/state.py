"""Errors of state stores."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class StateError(EpochalError):
    """A version of a state store cannot be loaded, or cannot be written."""


class StateFormatError(StateError):
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


class StateSchemaError(StateError):
    """A state schema, or a schema file, is not one that Spark could have written."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source, self.reason = source, reason

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.reason}. Without its schema the state cannot be decoded: "
            f"compare it with the schema of the query, or restore the file."
        )


class StateSchemaMismatchError(StateError):
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


class StateValueError(StateError):
    """A value does not fit its column."""

    def __init__(self, field: str, type_name: str, reason: str) -> None:
        super().__init__(field, type_name, reason)
        self.field, self.type_name, self.reason = field, type_name, reason

    def __str__(self) -> str:
        return f"{self.field} ({self.type_name}): {self.reason}. Correct it; nothing was changed."


class StateLoadError(StateError):
    """Files of a state store version are missing, or cannot be repaired."""

    def __init__(self, store: str, reason: str, condition: str) -> None:
        super().__init__(store, reason, condition)
        self.store, self.reason = store, reason
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.store}: {self.reason}. The state would be incomplete, so "
            f"nothing was loaded. `epochal state verify` shows which versions can still be read."
        )


class StateReadError(StateError):
    """A read requests a batch, an operator, a store or a variable that does not exist."""

    def __init__(self, checkpoint: str, reason: str, condition: str) -> None:
        super().__init__(checkpoint, reason, condition)
        self.checkpoint, self.reason = checkpoint, reason
        self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.checkpoint}: {self.reason}"


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


class StateUsageError(StateError):
    """A store was used after its end, or in a way that it does not support."""

    def __init__(self, store: str, reason: str, condition: str) -> None:
        super().__init__(store, reason, condition)
        self.store, self.reason = store, reason
        self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.store}: {self.reason}"


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


class StateCommitMissingError(StateError):
    """A batch ended before all of its state stores had committed."""

    condition = "STATE_STORE_COMMIT_VALIDATION_FAILED"

    def __init__(self, batch_id: int, expected: int, found: int, missing: tuple[str, ...]) -> None:
        super().__init__(batch_id, expected, found, missing)
        self.batch_id, self.expected = batch_id, expected
        self.found, self.missing = found, missing

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Batch {self.batch_id}: {self.found} of {self.expected} state "
            f"stores committed. Missing: {', '.join(self.missing)}. Their partitions were not "
            f"processed to the end: consume every row of the batch, and do not suppress exceptions."
        )
