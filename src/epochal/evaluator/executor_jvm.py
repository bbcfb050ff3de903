"""Finds the JVM that a process works for, and makes the command that starts its evaluator.

The evaluator has the Java and the class path of its executor, so that it computes with the same
classes. Its memory is divided so that all of it together stays within `evaluatorMemory`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochal.errors import EvaluatorError

DEFAULT_MEMORY_MB = 256
MIN_MEMORY_MB = 224

_NATIVE_MB = 152
"""What a JVM with Spark's classes needs beside its heap and its buffers, measured: 100 to 130."""

_MAIN = ("org.codehaus.janino.JavaSourceClassLoader", "-sourcepath")
_MODULES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.util.calendar",
    "java.base/sun.security.action",
)
"""What Spark opens for itself since Java 17."""

_LOGGING = "-Dlog4j2.configurationFile="
_INHERITED = ("--add-opens", "-Duser.", "-Dfile.encoding", "-XX:TieredStopAtLevel", _LOGGING)
"""Options of the executor's Java that its evaluator needs too."""

_FIXED = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:ReservedCodeCacheSize=40m",
    "-XX:MaxMetaspaceSize=96m",
    "-Xss1m",
    # The best code is made later than usual: most of what a start runs, it runs a few times.
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=10000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=200000",
    # The JVM's own warnings would go to the user's terminal.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # Netty derives the number from the memory, and with little memory Arrow would have none.
    "-Dio.netty.allocator.numDirectArenas=1",
)


@dataclass(frozen=True, slots=True)
class ExecutorProcess:
    """The JVM that this process works for: a worker's executor, or the driver's own JVM."""

    pid: int
    java: str
    command: tuple[str, ...] = ()
    """The command line with which it was started; empty if it cannot be read."""
    directory: str = "/"
    """Its working directory, for relative paths."""


@dataclass(frozen=True, slots=True)
class Code:
    """What an evaluator runs: its source files, or what was made of them at an earlier start."""

    sources: Path
    jar: Path | None = None
    archive: Path | None = None


def java_command(
    executor: ExecutorProcess,
    environ: Mapping[str, str],
    memory_mb: int,
    code: Code,
    arguments: Sequence[str],
    options: Sequence[str] = (),
) -> list[str]:
    """The command that starts an evaluator. Pure."""
    inherited = [word for word in executor.command if word.startswith(_INHERITED)]
    if not any(word.startswith("--add-opens") for word in inherited):
        inherited += [f"--add-opens={module}=ALL-UNNAMED" for module in _MODULES]
    if not any(word.startswith(_LOGGING) for word in inherited):
        inherited.append(f"{_LOGGING}{code.sources}/log4j2.properties")
    classes = class_path(executor, environ)
    spare = max(MIN_MEMORY_MB, memory_mb) - _NATIVE_MB
    heap = spare * 3 // 4
    return [
        executor.java,
        f"-Xmx{heap}m",
        f"-XX:MaxDirectMemorySize={spare - heap}m",
        *_FIXED,
        *([] if code.archive is None else [f"-XX:SharedArchiveFile={code.archive}"]),
        *options,
        *inherited,
        "-cp",
        classes if code.jar is None else f"{code.jar}{os.pathsep}{classes}",
        *((*_MAIN, str(code.sources)) if code.jar is None else ()),
        "Evaluator",
        *arguments,
    ]


def class_path(executor: ExecutorProcess, environ: Mapping[str, str]) -> str:
    """The class path of an executor, with absolute paths."""
    path = ""
    for option in ("-cp", "-classpath", "--class-path"):
        if option in executor.command[:-1]:
            path = executor.command[executor.command.index(option) + 1]
    if not path and executor.command:
        path = environ.get("CLASSPATH", "")  # as YARN starts its executors
    if path:
        entries = path.split(os.pathsep)
        return os.pathsep.join(os.path.join(executor.directory, entry) for entry in entries)
    if home := environ.get("SPARK_HOME"):
        return str(Path(home, "jars", "*"))
    import pyspark

    return str(Path(str(pyspark.__file__)).parent / "jars" / "*")


def find_executor() -> ExecutorProcess:
    """The JVM of the driver's session, or the one above this process.

    Without /proc it is the process that has started this one: Spark's daemon, or the executor.
    """
    pid = _driver_pid()
    for candidate in _ancestors(os.getpid()) if pid is None else [pid]:
        # A build server that runs a test may be Java, too.
        executor = _java_process(candidate)
        if executor is not None and any("spark" in word for word in executor.command):
            return executor
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise EvaluatorError("no Java was found: neither a JVM that runs this task, nor JAVA_HOME")
    if pid is None:
        pid = os.getppid() if "pyspark.worker" in sys.modules else os.getpid()
    return ExecutorProcess(pid, java)


def start_time(pid: int) -> str | None:
    """When a process started, so that another one with the same number is not taken for it."""
    status = _status(pid)
    return status[19] if status else None


def is_stopped(pid: int | None) -> bool:
    """Whether a process was stopped by a signal, and not continued."""
    status = [] if pid is None else _status(pid)
    return bool(status) and status[0] in "Tt"


def _status(pid: int) -> list[str]:
    """What Linux says about a process, from its state on; nothing if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _ancestors(pid: int) -> list[int]:
    pids: list[int] = []
    while pid > 1 and len(pids) < 32 and (status := _status(pid)):
        pid = int(status[1])
        pids.append(pid)
    return pids


def _java_process(pid: int) -> ExecutorProcess | None:
    try:
        java, directory = os.readlink(f"/proc/{pid}/exe"), os.readlink(f"/proc/{pid}/cwd")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return None
    if Path(java).name != "java":
        return None
    return ExecutorProcess(pid, java, tuple(command.rstrip("\0").split("\0")), directory)


def _driver_pid() -> int | None:
    """The process of the driver's JVM, if this is a driver."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    if context is None:
        return None
    return int(context._jvm.java.lang.ProcessHandle.current().pid())
