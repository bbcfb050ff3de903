"""Stateful Python to PostgreSQL survives `kill -9` of workers, executors, driver and server.

`psql` reads the table: every row once, with the right sum, or the newest row of each key.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.fault.keyed_sums import ROWS_PER_SECOND
from tests.fault.sums import KEYS
from tests.fault.torment import CLUSTER, Program, check_rows, state_totals, tell
from tests.rigs.postgres import Postgres, running_postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


def sessions(server: Postgres) -> list[int]:
    """The server's processes that serve drivers."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'epochal'"
    return [int(pid) for pid in server.rows(query)]


def kill(program: Program, server: Postgres, kind: str, rng: Random) -> None:
    """Kill one process of a kind, and wait until epochs are committed again."""
    before, newest = program.attempt(), program.newest()
    match kind:
        case "session":  # the server ends all its sessions and recovers
            (pid, *_) = program.until(lambda: sessions(server), "a session")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        case "server":
            server.kill()
            time.sleep(rng.uniform(0.0, 1.0))  # a random downtime
            server.start()
        case _:
            program.kill(kind, rng)
            program.recovered(before)
            return
    # The attempt may survive this, so wait for epochs, not for a new attempt.
    program.until(lambda: program.newest() > newest + 2, f"epochs after {newest}")


def tormented(
    folder: Path, server: Postgres, kinds: list[str], seed: int, *options: str, master: str
) -> Program:
    """Kill processes one after another at random times; return the program, which has ended."""
    rng = Random(seed)
    table = ("format=postgres", f"url={server.url}", f"dbtable=sums_{seed}")
    given = (*table, "epoch=100 milliseconds", "lockTimeout=1 second", *options)
    program = Program(folder, folder / "driver.log", *given, master=master)
    program.start()
    try:
        program.recovered(-1)
        for kind in kinds:
            time.sleep(rng.uniform(0.0, 1.0))  # kill at a random time
            kill(program, server, kind, rng)
        program.stop()
    finally:
        program.end()
    return program


def check_all(server: Postgres, program: Program, table: str) -> int:
    """Check that each row is there once, with its sum; return their number."""
    names = ("value", "k", "total")
    found = server.rows(f"SELECT value, k, total FROM {table}")
    rows = [dict(zip(names, map(int, row.split("|")), strict=True)) for row in found]
    return check_rows(rows, program.checkpoint)


def check_newest(server: Postgres, program: Program, table: str) -> int:
    """Check that each key has its newest row; return the number of rows that were read."""
    found = [
        tuple(map(int, row.split("|")))
        for row in server.rows(f"SELECT k, value, total FROM {table}")
    ]
    count = max(value for _, value, _ in found) + 1
    assert count % ROWS_PER_SECOND == 0
    assert sorted(found) == [
        (key, max(range(key, count, KEYS)), sum(n + 1 for n in range(key, count, KEYS)))
        for key in range(KEYS)
    ]
    assert state_totals(program.checkpoint) == {key: total for key, _, total in found}
    return count


KINDS = [*("worker", "session") * 3, "executor", "driver", "server", "driver's JVM"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        pytest.param(5, ["worker", "session"], id="worker-session"),
        pytest.param(6, ["driver", "server"], id="driver-server"),
        *(pytest.param(seed, KINDS, marks=pytest.mark.long) for seed in range(50, 57)),
    ],
)
def test_kills_leave_every_row_in_the_table_once(
    tmp_path: Path,
    server: Postgres,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    kinds: list[str],
) -> None:
    master = CLUSTER if kinds is KINDS else "local[4]"
    order = Random(seed).sample(KINDS, len(KINDS)) if kinds is KINDS else kinds
    program = tormented(tmp_path, server, order, seed, master=master)
    rows = check_all(server, program, f"sums_{seed}")
    tell(capsys, f"{rows} rows; killed {dict(Counter(kinds))}")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(60, 64))
def test_ten_kills_leave_the_newest_row_of_each_key(
    tmp_path: Path, server: Postgres, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    kinds = Random(seed).sample(KINDS, len(KINDS))
    program = tormented(tmp_path, server, kinds, seed, "mergeKeys=k", master=CLUSTER)
    rows = check_newest(server, program, f"sums_{seed}")
    tell(capsys, f"{rows} rows; killed {dict(Counter(kinds))}")
