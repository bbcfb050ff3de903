"""Starts the evaluator of an executor: a Java process in which Spark's own classes do the work.

There is one per executor and size of its memory, shared by all tasks there and kept for later
queries. It listens on a Unix socket in a directory that only this user can enter, and ends with the
executor, or after ten minutes without a task.

A file lock says whether there is one. Whoever can lock the file starts a process, which inherits
the lock and so holds it until it ends, however it ends. All others connect as soon as the socket is
there. So a crashed evaluator leaves nothing behind that has to be recognised as old. The directory
is removed by the evaluator when its executor ends, or by a later one if it was killed itself.

Its classes and an archive of Spark's let an evaluator start with half of the work. Without them
Janino compiles the source files at each start, and the JVM reads and checks 6,000 classes. The
first evaluator of a user with some Spark and some Java starts that way, and a process of low
priority makes both files meanwhile, in the user's cache directory, for all later ones. The JVM
ignores an archive that does not fit to its class path. A file gets its name when it is whole.

Run as a module, it makes the files: `python -m … EXECUTOR FOLDER SOURCES CLASS_PATH OPTION…`.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from epochal.errors import EpochalError, EvaluatorError, EvaluatorLostError
from epochal.evaluator.executor_jvm import (
    DEFAULT_MEMORY_MB,
    Code,
    ExecutorProcess,
    class_path,
    find_executor,
    java_command,
    start_time,
)

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
IDLE_SECONDS = 600
POLL_SECONDS = 0.01
SWEEP_SECONDS = 60.0
"""How old a directory without an executor must be: one that is made now has no lock yet."""

MAKE_SECONDS = 180.0
KEPT_FOLDERS = 4
_JAR, _ARCHIVE = "evaluator.jar", "evaluator.jsa"
_FOLDER = re.compile(r"evaluator-(\d+)-(\d+)-\d+")


def open_socket(executor: ExecutorProcess, memory_mb: int = DEFAULT_MEMORY_MB) -> socket.socket:
    """Connect to the evaluator of an executor; start it if there is none."""
    folder = _folder(executor.pid, memory_mb)
    address = str(folder / "socket")
    deadline = time.monotonic() + START_SECONDS
    started: _Started | None = None
    while True:
        if (connection := _connect(address)) is not None:
            return connection
        if started is not None and (status := started.process.poll()) is not None:
            if status < 0:
                raise EvaluatorLostError(f"it was killed by signal {-status} as it started")
            if started.cached is None:
                raise EvaluatorError(
                    f"it ended with status {status} as it started. Its messages are in the log of "
                    f"the executor"
                )
            logger.warning("the evaluator did not start from its cache, which is removed")
            shutil.rmtree(started.cached, ignore_errors=True)
            started = None
        if started is None:
            started = _start_if_none(executor, folder, address, memory_mb)
        if time.monotonic() > deadline:
            _kill_holder(folder / "lock")
            raise EvaluatorLostError(f"it did not start within {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def start_early(memory_mb: int) -> None:
    """Start the evaluator of this process's executor in the background, if there is none.

    What fails here fails again, and is reported, when the evaluator is needed.
    """
    executor = find_executor()

    def start() -> None:
        try:
            open_socket(executor, memory_mb).close()
        except (EpochalError, OSError) as error:
            logger.warning("the evaluator was not started early: %s", error)

    threading.Thread(target=start, name="epochal-evaluator", daemon=True).start()


def pid_of(connection: socket.socket) -> int | None:
    """The process at the other end of a connection; None where the system does not say it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, size))[0])


