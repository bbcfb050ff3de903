"""What kind of failure an error is, wherever it was raised; `run.restarts` says what follows.

Pure. Tasks apply it where they still have the error itself; the driver only gets the kind.

The first error in the chain of causes that the rule knows decides. An error of the rule's tables is
known by its class. A `StorageError`, and any error of the operating system, is known by its number.
"""

from __future__ import annotations

import re

from epochal.errors.base import REFUSALS, FailureKind, LostAnswerError, OptionError, StorageError
from epochal.errors.checkpoint import (
    CheckpointInUseError,
    CheckpointLostError,
    CheckpointSwitchedError,
    MalformedFileError,
    PlanChangedError,
    UnsupportedVersionError,
)
from epochal.errors.epoch import (
    EpochStalledError,
    RecoveryError,
    RowTooLargeError,
    SinkConflictError,
)
from epochal.errors.kafka import (
    GroupRefusedError,
    KafkaDataLossError,
    KafkaRecordError,
    KafkaRejectedError,
    KafkaTimestampError,
    KafkaTopicError,
    KafkaUnavailableError,
    SchemaRegistryError,
)
from epochal.errors.postgres import (
    PostgresRejectedError,
    PostgresRowError,
    PostgresUnavailableError,
)
from epochal.errors.pubsub import PayloadError, PubSubRejectedError, PubSubUnavailableError
from epochal.errors.query import (
    DriverLostError,
    EvaluatorError,
    EvaluatorLostError,
    ExpressionError,
    ForeachBatchError,
    TaskFailedError,
    TooFewSlotsError,
    UnsupportedPlanError,
    WorkerPythonError,
)
from epochal.errors.state import (
    StateFormatError,
    StateSchemaError,
    StateSchemaMismatchError,
    StateValueError,
)
from epochal.errors.table import (
    TableConflictError,
    TableError,
    TableRowError,
    TableUnavailableError,
)

_BY_CLASS: tuple[tuple[type[BaseException], FailureKind], ...] = tuple(
    (error, kind)
    for kind, errors in (
        (FailureKind.LOST, (EvaluatorLostError,)),
        (
            FailureKind.REPEATS,
            (
                ArithmeticError,
                CheckpointInUseError,
                CheckpointLostError,
                CheckpointSwitchedError,
                DriverLostError,
                EvaluatorError,
                ExpressionError,
                ForeachBatchError,
                ImportError,
                KafkaDataLossError,
                KafkaTimestampError,
                MalformedFileError,
                OptionError,
                PayloadError,
                PlanChangedError,
                PostgresRowError,
                PubSubRejectedError,
                RecoveryError,
                RowTooLargeError,
                SinkConflictError,
                StateFormatError,
                StateSchemaError,
                StateSchemaMismatchError,
                StateValueError,
                SystemExit,
                TableRowError,
                UnsupportedPlanError,
                UnsupportedVersionError,
                WorkerPythonError,
            ),
        ),
        (
            FailureKind.UNAVAILABLE,
            (
                KafkaUnavailableError,
                LostAnswerError,
                PostgresUnavailableError,
                PubSubUnavailableError,
                TableConflictError,
                TableUnavailableError,
                TooFewSlotsError,
            ),
        ),
        (
            FailureKind.REFUSED,
            (
                GroupRefusedError,
                KafkaRecordError,
                KafkaRejectedError,
                KafkaTopicError,
                PostgresRejectedError,
                TableError,
            ),
        ),
    )
    for error in errors
)
"""The first class that fits decides."""

_ARROW_TYPES = ("ArrowInvalid", "ArrowNotImplementedError", "ArrowTypeError")
"""Values that do not fit their type."""
_DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED")
"""gRPC's codes for credentials and permissions, which somebody may renew."""
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust quote the operating system."""


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of an error, or that of the first of its causes that has one."""
    cause: BaseException | None = error
    while cause is not None:
        kind = _own_kind(cause)
        if kind is not None:
            return kind
        cause = cause.__cause__
    return FailureKind.LOST


def _own_kind(error: BaseException) -> FailureKind | None:
    match error:
        case TaskFailedError(kind=kind):
            return kind
        case EpochStalledError(missing=()):
            return FailureKind.UNAVAILABLE  # the sink or the storage hangs, and no task
        case PubSubRejectedError(code=code) if code in _DENIED:
            return FailureKind.REFUSED
        case FileNotFoundError() | FileExistsError():
            return None
        case OSError():
            return _kind_of_storage(error)
    for known, kind in _BY_CLASS:
        if isinstance(error, known):
            return kind
    if isinstance(error, StorageError | SchemaRegistryError):
        # Without a cause it is what the storage or the registry answered.
        cause = error.__cause__
        return FailureKind.REFUSED if cause is None else _own_kind(cause) or _kind_of_storage(cause)
    return FailureKind.REPEATS if type(error).__name__ in _ARROW_TYPES else None


def _kind_of_storage(error: BaseException) -> FailureKind:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (quoted := _NUMBER.search(str(error))) is not None:
        number = int(quoted[1])
    return FailureKind.REFUSED if number in REFUSALS else FailureKind.UNAVAILABLE
