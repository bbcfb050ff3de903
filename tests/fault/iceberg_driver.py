"""A program that tests kill: the driver's side of the Iceberg sink alone, epoch after epoch.

    python -m tests.fault.iceberg_driver FOLDER EPOCHS [OPTION=VALUE...]

It recovers what an earlier run has decided, then runs epochs without a pause. It ends by itself
after EPOCHS epochs of its own. Every row of epoch N has the value N.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from tests.iceberg_tables import NUMBERS, SmallEngine, Warehouse

from epochal.files.local import LocalFiles

ROWS = 10
KEYS = 25


def ids_of(epoch: int, *, by_key: bool) -> list[int]:
    """The ids of an epoch's rows: new ones, or some of a few keys."""
    found = range(epoch * ROWS, epoch * ROWS + ROWS)
    return [number * 7 % KEYS for number in found] if by_key else list(found)


def rows_of(epoch: int, *, by_key: bool) -> pa.Table:
    ids = ids_of(epoch, by_key=by_key)
    values = [str(epoch)] * len(ids)
    return pa.table([pa.array(ids, pa.int64()), pa.array(values, pa.string())], schema=NUMBERS)


def claim(checkpoint: Path) -> int:
    """The next attempt."""
    files, attempt = LocalFiles(checkpoint / "attempts", durable=False), 1
    while True:
        try:
            files.create(str(attempt), b"")
        except FileExistsError:
            attempt += 1
        else:
            return attempt


def main(folder: str, epochs: str, *options: str) -> None:
    checkpoint = Path(folder, "checkpoint")
    given = Warehouse(Path(folder)).options(**dict(each.split("=", 1) for each in options))
    by_key = "mergeKeys" in given
    with SmallEngine(given, checkpoint, attempt=claim(checkpoint)) as engine:
        first = engine.start()
        for epoch in range(first, first + int(epochs)):
            engine.run(epoch, rows_of(epoch, by_key=by_key), tasks=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
