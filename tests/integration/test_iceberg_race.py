"""Two drivers that both believe to own a query commit the same epochs; each is written once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.iceberg_tables import SmallEngine, Warehouse, numbers

EPOCHS = 30


def commit_all(
    options: dict[str, str], checkpoint: Path, messages: list[tuple[bytes, ...]]
) -> None:
    """Commit all epochs, as a driver that nobody has told to stop."""
    with SmallEngine(options, checkpoint, attempt=1) as engine:
        engine.sink.fence(1)
        for epoch, each in enumerate(messages):
            engine.sink.commit(epoch, each)


Work: TypeAlias = Callable[[dict[str, str], Path, list[tuple[bytes, ...]]], None]


def race(options: dict[str, str], checkpoint: Path, work: Work) -> None:
    """Decide all epochs, then let two processes commit them at the same time."""
    with SmallEngine(options, checkpoint) as engine:
        engine.sink.fence(1)
        messages = [engine.prepare(epoch, numbers(epoch, 1000)) for epoch in range(EPOCHS)]
        for epoch, each in enumerate(messages):
            engine.decide(epoch, each)
    context = multiprocessing.get_context("spawn")
    drivers = [context.Process(target=work, args=(options, checkpoint, messages)) for _ in "ab"]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(300)
    assert [driver.exitcode for driver in drivers] == [0, 0]


@pytest.mark.parametrize("keys", [{}, {"mergeKeys": "id"}], ids=["append", "by-key"])
def test_two_drivers_commit_every_epoch_once(tmp_path: Path, keys: dict[str, str]) -> None:
    warehouse = Warehouse(tmp_path)
    race(warehouse.options(**keys), tmp_path / "checkpoint", commit_all)
    found = [row["id"] for row in warehouse.rows()]
    assert found == [*range(EPOCHS), *([1000] * (1 if keys else EPOCHS))]
    found_summaries = [each.summary for each in warehouse.table().metadata.snapshots]
    epochs = [each["spark.sql.streaming.epochId"] for each in found_summaries if each]
    assert epochs == [str(epoch) for epoch in range(EPOCHS)]
