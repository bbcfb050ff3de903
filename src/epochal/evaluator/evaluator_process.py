"""Starts the evaluator of an executor: a Java process in which Spark's own classes do the work.

There is one per executor, shared by all tasks there and kept for later queries. It runs with the
Java and the class path of the executor, listens on a Unix socket in a directory that only this user
can enter, and ends with the executor, or after ten minutes without a task.

A file lock says whether there is one. Whoever can lock the file starts a process, which inherits
the lock and so holds it until it ends, however it ends. All others connect as soon as the socket is
there. So a crashed evaluator leaves nothing behind that has to be recognised as old.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from epochal.errors import EvaluatorError

logger = logging.getLogger(__name__)

DEFAULT_MEMORY_MB = 256
START_SECONDS = 60.0
IDLE_SECONDS = 600
POLL_SECONDS = 0.01

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
_KEPT = ("--add-opens", "-Duser.", "-Dfile.encoding", _LOGGING)
"""Options of the executor's Java that its evaluator needs too."""


@dataclass(frozen=True, slots=True)
class Executor:
    """The JVM that this process works for: a worker's executor, or the driver's own JVM."""

    pid: int
    java: str
    command: tuple[str, ...] = ()
    """The command line with which it was started; empty if it cannot be read."""


def java_command(
    executor: Executor,
    environ: Mapping[str, str],
    memory_mb: int,
    sources: Path,
    arguments: Sequence[str],
) -> list[str]:
    """The command that starts an evaluator whose source files are in a directory. Pure."""
    kept = [word for word in executor.command if word.startswith(_KEPT)]
    if not any(word.startswith("--add-opens") for word in kept):
        kept += [f"--add-opens={module}=ALL-UNNAMED" for module in _MODULES]
    if not any(word.startswith(_LOGGING) for word in kept):
        kept.append(f"{_LOGGING}{sources}/log4j2.properties")
    return [
        executor.java,
        f"-Xmx{memory_mb // 2}m",
        f"-XX:MaxDirectMemorySize={memory_mb // 4}m",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *kept,
        "-cp",
        _class_path(executor.command, environ),
        *_MAIN,
        str(sources),
        "Evaluator",
        *arguments,
    ]


def _class_path(command: Sequence[str], environ: Mapping[str, str]) -> str:
    for option in ("-cp", "-classpath", "--class-path"):
        if option in command:
            return command[command.index(option) + 1]
    if home := environ.get("SPARK_HOME"):
        return str(Path(home, "jars", "*"))
    import pyspark

    return str(Path(str(pyspark.__file__)).parent / "jars" / "*")


def find_executor() -> Executor:
    """The JVM above this process, or the one that the driver's session runs in."""
    for pid in _ancestors(os.getpid()):
        if (found := _java_process(pid)) is not None:
            return found
    pid = _driver_pid()
    found = None if pid is None else _java_process(pid)
    if found is not None:
        return found
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise EvaluatorError("no Java was found: neither a JVM that runs this task, nor JAVA_HOME")
    return Executor(os.getpid() if pid is None else pid, java)


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1 and len(found) < 32:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _java_process(pid: int) -> Executor | None:
    try:
        java = os.readlink(f"/proc/{pid}/exe")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return None
    if Path(java).name != "java":
        return None
    return Executor(pid, java, tuple(command.rstrip("\0").split("\0")))


def _driver_pid() -> int | None:
    """The process of the driver's JVM, if this is a driver."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    if context is None:
        return None
    return int(context._jvm.java.lang.ProcessHandle.current().pid())


def open_socket(executor: Executor, memory_mb: int = DEFAULT_MEMORY_MB) -> socket.socket:
    """Connect to the evaluator of an executor; start it if there is none."""
    folder = _folder(executor.pid)
    address = str(folder / "socket")
    deadline = time.monotonic() + START_SECONDS
    started: subprocess.Popen[bytes] | None = None
    while True:
        if (found := _connect(address)) is not None:
            return found
        if started is not None and started.poll() is not None:
            raise EvaluatorError(
                f"it ended with status {started.returncode} as it started. Its messages are in the "
                f"log of the executor"
            )
        if started is None:
            started = _start_if_none(executor, folder, address, memory_mb)
        if time.monotonic() > deadline:
            raise EvaluatorError(f"it did not start within {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def pid_of(connection: socket.socket) -> int:
    """The process at the other end of a connection."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[0])


def _connect(address: str) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        made.close()
        return None
    return made


def _start_if_none(
    executor: Executor, folder: Path, address: str, memory_mb: int
) -> subprocess.Popen[bytes] | None:
    """Start an evaluator, unless another one runs or starts."""
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        for name in (address, f"{address}.new"):
            with suppress(FileNotFoundError):
                os.unlink(name)
        with as_file(files(__package__) / "java") as sources:
            arguments = [address, str(executor.pid), str(IDLE_SECONDS)]
            command = java_command(executor, os.environ, memory_mb, sources, arguments)
            logger.info("starting an evaluator for the executor with process %d", executor.pid)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
                stderr=None if _has_file(sys.stderr) else subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[lock.fileno()],
                cwd="/",
                env=os.environ | {"SPARK_LOCAL_HOSTNAME": "localhost"},
            )


def _has_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _folder(pid: int) -> Path:
    """A directory for the evaluator of a process, which only this user can enter."""
    base = Path(tempfile.gettempdir(), f"epochal-{os.getuid()}")
    if len(str(base)) > 60:  # the path of a socket has at most 107 bytes
        base = Path("/tmp", f"epochal-{os.getuid()}")
    for folder in (base, base / f"evaluator-{pid}-{_start_time(pid)}"):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise EvaluatorError(f"{folder} is not a directory of this user. Remove it")
        if status.st_mode & 0o077:
            raise EvaluatorError(f"{folder} can be entered by other users. Remove it")
    return folder


def _start_time(pid: int) -> str:
    """When a process started, so that another one with the same number has another name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "0"
