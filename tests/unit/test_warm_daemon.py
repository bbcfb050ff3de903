"""The daemon that forks Python workers which have their imports already."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.waiting import eventually

from epochal.continuous.spark_job.barrier_job import WARM
from epochal.warm_daemon import MODULES, drop_archives

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux")


@contextmanager
def daemon(*modules: str, path: Path | None = None) -> Iterator[tuple[int, int]]:
    """Start the daemon as Spark does; the value is its pid and the port it listens on."""
    paths = [str(ROOT / "src"), str(ROOT), *([str(path)] if path else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment.pop(MODULES, None)
    if modules:
        environment[MODULES] = ",".join(modules)
    arguments = [sys.executable, "-m", "epochal.warm_daemon", "pyspark.worker"]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        arguments, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            (port,) = struct.unpack("!i", process.stdout.read(4))
            yield process.pid, port
            process.stdin.close()  # which is how Spark ends it
            process.wait(30)
        finally:
            process.kill()


@contextmanager
def worker(port: int) -> Iterator[int]:
    """Fork a worker; the value is its pid."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        yield pid
    with suppress(ProcessLookupError):  # it may have seen the end of its connection first
        os.kill(pid, signal.SIGKILL)


def command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def has_arrow(pid: int) -> bool:
    return "libarrow.so" in Path(f"/proc/{pid}/maps").read_text()


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_what_tasks_import_is_in_a_worker_as_it_is_forked_and_the_daemon_has_one_thread() -> None:
    with daemon(*WARM) as (pid, port), worker(port) as forked:
        assert command(pid)[1:3] == ["-m", "epochal.warm_daemon"]
        assert threads(pid) == 1
        assert has_arrow(forked)


def test_without_its_variable_the_daemon_imports_nothing() -> None:
    with daemon() as (pid, port), worker(port) as forked:
        assert command(pid)[1:3] == ["-m", "epochal.warm_daemon"]
        assert not has_arrow(pid)
        eventually(lambda: Path(f"/proc/{forked}").exists(), "a worker")


@pytest.mark.parametrize(
    "modules", [("starts_a_thread",), ("json", "nobody_has_this"), ("fails_to_import",)]
)
def test_what_cannot_be_forked_or_imported_leaves_spark_its_own_daemon(
    tmp_path: Path, modules: tuple[str, ...]
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    (tmp_path / "fails_to_import.py").write_text("raise OSError('a library is missing')")
    with daemon(*modules, path=tmp_path) as (pid, port), worker(port):
        assert command(pid)[1:4] == ["-m", "pyspark.daemon", "pyspark.worker"]


def test_an_optional_module_may_be_missing() -> None:
    with daemon("json", "nobody_has_this?") as (pid, port), worker(port):
        assert command(pid)[1:3] == ["-m", "epochal.warm_daemon"]


def test_forked_workers_draw_different_random_numbers() -> None:
    program = """
    import os, random
    from epochal.warm_daemon import _warm_up
    assert _warm_up(["numpy.random"])
    import numpy
    for _ in range(3):
        if os.fork() == 0:
            print(numpy.random.random(), random.random(), flush=True)
            os._exit(0)
        os.wait()
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    drawn = [line.split() for line in run.stdout.splitlines()]
    assert [len({each[column] for each in drawn}) for column in (0, 1)] == [3, 3]


def archived(folder: Path, version: str) -> list[str]:
    """The path that Spark gives its workers: its archives first."""
    folder.mkdir()
    with ZipFile(folder / "pyspark.zip", "w") as written:
        written.writestr("pyspark/version.py", version)
    for name in ("py4j-0.10.9-src.zip", "spark-core_2.13-4.3.0.jar", "mine.zip"):
        with ZipFile(folder / name, "w") as written:
            written.writestr("something", "")
    return [str(each) for each in sorted(folder.iterdir(), reverse=True)]


def installed(folder: Path, version: str) -> str:
    for package in ("pyspark", "py4j"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    (folder / "pyspark" / "version.py").write_text(version)
    return str(folder)


def test_sparks_archives_are_dropped_if_the_same_version_is_installed(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "4.3.0")
    path = [*archived(tmp_path / "lib", "4.3.0"), "", site]
    drop_archives(path)
    assert path == [str(tmp_path / "lib" / "mine.zip"), "", site]


def test_sparks_archives_stay_if_another_version_is_installed_or_none(tmp_path: Path) -> None:
    archives = archived(tmp_path / "lib", "4.3.0")
    other = [*archives, installed(tmp_path / "site", "4.2.1")]
    none = [*archives, str(tmp_path)]
    for path in (other, none):
        before = list(path)
        drop_archives(path)
        assert path == before
