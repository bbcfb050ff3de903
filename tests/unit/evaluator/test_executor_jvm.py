"""The command of an evaluator: Java and class path of its executor, within its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.evaluator.executor_jvm import (
    Code,
    ExecutorProcess,
    class_path,
    find_executor,
    java_command,
)

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
