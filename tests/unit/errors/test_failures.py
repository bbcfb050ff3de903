"""The kind of every error, which decides whether a query restarts, waits or ends; users' errors."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa
import pytest

from epochal import errors
from epochal.connectors.contract import WriterContext
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.user_code import is_users, report_of
from epochal.errors.base import FailureKind
from epochal.errors.failures import kind_of

LOST, REPEATS = FailureKind.LOST, FailureKind.REPEATS
UNAVAILABLE, REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED


def made(name: str, *args: Any, cause: BaseException | None = None) -> BaseException:
    error: BaseException = getattr(errors, name)(*args)
    error.__cause__ = cause
    return error


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/out")


def pubsub(code: str) -> BaseException:
    return made("PubSubRejectedError", "pulling", "projects/p", code, "text", "advice")


CASES: list[tuple[FailureKind, BaseException]] = [
    (REPEATS, made("OptionError", "wrong")),
    (REPEATS, made("TableMismatchError", "t", ("r",))),
    (REPEATS, made("ExpressionError", "[DIVIDE_BY_ZERO] by zero")),
    (REPEATS, made("EvaluatorError", "it lacks memory")),
    (REPEATS, made("KafkaDataLossError", "s", "EXPIRED", "gone")),
    (REPEATS, made("KafkaTimestampError", "t", 0, 0, 10**18)),
    (REPEATS, made("PlanChangedError", "p", "a", "b")),
    (REPEATS, made("CheckpointLostError", "p", "r", "fenced")),
    (REPEATS, made("CheckpointInUseError", "p", "r", "other", "alive")),
    (REPEATS, made("MarkerError", "p", "r", "do")),
    (REPEATS, made("MalformedFileError", "p", "r")),
    (REPEATS, made("RowTooLargeError", 0, 10**9, 10**8)),
    (REPEATS, made("TableRowError", "t", "too long")),
    (REPEATS, made("PostgresRowError", "s", "t", "null")),
    (REPEATS, made("ForeachBatchError", 3, "ValueError", "Traceback")),
    (REPEATS, made("WorkerPythonError", "no epochal", "3.11")),
    (REPEATS, made("DriverLostError", "gone")),
    (REPEATS, pubsub("NOT_FOUND")),
    (REPEATS, pa.ArrowInvalid("Could not convert 'x' with type str")),
    (REPEATS, pa.ArrowTypeError("Expected bytes")),
    (REPEATS, ZeroDivisionError()),
    (REPEATS, ModuleNotFoundError("No module named 'mine'")),
    (REPEATS, SystemExit(1)),
    (REPEATS, made("TaskFailedError", 0, "KeyError: 'x'", "", REPEATS)),
    (UNAVAILABLE, made("TaskFailedError", 0, "StorageError: x", "", UNAVAILABLE)),
    (UNAVAILABLE, made("KafkaUnavailableError", "s", "no answer")),
    (UNAVAILABLE, made("PostgresUnavailableError", "s", "it stops")),
    (UNAVAILABLE, made("PubSubUnavailableError", "a", "b", "UNAVAILABLE", "c", "d")),
    (UNAVAILABLE, made("TableUnavailableError", "t", "database is locked")),
    (UNAVAILABLE, made("TableConflictError", "t", 3, 10, "others")),
    (UNAVAILABLE, made("TooFewSlotsError", 2, 0, 2, 5.0)),
    (UNAVAILABLE, made("EpochStalledError", 3, (), 2, 120.0)),
    (UNAVAILABLE, made("LostAnswerError", "hdfs://n/p", "no answer")),
    (UNAVAILABLE, made("StorageError", "p", "r", cause=of_system(errno.EIO))),
    (UNAVAILABLE, made("StorageError", "s3://b", "r", cause=RuntimeError("503 Slow Down"))),
    (UNAVAILABLE, made("SchemaRegistryError", "u", "r", cause=of_system(errno.ECONNREFUSED))),
    (UNAVAILABLE, ConnectionResetError(errno.ECONNRESET, "reset")),
    (UNAVAILABLE, TimeoutError("timed out")),
    (REFUSED, of_system(errno.ENOSPC)),
    (REFUSED, of_system(errno.EROFS)),
    (REFUSED, of_system(errno.EDQUOT)),
    (REFUSED, PermissionError(errno.EACCES, "Not allowed: expired", "s3://b")),
    (REFUSED, made("StorageError", "p", "r", cause=of_system(errno.ENOSPC))),
    (REFUSED, made("StorageError", "p", "r", cause=OSError("No space left (os error 28)"))),
    (REFUSED, made("StorageError", "p", "is a symbolic link")),
    (REFUSED, made("LocalStateError", "p", "r", cause=of_system(errno.ENOSPC))),
    (REFUSED, made("SchemaRegistryError", "u", "it refused subjects: HTTP 401")),
    (REFUSED, made("PostgresRejectedError", "s", "permission denied")),
    (REFUSED, made("KafkaRejectedError", "s", "authentication failed")),
    (REFUSED, made("KafkaTopicError", "s", ("t",))),
    (REFUSED, made("TableError", "t", "catalog denies access")),
    (REFUSED, pubsub("PERMISSION_DENIED")),
    (REFUSED, pubsub("UNAUTHENTICATED")),
    (REPEATS, made("StorageError", "p", "r", cause=made("ExpressionError", "[BAD] row"))),
    (LOST, made("HostSilentError", {1: 10.4}, ["3"])),
    (LOST, made("EvaluatorLostError", "killed")),
    (LOST, made("EpochStalledError", 3, (1,), 2, 120.0)),
    (LOST, made("ClaimExpiredError", "p", "r")),
    (LOST, made("ExchangeError", 0, 1, "a gap")),
    (LOST, made("EpochError", "1 of 2 tasks (1) had not registered after 60 s.")),
    (LOST, made("KafkaFencedError", "s", "id", "fenced")),
    (LOST, FileNotFoundError(errno.ENOENT, "No such file", "state/0")),
    (LOST, ValueError("who knows")),
    (LOST, MemoryError()),
]


@pytest.mark.parametrize(
    ("kind", "error"), CASES, ids=[f"{type(each).__name__}-{kind}" for kind, each in CASES]
)
def test_the_kind_of_an_error(kind: FailureKind, error: BaseException) -> None:
    assert kind_of(error) is kind


def test_an_error_of_unknown_kind_has_that_of_its_cause() -> None:
    outer = RuntimeError("while committing")
    outer.__cause__ = made("StorageError", "p", "r", cause=of_system(errno.ENOSPC))
    assert kind_of(outer) is REFUSED


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "/out: the disk is full (No space left on device)"),
        (errno.EROFS, "/out: the file system is mounted read-only (Read-only file system)"),
        (errno.EACCES, "/out: access is denied (Permission denied)"),
        (errno.EDQUOT, "/out: the disk quota is used up (Disk quota exceeded)"),
        (errno.EIO, "/out: Input/output error"),
    ],
)
def test_storage_errors_say_what_they_are(number: int, says: str) -> None:
    assert str(errors.StorageError.of("/out", of_system(number))) == says


SCHEMA = pa.schema([("n", pa.int64())])
CONTEXT = WriterContext(0, 1, "run", SCHEMA, 0)


@pytest.mark.parametrize("by_batch", [False, True])
def test_a_function_that_cannot_write_is_the_first_line_of_the_report(by_batch: bool) -> None:
    def refuse(*_rows: Any) -> None:
        raise OSError("no route to the database")

    writer = ForeachSink(refuse, by_batch=by_batch).writers.open(CONTEXT)
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
    with pytest.raises(OSError, match="no route") as failed:
        writer.cut(0)()
    writer.close()
    lines = report_of(failed.value).splitlines()
    assert is_users(failed.value)
    assert lines[1].endswith(", in refuse")
    assert lines[-1] == "OSError: no route to the database"
