"""The evaluator is killed, stopped and starved while tasks use it: rows stay exact, nothing stays.

Most tests run without a Spark session: the expressions come from one, as a file, and the process
that starts an evaluator stands for its executor.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fault.evaluator_load import batch_of, is_right
from tests.spark.sessions import local_session
from tests.waiting import eventually

import epochal
from epochal.continuous.catalyst.expression_reader import SparkExpressions
from epochal.continuous.catalyst.releases import with_replacements
from epochal.continuous.catalyst.spark_objects import items
from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.spark_calls import spark_values
from epochal.errors import EvaluatorError, QueryFailedError
from epochal.evaluator import evaluator_client
from epochal.evaluator.executor_jvm import find_executor

INCREMENT = "concat_ws(':', text, string(value + 1))"
SLOW = "0L"
for name in "abc":
    SLOW = f"aggregate(sequence(1, int(value)), 0L, ({name}, x{name}) -> {name} + 1 + {SLOW})"
"""An expression that takes the third power of its value as many steps."""

HUNGRY = "aes_encrypt(repeat('x', 200000000 + int(value)), '0000111122223333')"
BASE = Path(tempfile.gettempdir(), f"epochal-{os.getuid()}")


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


def call_of(spark: SparkSession, text: str) -> Any:
    """The call by which a task has Spark's own code evaluate an expression."""
    plan: Any = spark.sql(f"SELECT {text} AS x FROM VALUES (1L, 'a') AS t(value, text)")
    analyzed = with_replacements(spark, plan._jdf.queryExecution().analyzed())
    columns = {
        int(column.exprId().id()): number
        for number, column in enumerate(items(analyzed.child().output()))
    }
    made = SparkExpressions(spark)
    return made.call(next(items(analyzed.projectList())), columns)


