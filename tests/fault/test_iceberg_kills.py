"""A stateful query into Iceberg tables survives `kill -9` of workers, executors and drivers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.fault.sums import KEYS
from tests.fault.torment import Program, check_rows, state_totals, tell, torment
from tests.iceberg_tables import Warehouse

SHORT_SEED = 4
KEEP_UP = ("compact=true", "expireSnapshotsKeep=20", "maintenanceInterval=2 seconds")


class IcebergProgram(Program):
    def __init__(self, folder: Path, *options: str, **more: str) -> None:
        table = Warehouse(folder / "out").options("db.sums")
        named = [f"{key}={value}" for key, value in table.items()]
        given = ("format=iceberg", "epoch=250 milliseconds", *named, *options)
        super().__init__(folder, folder / "driver.log", *given, **more)


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


TEN = ["worker"] * 4 + ["executor"] * 3 + ["driver"] * 3


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("by_key", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "seed", [SHORT_SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 36))]
)
def test_kills_leave_every_row_in_the_table_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, by_key: bool
) -> None:
    kinds = ["worker", "executor", "driver"]
    if seed != SHORT_SEED:
        kinds = Random(seed).sample(TEN, len(TEN))
    program = IcebergProgram(tmp_path, *KEEP_UP, *("mergeKeys=k",) * by_key)
    torment(program, kinds, seed)
    rows = check_table(program, by_key=by_key)
    tell(capsys, f"{len(kinds)} kills, {rows} rows")
