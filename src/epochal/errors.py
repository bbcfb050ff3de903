"""Every error Epochal raises, in one tree.

    EpochalError
    ├── OptionError                    the query or the command is wrong: fix it and call again
    ├── StorageError                   a file system or object store refused or failed
    │   └── LostAnswerError            it was asked, no answer came: done or not, nobody knows
    ├── CheckpointError                the directory cannot be trusted, or is in use
    │   ├── MalformedFileError         a file's bytes break its format
    │   ├── UnsupportedVersionError    written by a newer Spark than the formats known here
    │   ├── MissingBatchError          a log has a hole where an entry is needed
    │   ├── ConcurrentUpdateError      another writer was first
    │   ├── CheckpointInUseError       a live run owns the checkpoint
    │   └── EditError                  a tool cannot, or must not, change the checkpoint
    ├── StateError                     a state store version cannot be loaded or written
    │   ├── StateFormatError           bytes of a state file or row break their format
    │   ├── StateSchemaError           a schema is not one Spark could have written
    │   ├── StateValueError            a value does not fit the column it is meant for
    │   ├── StateLoadError             the files of a version are missing or beyond repair
    │   ├── StateReadError             a read asks for state that the checkpoint does not hold
    │   ├── StateCommitError           a version could not be made durable
    │   ├── StateUsageError            a store was used after its end, or not as it allows
    │   └── StateCommitMissingError    a batch ended before all of its stores had committed
    ├── RpcError                       a peer cannot be reached or is not one of ours
    │   ├── RpcTimeoutError            no answer within the time allowed
    │   ├── RpcFrameError              a frame breaks the protocol, its version or its size
    │   └── RpcRemoteError             the endpoint answered with a failure
    ├── EpochError                     a task or the coordinator broke the epoch protocol
    └── ComponentError                 a real component for a test or demo cannot be had or started

Where Spark has a name for the same condition, `condition` carries it. Constructor arguments are
the fields, so that an error survives pickling from a Spark worker; `__str__` words it: what
happened, with both values; why it matters; what to do.
"""

from __future__ import annotations


class EpochalError(Exception):
    """The root: catch this to catch everything Epochal raises on purpose."""

    condition: str = ""


class OptionError(EpochalError):
    """An option, argument or parameter is unknown, missing or out of range."""


class StorageError(EpochalError):
    """The storage below a path failed in a way that is not about one file's presence."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class LostAnswerError(StorageError):
    """A change was asked for and no answer came back: it may or may not have happened."""

    def __str__(self) -> str:
        return (
            f"{self.url}: {self.reason}. Whether the change was made is not known: look before "
            f"asking again."
        )


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


class EditError(CheckpointError):
    """A tool refuses to change the checkpoint, and changed nothing."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class StateError(EpochalError):
    """A version of a state store cannot be loaded, or cannot be written."""


class StateFormatError(StateError):
    """Bytes of a state file, a record or a row break their format.

    `offset` is the byte in `source` at which reading had to stop.
    """

    condition = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"

    def __init__(self, source: str, offset: int, reason: str, condition: str = condition) -> None:
        super().__init__(source, offset, reason, condition)
        self.source, self.offset, self.reason = source, offset, reason
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.source}, byte {self.offset}: {self.reason}. What follows "
            f"cannot be trusted, so nothing of it was loaded; `epochal state verify` shows which "
            f"versions can still be read."
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
    """A query's schema of keys or values cannot go on with the state that is stored."""

    def __init__(self, source: str, stored: str, asked: str, condition: str) -> None:
        super().__init__(source, stored, asked, condition)
        self.source, self.stored, self.asked = source, stored, asked
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.source}: the stored schema is {self.stored}, the query has "
            f"{self.asked}. Rows of the one would be misread as the other: go back to the query "
            f"that wrote the state, use `epochal state evolve`, or start over without it."
        )


class StateValueError(StateError):
    """A value cannot be stored in the column it is meant for."""

    def __init__(self, field: str, type_name: str, reason: str) -> None:
        super().__init__(field, type_name, reason)
        self.field, self.type_name, self.reason = field, type_name, reason

    def __str__(self) -> str:
        return (
            f"{self.field} ({self.type_name}): {self.reason}. Spark would not have stored it "
            f"either; nothing was written."
        )


class StateLoadError(StateError):
    """The files that make a version of a state store are missing, or cannot be repaired."""

    def __init__(self, store: str, reason: str, condition: str) -> None:
        super().__init__(store, reason, condition)
        self.store, self.reason = store, reason
        self.condition = condition

    def __str__(self) -> str:
        return (
            f"[{self.condition}] {self.store}: {self.reason}. Without it the state would be "
            f"incomplete, so nothing was loaded; `epochal state verify` shows which versions can "
            f"still be read."
        )


class StateReadError(StateError):
    """A read asks for a batch, an operator, a store or a variable that is not there."""

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
            f"{self.reason}. The version before it is untouched: run the batch again."
        )


class StateUsageError(StateError):
    """A store was asked for something it does not do, or no longer does."""

    def __init__(self, store: str, reason: str, condition: str) -> None:
        super().__init__(store, reason, condition)
        self.store, self.reason = store, reason
        self.condition = condition

    def __str__(self) -> str:
        return f"[{self.condition}] {self.store}: {self.reason}"


class StateCommitMissingError(StateError):
    """A batch ended although some of its state stores had not committed."""

    condition = "STATE_STORE_COMMIT_VALIDATION_FAILED"

    def __init__(self, batch_id: int, expected: int, found: int, missing: tuple[str, ...]) -> None:
        super().__init__(batch_id, expected, found, missing)
        self.batch_id, self.expected = batch_id, expected
        self.found, self.missing = found, missing

    def __str__(self) -> str:
        return (
            f"[{self.condition}] Batch {self.batch_id}: {self.expected} state stores had to "
            f"commit, {self.found} did. Missing: {', '.join(self.missing)}. Their partitions were "
            f"not processed to the end: use every row of the batch, and swallow no exception."
        )


class RpcError(EpochalError):
    """A peer cannot be reached, or does not speak as one of ours."""


class RpcTimeoutError(RpcError):
    """An endpoint did not answer in time."""

    def __init__(self, endpoint: str, address: str, seconds: float) -> None:
        super().__init__(endpoint, address, seconds)
        self.endpoint, self.address, self.seconds = endpoint, address, seconds

    def __str__(self) -> str:
        return (
            f"{self.endpoint} at {self.address} did not answer within {self.seconds} s. The driver "
            f"is gone, cannot be reached from here, or does not know this process's key."
        )


class RpcFrameError(RpcError):
    """A frame is not one that this protocol allows.

    `fault` says how: `malformed`, `oversized` or `unknown_version`.
    """

    def __init__(self, reason: str, fault: str = "malformed") -> None:
        super().__init__(reason, fault)
        self.reason, self.fault = reason, fault

    def __str__(self) -> str:
        return f"Refused a frame: {self.reason}. Driver and executors must run one release."


class RpcRemoteError(RpcError):
    """An endpoint answered that it could not do what was asked."""

    def __init__(self, endpoint: str, kind: str, reason: str) -> None:
        super().__init__(endpoint, kind, reason)
        self.endpoint, self.kind, self.reason = endpoint, kind, reason

    def __str__(self) -> str:
        return f"{self.endpoint} failed: {self.kind}: {self.reason}"


class EpochError(EpochalError):
    """The epoch protocol was broken; the query stops rather than commit something wrong."""


class ComponentError(EpochalError):
    """A real component that a test or a demo needs cannot be found, fetched or started."""