@pytest.fixture(scope="module")
def calls(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calls") / "calls"
    path.write_bytes(pickle.dumps(call_of(spark, INCREMENT)))
    return path


@contextmanager
def loading(calls: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses an evaluator of its own, from its first batch on."""
    command = [sys.executable, "-m", "tests.fault.evaluator_load", str(calls), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def folder_of(pid: int) -> Path | None:
    return next(BASE.glob(f"evaluator-{pid}-*"), None)


def evaluator_of(pid: int) -> int:
    """The process of the evaluator that an executor has."""
    folder = folder_of(pid)
    assert folder is not None
    return int((folder / "lock").read_text())


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def jvm_of(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


class Load:
    """Threads that have batches evaluated all the time, each over its own connection."""

    def __init__(self, call: Any, threads: int) -> None:
        self.right, self.wrong, self.errors = [0] * threads, 0, list[BaseException]()
        self._call, self._ended = call, threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while not self._ended.is_set():
            rows = self.right[number]
            try:
                if is_right(self._call, batch_of(1 + 97 * rows % 20_000, rows)):
                    self.right[number] += 1
                else:
                    self.wrong += 1
            except BaseException as error:  # noqa: BLE001  the test asserts that there is none
                self.errors.append(error)
                return

    def next_batches(self) -> None:
        """Wait until each thread has got another batch, or one has failed."""
        before = list(self.right)
        eventually(
            lambda: (
                self.errors or all(new > old for new, old in zip(self.right, before, strict=True))
            ),
            "no batch was evaluated",
        )


@pytest.mark.parametrize(
    "kills", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_rows_are_exact_while_the_evaluator_is_killed_under_load(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    monkeypatch.setattr(evaluator_client, "ANSWER_SECONDS", 1.0)
    executor, seen = jvm_of(spark), set()
    with Load(call_of(spark, INCREMENT), threads=2) as load:
        load.next_batches()
        for kill in range(kills):
            victim = evaluator_of(executor)
            seen.add(victim)
            time.sleep(0.05 * (kill % 5))  # so that kills meet every moment of a request
            with suppress(ProcessLookupError):  # on a busy machine it was silent for too long
                os.kill(victim, signal.SIGSTOP if kill % 3 == 2 else signal.SIGKILL)
            eventually(lambda: not is_running(victim), "it was not killed")  # noqa: B023
            load.next_batches()
    assert (load.errors, load.wrong) == ([], 0)
    assert len(seen) == kills
    assert min(load.right) > kills
    assert not any(map(is_running, seen))


@pytest.mark.parametrize(
    "starts", [2, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_an_evaluator_ends_with_its_executor_and_leaves_nothing(calls: Path, starts: int) -> None:
    pids, executors = [], []
    for number in range(starts):
        with loading(calls, "once" if number % 2 else "forever") as process:
            executors.append(process.pid)
            if number % 2 == 0:
                pids.append(evaluator_of(process.pid))
                assert is_running(pids[-1])
            process.send_signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_running, pids)), "an evaluator stayed")
    eventually(lambda: not any(map(folder_of, executors)), "a directory stayed")


def test_a_directory_that_a_killed_evaluator_left_is_removed_by_a_later_one(calls: Path) -> None:
    with loading(calls, "forever") as process:
        folder = folder_of(process.pid)
        assert folder is not None
        os.kill(evaluator_of(process.pid), signal.SIGSTOP)
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(int((folder / "lock").read_text()), signal.SIGKILL)
    os.utime(folder, (0, 0))
    with loading(calls, "once"):
        pass
    eventually(lambda: not folder.exists(), "it stayed")


def test_work_for_a_process_that_was_killed_does_not_go_on_for_ever(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, call = find_executor(), call_of(spark, SLOW)
    monkeypatch.setattr(evaluator_client, "find_executor", lambda: executor)
    assert is_right(call_of(spark, INCREMENT), batch_of(1))
    evaluator = evaluator_of(executor.pid)
    work = (call,), batch_of(1, 100_000), evaluate
    task = multiprocessing.get_context("fork").Process(target=spark_values, args=work)
    task.start()
    time.sleep(2.0)  # for the computation to begin
    task.kill()
    task.join()
    eventually(lambda: not is_running(evaluator), "it still computes")


def test_an_evaluator_that_computes_for_long_is_waited_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator_client, "ANSWER_SECONDS", 0.1)
    evaluator_client.CLIENT.close()
    assert is_right(call_of(spark, INCREMENT), batch_of(1))
    evaluator = evaluator_of(jvm_of(spark))
    began = time.monotonic()
    (found,) = spark_values([call_of(spark, SLOW)], batch_of(1, 220), evaluate)
    assert time.monotonic() - began > 0.3
    assert found.to_pylist() == [220 + 220**2 + 220**3]
    assert evaluator_of(jvm_of(spark)) == evaluator


def test_numbers_of_rows_do_not_begin_again_after_a_crash(spark: SparkSession) -> None:
    call = call_of(spark, "monotonically_increasing_id()")
    (before,) = spark_values([call], batch_of(10), evaluate)
    os.kill(evaluator_of(jvm_of(spark)), signal.SIGKILL)
    (after,) = spark_values([call], batch_of(10), evaluate)
    first = before.to_pylist()[0]
    assert [*before.to_pylist(), *after.to_pylist()] == list(range(first, first + 20))


def test_a_batch_that_exhausts_the_memory_names_the_option_and_later_ones_are_evaluated(
    spark: SparkSession,
) -> None:
    with pytest.raises(EvaluatorError, match=r"256 MiB .* Raise the option evaluatorMemory"):
        spark_values([call_of(spark, HUNGRY)], batch_of(1), evaluate)
    assert is_right(call_of(spark, INCREMENT), batch_of(10))


def test_direct_memory_is_bounded_and_its_lack_names_the_option(spark: SparkSession) -> None:
    wide = call_of(spark, "aes_encrypt(repeat('x', 22000 + int(value)), '0000111122223333')")
    (found,) = spark_values([wide], batch_of(40), evaluate)
    assert len(found) == 40
    much = call_of(spark, "aes_encrypt(repeat('x', 30000000 + int(value)), '0000111122223333')")
    with pytest.raises(EvaluatorError, match="Raise the option evaluatorMemory"):
        spark_values([much], batch_of(4), evaluate)


@pytest.fixture
def query_of(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    started: list[Any] = []

    def start(text: str, **options: str) -> Any:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        frame = rows.selectExpr("value", "string(value) AS text").selectExpr("value", text)
        writer = epochal.write_stream(frame).format("parquet").options(**options)
        checkpoint = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append(checkpoint.start(str(tmp_path / "out")))
        return started[-1]

    yield start
    for query in started:
        query.stop()


def test_a_query_goes_on_over_kills_of_its_evaluator_with_every_row_once(
    spark: SparkSession, query_of: Callable[..., Any], tmp_path: Path
) -> None:
    query = query_of(f"to_csv(struct({INCREMENT})) AS line")
    for _ in range(2):
        before = (query.lastProgress or {"batchId": -1})["batchId"]
        eventually(lambda: (query.lastProgress or {"batchId": -1})["batchId"] > before + 2)  # noqa: B023
        os.kill(evaluator_of(jvm_of(spark)), signal.SIGKILL)
    query.processAllAvailable()
    query.stop()
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert rows == [(value, f"{value}:{value + 1}") for value in range(len(rows))]
    assert len(rows) > 50


def test_an_error_of_an_expression_ends_the_query_at_once(query_of: Callable[..., Any]) -> None:
    query = query_of("100 div (value - 60) AS x")
    with pytest.raises(QueryFailedError, match="DIVIDE_BY_ZERO"):
        query.awaitTermination(100)
    assert type(query.exception().__cause__).__name__ == "ExpressionError"
    assert query._engine.state.restarts == 0


def test_a_lack_of_memory_ends_the_query_at_once_and_names_the_option(
    query_of: Callable[..., Any],
) -> None:
    query = query_of(f"{HUNGRY} AS x", evaluatorMemory="240m")
    with pytest.raises(QueryFailedError, match=r"240 MiB .* Raise the option evaluatorMemory"):
        query.awaitTermination(200)
    assert query._engine.state.restarts == 0
