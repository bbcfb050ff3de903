"""Evaluators: their command, what they keep for later starts, and requests over a real socket."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from epochal.errors import EvaluatorError, EvaluatorLostError, ExpressionError
from epochal.evaluator import evaluator_client
from epochal.evaluator.evaluator_client import (
    FAILED,
    MAX_STEPS,
    OK,
    OUT_OF_MEMORY,
    PREPARE,
    EvaluatorClient,
    EvaluatorStep,
    Session,
)
from epochal.evaluator.evaluator_process import cache_folder, code_in
from epochal.evaluator.executor_jvm import (
    Code,
    ExecutorProcess,
    class_path,
    find_executor,
    java_command,
)

Answer: TypeAlias = Callable[[list[bytes]], tuple[int, bytes] | None]
"""The status and body that a server answers to a run; None to close the connection."""

ROWS = pa.record_batch({"0": pa.array(range(100))})


class Server:
    """Answers like an evaluator. `answer` decides; by default the rows come back as they are."""

    def __init__(self, path: str, answer: Answer | None = None) -> None:
        self.answer: Answer = answer or (lambda fields: (OK, fields[0]))
        self.requests: list[tuple[int, int, list[bytes]]] = []
        self.connections = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        self.path = path
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        stream = made.makefile("rb")
        with made, stream, suppress(ConnectionError):  # a client may close at any time
            while head := stream.read(12):
                operation, step, count = struct.unpack(">iii", head)
                sizes = (struct.unpack(">i", stream.read(4))[0] for _ in range(count))
                fields = [stream.read(size) for size in sizes]
                self.requests.append((operation, step, fields))
                answer = (OK, b"") if operation == PREPARE else self.answer(fields)
                if answer is None:
                    return
                made.sendall(struct.pack(">ii", answer[0], len(answer[1])) + answer[1])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(str(tmp_path / "socket"))

    pids = itertools.count(1)  # each connection is to another process

    def connect(*_: object) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(made.path)
        return connection

    monkeypatch.setattr(evaluator_client, "find_executor", lambda: None)
    monkeypatch.setattr(evaluator_client, "open_socket", connect)
    monkeypatch.setattr(evaluator_client, "pid_of", lambda _: next(pids))
    yield made
    made.close()


def step(name: str = "upper") -> EvaluatorStep:
    return EvaluatorStep("project", Session("key\nvalue"), "{}", (name.encode(),))


def test_a_step_is_prepared_once_with_its_process_task_and_settings(server: Server) -> None:
    client = EvaluatorClient()
    client.task = 3
    assert [client.run(step(), b"a", b""), client.run(step(), b"b")] == [b"a", b"b"]
    fields = [b"project", b"key\nvalue", b"", b"3", b"0", b"{}", b"upper"]
    assert server.requests == [(PREPARE, os.getpid(), fields), (2, 0, [b"a", b""]), (2, 0, [b"b"])]


def test_rows_are_sent_with_their_schema_only_when_it_is_new(server: Server) -> None:
    client, schema = EvaluatorClient(), ROWS.schema.serialize().to_pybytes()
    other = pa.record_batch({"0": pa.array(["a"])})
    for batch in (ROWS, ROWS, other, ROWS):
        assert client.run_rows(step(), batch) == batch.columns
    runs = [fields[0] for operation, _, fields in server.requests if operation == 2]
    assert [run.startswith(schema) for run in runs] == [True, False, False, True]
    assert runs[2].startswith(other.schema.serialize().to_pybytes())


def test_a_large_batch_is_sent_in_slices(server: Server) -> None:
    batch = pa.record_batch({"0": pa.array(range(2_000_000))})
    assert EvaluatorClient().run_rows(step(), batch) == batch.columns
    assert len(server.requests) > 10


def test_an_error_of_a_slice_is_raised_and_the_next_batch_has_its_own_answer(
    server: Server,
) -> None:
    client, batch = EvaluatorClient(), pa.record_batch({"0": pa.array(range(1_000_000))})
    answers = iter([(OK, None), (FAILED, b"[DIVIDE_BY_ZERO] by zero\n")])

    def answer(fields: list[bytes]) -> tuple[int, bytes]:
        status, body = next(answers, (OK, None))
        return status, fields[0] if body is None else body

    server.answer = answer
    with pytest.raises(ExpressionError, match=r"^\[DIVIDE_BY_ZERO\] by zero$"):
        client.run_rows(step(), batch)
    assert client.run_rows(step(), ROWS) == ROWS.columns
    assert server.connections == 1


def test_a_batch_is_sent_again_after_a_crash_and_after_three_it_is_given_up(server: Server) -> None:
    server.answer = lambda fields: None if server.connections < 3 else (OK, fields[0])
    client = EvaluatorClient()
    assert client.run_rows(step(), ROWS) == ROWS.columns
    assert server.connections == 3
    server.answer = lambda _: None
    with pytest.raises(EvaluatorLostError, match="ended 3 times on one batch"):
        client.run_rows(step(), ROWS)


def test_a_lack_of_memory_is_tried_again_with_smaller_slices_and_names_the_option(
    server: Server,
) -> None:
    limit = 200_000
    server.answer = lambda fields: (
        (OK, fields[0]) if len(fields[0]) < limit else (OUT_OF_MEMORY, b"heap")
    )
    client, batch = EvaluatorClient(), pa.record_batch({"0": pa.array(range(100_000))})
    server_closes(server)
    assert client.run_rows(step(), batch) == batch.columns
    limit = 0
    with pytest.raises(EvaluatorError, match=r"256 MiB .* heap\. Raise the option evaluatorMemory"):
        client.run_rows(step(), batch)


def server_closes(server: Server) -> None:
    """Let the server end a connection after it has said that its memory does not suffice."""
    inner, short = server.answer, threading.local()

    def answer(fields: list[bytes]) -> tuple[int, bytes] | None:
        if getattr(short, "ended", False):
            return None
        found = inner(fields)
        short.ended = found is not None and found[0] == OUT_OF_MEMORY
        return found

    server.answer = answer


def test_the_answers_to_an_interrupted_batch_are_not_those_of_the_next(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EvaluatorClient()

    def interrupted(*_: object) -> pa.Buffer:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluator_client._Connection, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.run_rows(step(), pa.record_batch({"0": pa.array([7])}))
    assert client.run_rows(step(), ROWS) == ROWS.columns


def test_a_forked_process_and_another_thread_have_connections_of_their_own(server: Server) -> None:
    client = EvaluatorClient()
    client.run(step(), b"a")
    other = threading.Thread(target=client.run, args=(step(), b"b"))
    other.start()
    other.join()
    assert server.connections == 2
    process = multiprocessing.get_context("fork").Process(target=client.run, args=(step(), b"c"))
    process.start()
    process.join()
    assert (process.exitcode, server.connections) == (0, 3)
    assert client.run(step(), b"d") == b"d"
    assert server.connections == 3


def test_another_memory_is_another_evaluator_and_many_steps_are_forgotten(server: Server) -> None:
    client = EvaluatorClient()
    client.run(step(), b"a")
    client.memory_mb = 512
    client.run(step(), b"a")
    assert server.connections == 2
    for number in range(MAX_STEPS):
        client.run(step(str(number)), b"a")
    assert server.connections == 3


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "java"
    folder.mkdir()
    (folder / "Evaluator.java").write_text("class Evaluator {}")
    return folder


def folder_of(tmp_path: Path, sources: Path, jars: str = "/spark/jars/*") -> Path | None:
    executor = ExecutorProcess(17, "/usr/bin/java", ("java", "-cp", jars, "org.apache.spark.Main"))
    return cache_folder(executor, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, sources)


def test_another_spark_and_other_sources_have_other_folders(tmp_path: Path, sources: Path) -> None:
    first = folder_of(tmp_path, sources)
    assert first == folder_of(tmp_path, sources)
    other = folder_of(tmp_path, sources, "/other/jars/*")
    (sources / "Evaluator.java").write_text("class Evaluator { }")
    assert len({first, other, folder_of(tmp_path, sources)}) == 3


def test_a_folder_in_which_others_can_write_is_not_used(tmp_path: Path, sources: Path) -> None:
    folder = folder_of(tmp_path, sources)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert folder_of(tmp_path, sources) is None


def test_a_home_that_cannot_be_written_means_no_cache(tmp_path: Path, sources: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    assert folder_of(tmp_path, sources) is None
    assert code_in(None, sources) == Code(sources)


def test_files_are_used_as_far_as_they_are_there(tmp_path: Path, sources: Path) -> None:
    folder = folder_of(tmp_path, sources)
    assert folder is not None
    archive, jar = folder / "evaluator.jsa", folder / "evaluator.jar"
    archive.touch()
    assert code_in(folder, sources) == Code(sources)
    jar.touch()
    assert code_in(folder, sources) == Code(sources, jar, archive)
    archive.unlink()
    assert code_in(folder, sources) == Code(sources, jar)


SOURCES = Path("/cache/java")
STARTED = (
    "/usr/bin/java",
    "-cp",
    "conf:/spark/jars/*",
    "-Xmx4g",
    "-Duser.timezone=Asia/Tokyo",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-Dspark.driver.port=7077",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "--executor-id",
    "3",
)
EXECUTOR = ExecutorProcess(17, "/usr/bin/java", STARTED, "/executors/app-1")


def command(
    executor: ExecutorProcess = EXECUTOR, memory_mb: int = 256, code: Code | None = None
) -> str:
    made = java_command(executor, {}, memory_mb, code or Code(SOURCES), ["/run/socket", "17"])
    return " ".join(made)


def test_an_evaluator_has_the_java_the_class_path_and_the_zone_of_its_executor() -> None:
    assert command().startswith("/usr/bin/java ")
    assert " -cp /executors/app-1/conf:/spark/jars/* " in command()
    assert " -Duser.timezone=Asia/Tokyo " in command()


def test_an_evaluator_has_neither_the_memory_nor_the_ports_of_its_executor() -> None:
    assert "-Xmx4g" not in command()
    assert "spark.driver.port" not in command()


@pytest.mark.parametrize(
    ("memory_mb", "heap", "buffers"), [(256, 78, 26), (512, 270, 90), (10, 54, 18)]
)
def test_heap_and_buffers_leave_room_for_the_rest_of_the_memory(
    memory_mb: int, heap: int, buffers: int
) -> None:
    made = command(memory_mb=memory_mb)
    assert f" -Xmx{heap}m -XX:MaxDirectMemorySize={buffers}m " in made


def test_source_files_are_compiled_and_a_jar_is_not() -> None:
    assert f"JavaSourceClassLoader -sourcepath {SOURCES} Evaluator /run/socket 17" in command()
    made = command(code=Code(SOURCES, Path("/cache/e.jar"), Path("/cache/e.jsa")))
    assert made.endswith(" Evaluator /run/socket 17")
    assert " -XX:SharedArchiveFile=/cache/e.jsa " in made
    assert " -cp /cache/e.jar:/executors/app-1/conf:/spark/jars/* " in made
    assert "JavaSourceClassLoader" not in made


def test_modules_are_opened_and_messages_are_few_unless_the_executor_says_so() -> None:
    assert command().count("--add-opens") == 1
    plain = command(ExecutorProcess(17, "/usr/bin/java"))
    assert plain.count("--add-opens") == 12
    assert f"-Dlog4j2.configurationFile={SOURCES}/log4j2.properties" in plain
    own = "-Dlog4j2.configurationFile=/etc/mine.xml"
    logged = command(ExecutorProcess(17, "java", (*STARTED[:3], own)))
    assert logged.count("log4j2") == 1
    assert own in logged


def test_the_class_path_may_be_in_the_environment() -> None:
    executor = ExecutorProcess(17, "java", ("java", "org.apache.spark.Main"), "/yarn")
    assert class_path(executor, {"CLASSPATH": "a.jar:/b.jar"}) == "/yarn/a.jar:/b.jar"
    unknown = ExecutorProcess(17, "java")
    assert class_path(unknown, {"CLASSPATH": "a.jar", "SPARK_HOME": "/s"}) == "/s/jars/*"


def test_without_a_jvm_above_the_java_of_the_environment_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    monkeypatch.setattr("epochal.evaluator.executor_jvm._ancestors", lambda _: [])
    monkeypatch.setattr("epochal.evaluator.executor_jvm._driver_pid", lambda: None)
    assert find_executor().java == "/opt/java/bin/java"
