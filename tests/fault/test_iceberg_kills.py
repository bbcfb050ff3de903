"""A stateful query into Iceberg tables survives `kill -9` of workers, executors and drivers."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from tests.fault.sums import KEYS
from tests.fault.torment import Program, check_rows, state_totals, torment
from tests.iceberg_tables import Warehouse

SHORT_SEED = 4
KEEP_UP = ("compact=true", "expireSnapshotsKeep=20", "maintenanceInterval=2 seconds")


class IcebergProgram(Program):
    def __init__(self, folder: Path, *options: str, **more: str) -> None:
        table = Warehouse(folder / "out").options("db.sums")
        named = [f"{key}={value}" for key, value in table.items()]
        given = ("format=iceberg", "epoch=250 milliseconds", *named, *options)
        super().__init__(folder, folder / "driver.log", *given, **more)


def tormented(folder: Path, kinds: list[str], seed: int, *options: str) -> IcebergProgram:
    program = IcebergProgram(folder, *options)
    torment(program, kinds, seed)
    return program


def check_table(program: IcebergProgram, *, by_key: bool) -> int:
    """Check the rows, and that no file is left that no snapshot names; return their number."""
    warehouse = Warehouse(program.out)
    rows = warehouse.rows("db.sums")
    if by_key:
        assert {row["k"]: row["total"] for row in rows} == state_totals(program.checkpoint)
        assert len(rows) == KEYS
    else:
        check_rows(rows, program.checkpoint)
    assert len(warehouse.table("db.sums").metadata.snapshots) < 200
    return len(rows)


def tell(capsys: pytest.CaptureFixture[str], kills: int, rows: int) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{kills} kills, {rows} rows\n")


@pytest.mark.timeout(800)
def test_three_kills_leave_every_row_in_the_table_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["worker", "executor", "driver"]
    program = tormented(tmp_path, kinds, SHORT_SEED, *KEEP_UP)
    tell(capsys, len(kinds), check_table(program, by_key=False))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("by_key", [False, True], ids=["append", "by-key"])
@pytest.mark.parametrize("seed", range(30, 36))
def test_ten_kills_leave_every_row_in_the_table_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, by_key: bool
) -> None:
    kinds = ["worker"] * 4 + ["executor"] * 3 + ["driver"] * 3
    Random(seed).shuffle(kinds)
    keys = ("mergeKeys=k",) if by_key else ()
    program = tormented(tmp_path, kinds, seed, *KEEP_UP, *keys)
    tell(capsys, len(kinds), check_table(program, by_key=by_key))
