"""Every error that Epochal raises, in one tree.

    EpochalError
    ├── OptionError: KafkaStartError, TableMismatchError
    ├── StorageError: LostAnswerError
    ├── CheckpointError
    │   ├── MalformedFileError, UnsupportedVersionError, MissingBatchError, ConcurrentUpdateError
    │   ├── CheckpointInUseError, ClaimExpiredError, CheckpointLostError, CheckpointSwitchedError
    │   └── NotStoppedError, PlanChangedError, EditError
    ├── StateError
    │   ├── StateFormatError, StateSchemaError, StateSchemaMismatchError, StateValueError
    │   ├── StateLoadError, StateReadError, StateCommitError, StateUsageError
    │   └── LocalStateError
    ├── RpcError: RpcTimeoutError, RpcFrameError, RpcRemoteError
    ├── KafkaError
    │   ├── KafkaUnavailableError, KafkaRejectedError, KafkaTopicError, KafkaDataLossError
    │   └── GroupRefusedError, KafkaRecordError, KafkaFencedError
    ├── KafkaTimestampError
    ├── SchemaRegistryError
    ├── PubSubError
    │   ├── PubSubFailedError: PubSubRejectedError, PubSubUnavailableError
    │   └── PubSubClosedError, PayloadError, PubSubReaderError, PubSubRefusedError
    ├── PostgresError
    │   ├── PostgresRejectedError: PostgresRowError
    │   └── PostgresUnavailableError, PostgresFencedError
    ├── EpochError
    │   ├── StaleAttemptError, EpochProtocolError, EpochBacklogError, EpochStalledError
    │   ├── SinkConflictError
    │   ├── RecoveryError: MarkerError
    │   └── FrameError, RowTooLargeError, ExchangeError
    ├── TableError: TableUnavailableError, TableConflictError, TableRowError
    ├── QueryError
    │   ├── UnsupportedPlanError, ExpressionError, ForeachBatchError, WorkerPythonError
    │   ├── EvaluatorError: EvaluatorLostError
    │   ├── TooFewSlotsError, HostSilentError, DriverLostError
    │   └── TaskFailedError, QueryFailedError
    └── ComponentError

Each class says what it means, and docs/errors.md what to do. Where Spark has a name for the same
condition, it is in `condition`. The constructor's arguments are the fields, so that an error
survives pickling from a Spark worker. `__str__` builds the message: what happened, with both
values; why it matters; what to do.
"""

# The tree above names them once; these modules define nothing else that is public.
from epochal.errors.base import *  # noqa: F403
from epochal.errors.checkpoint import *  # noqa: F403
from epochal.errors.connectors import *  # noqa: F403
from epochal.errors.query import *  # noqa: F403
