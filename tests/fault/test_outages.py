"""Queries wait out a full disk, a read-only one, a server and a broker that do not answer.

They go on by themselves, without using up a restart, and every row is there once. `maxRestarts=0`
proves that nothing of it is counted as a lost worker. The tests print how long the first commit
took after the outage was over.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.fault.test_delta_kills import table_rows
from tests.fault.test_iceberg_kills import IcebergProgram
from tests.fault.test_kafka_kills import Feeder, KafkaProgram
from tests.fault.test_kafka_kills import check as check_topic
from tests.fault.test_postgres_kills import check_all
from tests.fault.torment import Program, check_rows, sink_rows, tell
from tests.iceberg_tables import Warehouse
from tests.kafka_topics import create_topic, read_topic
from tests.rigs.postgres import running_postgres

from epochal.testing.kafka import running_kafka

NOTHING_COUNTS = "maxRestarts=0"
SHORT_SECONDS, LONG_SECONDS = 20.0, 60.0
AFTER_SECONDS = 30.0
"""The first commit after the end of an outage takes less, even on a machine that does much else."""


@pytest.fixture
def end(request: pytest.FixtureRequest) -> Callable[[Program], None]:
    """Have a program ended with the test, whatever happens."""
    return lambda program: request.addfinalizer(program.end)


@dataclass(frozen=True, slots=True)
class Outage:
    """How something stops to work, and how it works again."""

    begin: Callable[[], object]
    over: Callable[[], object]
    named: str
    """What the query says about it."""

    def strike(self, program: Program, seconds: float) -> float:
        """Return the seconds from the end of the outage to the next commit."""
        program.until(lambda: program.newest() > 5, "the first epochs")
        told = program.log.read_text(errors="replace")
        self.begin()
        time.sleep(seconds)  # how long the outage lasts
        self.over()
        began, newest = time.monotonic(), program.newest()
        program.until(lambda: program.newest() > newest, f"an epoch after {newest}")
        took = time.monotonic() - began
        program.until(lambda: program.newest() > newest + 3, "more epochs")
        story = program.log.read_text(errors="replace").removeprefix(told)
        assert not self.named or re.search(self.named, story), program.story()
        assert took < AFTER_SECONDS
        return took


# Storage.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system that is small enough to fill. Fails where that is forbidden."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"This test mounts a file system, and this user may not: {done.stderr}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(1 << 16))


def remount(folder: Path, how: str) -> None:
    """Remount as soon as no file is open for writing."""
    for _ in range(2000):
        command = ["mount", "-o", f"remount,{how}", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.01)  # a file is open for writing most of the time
    raise AssertionError(f"{folder} could not be remounted {how}")


def of_storage(trouble: str, disk: Path) -> Outage:
    if trouble == "full":
        filler = disk / "filler"
        named = r"waiting since .* the disk is full \(No space left"
        return Outage(partial(fill, filler), filler.unlink, named)
    named = r"waiting since .* the file system is mounted read-only"
    return Outage(partial(remount, disk, "ro"), partial(remount, disk, "rw"), named)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("trouble", "sink", "seconds"),
    [
        ("full", "parquet", SHORT_SECONDS),
        ("read-only", "delta", SHORT_SECONDS),
        *(
            pytest.param(trouble, sink, LONG_SECONDS, marks=pytest.mark.long)
            for trouble in ("full", "read-only")
            for sink in ("parquet", "delta")
        ),
    ],
)
def test_storage_that_refuses_for_a_while_only_holds_the_query_up(
    small_disk: Path,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[Program], None],
    trouble: str,
    sink: str,
    seconds: float,
) -> None:
    """Everything of the query is on the small disk."""
    log = small_disk.parent / "driver.log"
    options = (f"format={sink}", NOTHING_COUNTS, "minBatchesToRetain=20")
    program = Program(small_disk, log, *options, master="local[3]")
    end(program)
    program.start()
    took = of_storage(trouble, small_disk).strike(program, seconds)
    program.stop()
    table = sink_rows(program.out) if sink == "parquet" else table_rows(program)
    rows = check_rows(table, program.checkpoint)
    tell(
        capsys,
        f"{trouble} disk for {seconds:.0f} s under {sink}: {rows} rows, commit after {took:.1f} s",
    )


@pytest.mark.timeout(300)
def test_storage_that_refuses_from_the_start_ends_the_query_at_once(
    small_disk: Path, end: Callable[[Program], None]
) -> None:
    (small_disk / "checkpoint").mkdir()
    remount(small_disk, "ro")
    program = Program(small_disk, small_disk.parent / "driver.log", master="local[3]")
    end(program)
    program.start()
    assert program.wait() != 0
    assert "StorageError" in program.log.read_text()
    assert "the file system is mounted read-only" in program.log.read_text()


# Servers.


PATIENCE = "serverTimeout=5 seconds"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        pytest.param(SHORT_SECONDS, (PATIENCE,), id="longer_than_its_timeout"),
        pytest.param(LONG_SECONDS, (), marks=pytest.mark.long, id="a_minute"),
    ],
)
def test_a_server_that_is_down_only_holds_the_query_up(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[Program], None],
    seconds: float,
    options: tuple[str, ...],
) -> None:
    with running_postgres() as server:
        table = ("format=postgres", f"url={server.url}", "dbtable=sums", "lockTimeout=1 second")
        given = (*table, "epoch=100 milliseconds", NOTHING_COUNTS, *options)
        program = Program(tmp_path, tmp_path / "driver.log", *given, master="local[3]")
        end(program)
        program.start()
        named = r"waiting since .* PostgreSQL at .* is unavailable" if options else ""
        took = Outage(server.kill, server.start, named).strike(program, seconds)
        program.stop()
        rows = check_all(server, program, "sums")
    tell(capsys, f"PostgreSQL down for {seconds:.0f} s: {rows} rows, commit after {took:.1f} s")


# Catalogs.


class Lock:
    """The lock of a catalog in SQLite, which another program holds."""

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(database, timeout=60.0, isolation_level=None)

    def take(self) -> None:
        self._connection.execute("BEGIN EXCLUSIVE")

    def give_back(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_catalog_that_is_locked_for_half_a_minute_only_holds_the_query_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: Callable[[Program], None]
) -> None:
    program = IcebergProgram(tmp_path, NOTHING_COUNTS, master="local[3]")
    end(program)
    program.start()
    program.until(lambda: program.newest() >= 0, "an epoch")
    lock = Lock(program.out / "catalog.db")
    named = r"waiting since .* database is locked"
    took = Outage(lock.take, lock.give_back, named).strike(program, SHORT_SECONDS + 10)
    program.stop()
    rows = check_rows(Warehouse(program.out).rows("db.sums"), program.checkpoint)
    tell(capsys, f"catalog locked for 30 s: {rows} rows, commit after {took:.1f} s")


# Brokers.


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("paused", SHORT_SECONDS),
        pytest.param("paused", LONG_SECONDS, marks=pytest.mark.long),
        pytest.param("down", LONG_SECONDS, marks=pytest.mark.long),
    ],
)
def test_a_broker_that_is_away_only_holds_the_query_up(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[Program], None],
    how: str,
    seconds: float,
) -> None:
    with running_kafka() as broker:
        servers = broker.bootstrap_servers
        source = create_topic(servers, "numbers", partitions=3)
        target = create_topic(servers, "sums", partitions=3)
        given = (f"servers={servers}", f"input={source}", f"output={target}", NOTHING_COUNTS)
        program = KafkaProgram(tmp_path, tmp_path / "driver.log", *given, master="local[3]")
        end(program)
        program.start()
        feeder = Feeder(servers, source)
        begin, over = (
            (broker.pause, broker.resume) if how == "paused" else (broker.kill, broker.start)
        )
        took = Outage(begin, over, "").strike(program, seconds)
        rows = feeder.end()
        program.until(lambda: len(read_topic(servers, target)) >= rows, f"{rows} rows")
        program.stop()
        check_topic(read_topic(servers, target), rows, program.checkpoint)
    tell(capsys, f"broker {how} for {seconds:.0f} s: {rows} rows, commit after {took:.1f} s")
