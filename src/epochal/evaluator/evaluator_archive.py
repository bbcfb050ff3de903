"""Makes what lets an evaluator start with half of the work: its classes, and an archive of Spark's.

Without them Janino compiles the source files at each start, and the JVM reads and checks 6,000
classes. The first evaluator of a user with some Spark and some Java starts that way, and a process
of low priority makes both files meanwhile, in the user's cache directory, for all later ones. The
JVM ignores an archive that does not fit to its class path. A file gets its name when it is whole.

Run as a module, it makes the files: `python -m … EXECUTOR FOLDER SOURCES CLASS_PATH OPTION…`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from epochal.evaluator.executor_jvm import Code, Executor, class_path, java_command

MAKE_SECONDS = 180.0
KEPT_FOLDERS = 4
_JAR, _ARCHIVE = "evaluator.jar", "evaluator.jsa"


def cache_folder(executor: Executor, environ: Mapping[str, str], sources: Path) -> Path | None:
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


def start_making(executor: Executor, folder: Path, sources: Path) -> subprocess.Popen[bytes]:
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


def make(executor: Executor, folder: Path, sources: Path) -> None:
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
    executor: Executor,
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
    executor = Executor(int(pid), java, tuple(command), directory)
    make(executor, Path(folder), Path(sources))


if __name__ == "__main__":
    main(sys.argv[1:])
