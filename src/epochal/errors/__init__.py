"""Every error Epochal raises, in one tree.

    EpochalError
    ├── OptionError                    the query or the command is wrong: fix it and call again
    │   └── KafkaStartError            a query cannot start where it is told to
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
    │   ├── KafkaTopicError            topics that are to be read are not there
    │   ├── KafkaDataLossError         records that were to be read are gone
    │   ├── GroupRefusedError          a consumer group must not, or may not, be written
    │   ├── KafkaRecordError           a record cannot be written as it is
    │   └── KafkaFencedError           a transactional producer was shut out
    ├── KafkaTimestampError            a record's timestamp is beyond what a timestamp can hold
    ├── PubSubError                    Pub/Sub did not do what it was asked
    │   ├── PubSubFailedError          a call or a stream failed
    │   │   ├── PubSubRejectedError    and will fail again, until something is changed
    │   │   └── PubSubUnavailableError though it was tried again for as long as allowed
    │   ├── PubSubClosedError          a client was used after its end
    │   ├── PayloadError               a value cannot be a message, or a schema one of messages
    │   └── PubSubRefusedError         the embedded server refuses a call, in Google's words
    ├── EpochError                     a task or the coordinator broke the epoch protocol
    │   ├── StaleAttemptError          a task of another attempt spoke
    │   ├── EpochConflictError         one task or reader said two different things
    │   ├── EpochProtocolError         something was said that cannot be at this point
    │   ├── EpochBacklogError          more waits to be committed than may
    │   ├── RendezvousError            not all tasks were there in time
    │   ├── RecoveryError              the logs do not say where to go on
    │   │   └── MarkerError            nor does the marker of Kafka transactions
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

from epochal.errors.base import (
    ComponentError,
    EpochalError,
    LostAnswerError,
    OptionError,
    StorageError,
)
from epochal.errors.checkpoint import (
    CheckpointError,
    CheckpointInUseError,
    CheckpointLostError,
    ConcurrentUpdateError,
    EditError,
    MalformedFileError,
    MissingBatchError,
    PlanChangedError,
    UnsupportedVersionError,
)
from epochal.errors.epoch import (
    DriverSilentError,
    EpochBacklogError,
    EpochConflictError,
    EpochError,
    EpochProtocolError,
    ExchangeError,
    FrameError,
    RecoveryError,
    RendezvousError,
    SinkConflictError,
    StaleAttemptError,
)
from epochal.errors.kafka import (
    GroupRefusedError,
    KafkaDataLossError,
    KafkaError,
    KafkaFencedError,
    KafkaRecordError,
    KafkaStartError,
    KafkaTimestampError,
    KafkaTopicError,
    KafkaUnavailableError,
    MarkerError,
)
from epochal.errors.pubsub import (
    PayloadError,
    PubSubClosedError,
    PubSubError,
    PubSubFailedError,
    PubSubReaderError,
    PubSubRefusedError,
    PubSubRejectedError,
    PubSubUnavailableError,
)
from epochal.errors.query import (
    DriverLostError,
    QueryError,
    QueryFailedError,
    TaskFailedError,
    TooFewSlotsError,
)
from epochal.errors.rpc import (
    RpcError,
    RpcFrameError,
    RpcRemoteError,
    RpcTimeoutError,
)
from epochal.errors.state import (
    StateCommitError,
    StateCommitMissingError,
    StateError,
    StateFormatError,
    StateLoadError,
    StateReadError,
    StateSchemaError,
    StateSchemaMismatchError,
    StateUsageError,
    StateValueError,
)

__all__ = [
    "CheckpointError",
    "CheckpointInUseError",
    "CheckpointLostError",
    "ComponentError",
    "ConcurrentUpdateError",
    "DriverLostError",
    "DriverSilentError",
    "EditError",
    "EpochBacklogError",
    "EpochConflictError",
    "EpochError",
    "EpochProtocolError",
    "EpochalError",
    "ExchangeError",
    "FrameError",
    "GroupRefusedError",
    "KafkaDataLossError",
    "KafkaError",
    "KafkaFencedError",
    "KafkaRecordError",
    "KafkaStartError",
    "KafkaTimestampError",
    "KafkaTopicError",
    "KafkaUnavailableError",
    "LostAnswerError",
    "MalformedFileError",
    "MarkerError",
    "MissingBatchError",
    "OptionError",
    "PayloadError",
    "PlanChangedError",
    "PubSubClosedError",
    "PubSubError",
    "PubSubFailedError",
    "PubSubReaderError",
    "PubSubRefusedError",
    "PubSubRejectedError",
    "PubSubUnavailableError",
    "QueryError",
    "QueryFailedError",
    "RecoveryError",
    "RendezvousError",
    "RpcError",
    "RpcFrameError",
    "RpcRemoteError",
    "RpcTimeoutError",
    "SinkConflictError",
    "StaleAttemptError",
    "StateCommitError",
    "StateCommitMissingError",
    "StateError",
    "StateFormatError",
    "StateLoadError",
    "StateReadError",
    "StateSchemaError",
    "StateSchemaMismatchError",
    "StateUsageError",
    "StateValueError",
    "StorageError",
    "TaskFailedError",
    "TooFewSlotsError",
    "UnsupportedVersionError",
]