def _connect(address: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(address)
        connection.setblocking(True)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()  # it has not started, has ended, or is too busy to accept
        return None
    return connection


@dataclass(frozen=True, slots=True)
class _Started:
    """A process that this one has started, and the folder whose files it runs, if it does."""

    process: subprocess.Popen[bytes]
    cached: Path | None


def _start_if_none(
    executor: ExecutorProcess, folder: Path, address: str, memory_mb: int
) -> _Started | None:
    """Start an evaluator, unless another one runs or starts."""
    with open(folder / "lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        for name in (address, f"{address}.new"):
            with suppress(FileNotFoundError):
                os.unlink(name)
        _sweep(folder.parent)
        with as_file(files(__package__) / "java") as sources:
            # The process reads them later, when they may be gone: as files of a zip archive are.
            shutil.copytree(sources, folder / "java", dirs_exist_ok=True)
        cache = cache_folder(executor, os.environ, folder / "java")
        code = code_in(cache, folder / "java")
        arguments = [address, str(executor.pid), str(IDLE_SECONDS)]
        command = java_command(executor, os.environ, memory_mb, code, arguments)
        logger.info("starting an evaluator for the executor with process %d", executor.pid)
        log = sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fileno()],
            cwd="/",
            env=os.environ | {"SPARK_LOCAL_HOSTNAME": "localhost", "MALLOC_ARENA_MAX": "1"},
        )
        lock.truncate(0)
        lock.write(str(process.pid).encode())
        if cache is not None and code.archive is None:
            _reap(start_making(executor, cache, folder / "java"))
    _reap(process)
    return _Started(process, None if code.jar is None else cache)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Let a process that has ended be gone at once, though nobody here waits for it."""
    threading.Thread(target=process.wait, name="epochal-evaluator-end", daemon=True).start()


def _kill_holder(lock: Path) -> None:
    """Kill the process that holds a lock but does not start: it may be stopped (SIGSTOP)."""
    with open(lock, "rb") as held, suppress(ValueError, OSError):
        pid = int(held.read())
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.kill(pid, signal.SIGKILL)


def _has_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _folder(pid: int, memory_mb: int) -> Path:
    """A directory for the evaluator of a process, which only this user can enter."""
    base = Path(tempfile.gettempdir(), f"epochal-{os.getuid()}")
    if len(str(base)) > 60:  # the path of a socket has at most 107 bytes
        base = Path("/tmp", f"epochal-{os.getuid()}")
    name = f"evaluator-{pid}-{start_time(pid) or 0}-{memory_mb}"
    for folder in (base, base / name):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise EvaluatorError(f"{folder} is not a directory of this user. Remove it")
        if status.st_mode & 0o077:
            raise EvaluatorError(f"{folder} can be entered by other users. Remove it")
    return folder


def _sweep(base: Path) -> None:
    """Remove the directories of executors that have ended.

    Where several containers share the directory, an executor may only seem to have ended. So what
    is locked or new stays.
    """
    for folder in base.iterdir():
        name = _FOLDER.fullmatch(folder.name)
        if name is None or start_time(int(name[1])) == name[2]:
            continue
        with suppress(OSError):
            if name[2] == "0" or time.time() - folder.stat().st_mtime < SWEEP_SECONDS:
                continue
            with open(folder / "lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


def cache_folder(
    executor: ExecutorProcess, environ: Mapping[str, str], sources: Path
) -> Path | None:
    """Where the files for an executor are, or will be; None if no such directory is private."""
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    key = hashlib.sha256(f"{executor.java}\n{class_path(executor, environ)}".encode())
    for source in sorted(sources.iterdir()):
        key.update(source.read_bytes())
    folder = Path(base, "epochal", f"evaluator-{key.hexdigest()[:16]}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    # Whoever can write here decides what the evaluator runs.
    return folder if status.st_uid == os.getuid() and not status.st_mode & 0o022 else None


def code_in(folder: Path | None, sources: Path) -> Code:
    """What an evaluator should run: the files of a folder, as far as they are there."""
    if folder is None or not (folder / _JAR).exists():
        return Code(sources)
    with suppress(OSError):
        os.utime(folder)  # the folders that were used last are kept
    archive = folder / _ARCHIVE
    return Code(sources, folder / _JAR, archive if archive.exists() else None)


def start_making(executor: ExecutorProcess, folder: Path, sources: Path) -> subprocess.Popen[bytes]:
    """Make what a folder lacks, in a process of low priority that ends with the executor."""
    command = [sys.executable, "-m", __name__, str(executor.pid), executor.java, str(folder)]
    command += [str(sources), executor.directory, *executor.command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd="/",
    )


def make(executor: ExecutorProcess, folder: Path, sources: Path) -> None:
    """Make the classes and then the archive, unless another process does."""
    deadline = time.monotonic() + MAKE_SECONDS
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        shutil.copytree(sources, work / "java")
        jar, archive = folder / _JAR, folder / _ARCHIVE
        code = Code(work / "java")
        compiled = ["compile", str(work / "classes"), *map(str, code.sources.glob("*.java"))]
        if not jar.exists() and _ran(executor, code, compiled, (), deadline):
            with zipfile.ZipFile(work / _JAR, "w") as packed:
                for path in sorted((work / "classes").iterdir()):
                    packed.write(path, path.name)
            os.replace(work / _JAR, jar)
        if jar.exists() and not archive.exists():
            code = Code(code.sources, jar)
            option = f"-XX:ArchiveClassesAtExit={work / _ARCHIVE}"
            if _ran(executor, code, ("train",), (option,), deadline):
                with suppress(FileNotFoundError):
                    os.replace(work / _ARCHIVE, archive)
        shutil.rmtree(work, ignore_errors=True)
    folders = sorted(folder.parent.glob("evaluator-*"), key=lambda path: -path.stat().st_mtime)
    for old in folders[KEPT_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)


def _ran(
    executor: ExecutorProcess,
    code: Code,
    arguments: Sequence[str],
    options: Sequence[str],
    deadline: float,
) -> bool:
    command = java_command(executor, os.environ, 512, code, arguments, options)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if time.monotonic() > deadline or not _is_alive(executor.pid):
                process.kill()
            time.sleep(0.1)
    return process.returncode == 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(arguments: Sequence[str]) -> None:
    pid, java, folder, sources, directory, *command = arguments
    os.nice(19)
    executor = ExecutorProcess(int(pid), java, tuple(command), directory)
    make(executor, Path(folder), Path(sources))


if __name__ == "__main__":
    main(sys.argv[1:])
