"""What kind of failure an error is, wherever it was raised; `run.restarts` says what follows.

Pure. Tasks apply it where they still have the error itself; the driver only gets the kind.

The first error in the chain of causes that has a kind decides. An error of ours says it itself, as
`failure`. A `StorageError`, and any error of the operating system, is known by its number.
"""

from __future__ import annotations

import re

from epochal.errors.base import REFUSALS, EpochalError, FailureKind, StorageError
from epochal.errors.connectors import PubSubRejectedError, SchemaRegistryError
from epochal.errors.query import EpochStalledError, TaskFailedError

_REPEATING = (ArithmeticError, ImportError, SystemExit)
"""Python's own errors of a user's code."""
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
        case EpochalError(failure=FailureKind() as kind):
            return kind
        case StorageError() | SchemaRegistryError():
            # Without a cause it is what the storage or the registry answered.
            if (cause := error.__cause__) is None:
                return FailureKind.REFUSED
            return _own_kind(cause) or _kind_of_storage(cause)
        case FileNotFoundError() | FileExistsError():
            return None
        case OSError():
            return _kind_of_storage(error)
    repeats = isinstance(error, _REPEATING) or type(error).__name__ in _ARROW_TYPES
    return FailureKind.REPEATS if repeats else None


def _kind_of_storage(error: BaseException) -> FailureKind:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (quoted := _NUMBER.search(str(error))) is not None:
        number = int(quoted[1])
    return FailureKind.REFUSED if number in REFUSALS else FailureKind.UNAVAILABLE
