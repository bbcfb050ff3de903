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
    │   ├── CheckpointLostError        this run does not own the checkpoint any more
    │   ├── PlanChangedError           its state belongs to another query than the one started
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
    ├── KafkaError                     a Kafka cluster did not do what it was asked
    │   ├── KafkaUnavailableError      it gave no answer, or one that says to ask again
    │   └── GroupRefusedError          a consumer group must not, or may not, be written
    ├── EpochError                     a task or the coordinator broke the epoch protocol
    │   ├── StaleAttemptError          a task of another attempt spoke
    │   ├── EpochConflictError         one task or reader said two different things
    │   ├── EpochProtocolError         something was said that cannot be at this point
    │   ├── EpochBacklogError          more waits to be committed than may
    │   ├── RendezvousError            not all tasks were there in time
    │   ├── RecoveryError              the logs do not say where to go on
    │   ├── FrameError                 what came from a peer is not a frame of the exchange
    │   ├── ExchangeError              frames between two tasks were lost or out of order
    │   ├── DriverSilentError          a task has not heard of its driver for too long
    │   └── SinkConflictError          a sink has an epoch already, with other output
    ├── QueryError                     a continuous query cannot run, or runs no more
    │   ├── TooFewSlotsError           its tasks do not fit into the cluster
    │   ├── TaskFailedError            a task or the job of all tasks ended
    │   ├── DriverLostError            the driver's JVM is gone, and every executor with it
    │   └── QueryFailedError           it was given up: what `exception()` returns
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


class KafkaError(EpochalError):
    """A Kafka cluster did not do what it was asked."""

    def __init__(self, servers: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.servers, self.reason = servers, reason

    def __str__(self) -> str:
        return f"Kafka at {self.servers}: {self.reason}"


class KafkaUnavailableError(KafkaError):
    """A cluster gave no answer in time, or one that says to ask again."""

    def __str__(self) -> str:
        return (
            f"Kafka at {self.servers} cannot be asked: {self.reason}. Check the bootstrap servers, "
            f"the network and the brokers."
        )


class GroupRefusedError(KafkaError):
    """A consumer group must not be written, or the cluster does not let us."""

    def __init__(self, servers: str, group: str, reason: str) -> None:
        super().__init__(servers, reason)
        self.args = (servers, group, reason)
        self.group = group

    def __str__(self) -> str:
        return f"Kafka at {self.servers}, consumer group {self.group!r}: {self.reason}"


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
            f"{self.who}: {self.reason}. Driver and tasks do not agree on what runs, and nothing is "
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


class QueryError(EpochalError):
    """A continuous query cannot run, or runs no more."""


class TooFewSlotsError(QueryError):
    """A query's tasks run all at once or not at all, and there is no room for all."""

    def __init__(self, needed: int, free: int, total: int, waited_seconds: float) -> None:
        super().__init__(needed, free, total, waited_seconds)
        self.needed, self.free, self.total = needed, free, total
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return (
            f"The query needs {self.needed} slots at once, one for each task, and "
            f"{self.free} of the cluster's {self.total} are free ({self.waited_seconds:g} s "
            f"waited). Tasks of a continuous query never end, so it would wait for ever: lower "
            f"its parallelism, add cores, or stop what holds the others."
        )


class TaskFailedError(QueryError):
    """A task ended with an error, or the job did; `cause` is its traceback or Spark's words."""

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
            f"The driver's JVM is gone ({self.evidence}), and with it every executor. The "
            f"checkpoint is sound: start the program again and the query goes on from its last "
            f"decided epoch."
        )


class QueryFailedError(QueryError):
    """A query ended with an error; `cause` says which, in the words of whoever raised it."""

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


class ComponentError(EpochalError):
    """A real component that a test or a demo needs cannot be found, fetched or started."""


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
