"""Every error that Epochal raises, in one tree.

    EpochalError
    ├── OptionError                    the query or the command is invalid: correct it
    │   ├── KafkaStartError            the query cannot start at the offsets it was given
    │   └── TableMismatchError         the query's columns or mode do not fit its table
    ├── StorageError                   a file system or object store rejected a request or failed
    │   └── LostAnswerError            a change got no answer: it may or may not have been made
    ├── CheckpointError                the checkpoint is damaged, or another run uses it
    │   ├── MalformedFileError         the bytes of a file do not match its format
    │   ├── UnsupportedVersionError    a newer Spark wrote the file
    │   ├── MissingBatchError          a log lacks an entry that is needed
    │   ├── ConcurrentUpdateError      another writer created the log entry first
    │   ├── CheckpointInUseError       a live run owns the checkpoint
    │   ├── ClaimExpiredError          this run must claim the checkpoint again before it writes
    │   ├── CheckpointLostError        this run no longer owns the checkpoint
    │   ├── CheckpointSwitchedError    the query goes on from another checkpoint
    │   ├── NotStoppedError            a query that was asked to stop did not, or began again
    │   ├── PlanChangedError           the stored state belongs to a different query
    │   └── EditError                  a tool cannot, or must not, change the checkpoint
    ├── StateError                     a state store version cannot be loaded or written
    │   ├── StateFormatError           the bytes of a state file or row do not match its format
    │   ├── StateSchemaError           a schema is not one that Spark could have written
    │   ├── StateSchemaMismatchError   the query's schema does not fit the stored state
    │   ├── StateValueError            a value does not fit its column
    │   ├── StateLoadError             files of a version are missing or beyond repair
    │   ├── StateReadError             the checkpoint does not contain the requested state
    │   ├── StateCommitError           a version could not be made durable
    │   ├── StateUsageError            a store was used after its end, or in an unsupported way
    │   ├── LocalStateError            a task cannot keep its state in its local directory
    │   └── StateCommitMissingError    a batch ended before all of its stores had committed
    ├── RpcError                       a peer is unreachable, or does not speak the protocol
    │   ├── RpcTimeoutError            no answer came in time
    │   ├── RpcFrameError              a frame is malformed, too large or of another version
    │   └── RpcRemoteError             the endpoint answered with a failure
    ├── KafkaError                     a Kafka cluster rejected a request or failed
    │   ├── KafkaUnavailableError      the cluster did not answer, or answered "try again"
    │   ├── KafkaRejectedError         credentials or certificates are not accepted
    │   ├── KafkaTopicError            topics to read do not exist
    │   ├── KafkaDataLossError         records were deleted before they were read
    │   ├── GroupRefusedError          a consumer group must not, or may not, be written
    │   ├── KafkaRecordError           a row cannot be written as a record
    │   └── KafkaFencedError           a transactional producer was fenced
    ├── KafkaTimestampError            a record's timestamp does not fit into microseconds
    ├── SchemaRegistryError            a schema registry failed, or does not have a schema
    ├── PubSubError                    Pub/Sub rejected a request or failed
    │   ├── PubSubFailedError          a call or a stream failed
    │   │   ├── PubSubRejectedError    a retry would fail too, until something is changed
    │   │   └── PubSubUnavailableError all retries within the time allowed failed
    │   ├── PubSubClosedError          a client was used after it was closed
    │   ├── PayloadError               a value or schema cannot be turned into messages
    │   ├── PubSubReaderError          a process that reads Pub/Sub for Spark failed
    │   └── PubSubRefusedError         the embedded server rejects a call, as Google would
    ├── PostgresError                  a PostgreSQL server rejected a request or failed
    │   ├── PostgresUnavailableError   the server does not answer, or lacks resources
    │   ├── PostgresRejectedError      a retry would fail too, until something is changed
    │   │   └── PostgresRowError       a row cannot be written to the table
    │   └── PostgresFencedError        another run of the query has taken over
    ├── EpochError                     a task or the coordinator violated the epoch protocol
    │   ├── StaleAttemptError          a message came from a task of another attempt
    │   ├── EpochConflictError         a task or reader sent two different reports of one epoch
    │   ├── EpochProtocolError         a message is not valid at this point of the protocol
    │   ├── EpochBacklogError          too many reports or epochs wait to be committed
    │   ├── RendezvousError            not all tasks registered or became ready in time
    │   ├── EpochStalledError          an epoch ended but was not committed for too long
    │   ├── RecoveryError              the logs do not show where to resume
    │   │   └── MarkerError            the marker of transactions does not fit the logs
    │   ├── FrameError                 a peer sent bytes that are not a frame of the exchange
    │   ├── RowTooLargeError           a row is too large to be sent to another task
    │   ├── ExchangeError              frames between two tasks were lost or out of order
    │   ├── DriverSilentError          a task has not heard from its driver for too long
    │   └── SinkConflictError          the sink already has the epoch, with different output
    ├── TableError                     a table cannot be written
    │   ├── TableUnavailableError      a table's catalog or storage does not work now
    │   ├── TableConflictError         other writers changed the table in every try
    │   └── TableRowError              a row does not fit into its table
    ├── QueryError                     a continuous query cannot run, or has stopped
    │   ├── UnsupportedPlanError       a DataFrame has parts that cannot run here
    │   ├── ExpressionError            a column expression fails for a row, as it does in Spark
    │   ├── EvaluatorError             Spark's own code cannot run beside the tasks
    │   │   └── EvaluatorLostError     its process was killed, or is too slow to start
    │   ├── TooFewSlotsError           the cluster has too few free slots for the query's tasks
    │   ├── HostSilentError            tasks sent no pulse: their host is cut off or they hang
    │   ├── WorkerPythonError          the workers' interpreter lacks packages or has other versions
    │   ├── ForeachBatchError          the function of foreachBatch raised an error
    │   ├── TaskFailedError            a task, or the job of all tasks, failed
    │   ├── DriverLostError            the driver's JVM has ended, and every executor with it
    │   └── QueryFailedError           the query gave up: what `exception()` returns
    └── ComponentError                 a component for a test or demo cannot be found or started

Where Spark has a name for the same condition, it is in `condition`. The constructor's arguments are
the fields, so that an error survives pickling from a Spark worker. `__str__` builds the message:
what happened, with both values; why it matters; what to do.
"""

# The tree above names them once; these modules define nothing else that is public.
from epochal.errors.base import *  # noqa: F403
from epochal.errors.checkpoint import *  # noqa: F403
from epochal.errors.connectors import *  # noqa: F403
from epochal.errors.query import *  # noqa: F403
