"""What an epoch asks of storage: as much with many stores as with few."""

from __future__ import annotations

import pytest
from benchmarks.epoch import TASKS, Engine

from epochal.testing.files import MemoryFiles


@pytest.mark.parametrize("stores", [8, 64])
def test_an_epoch_is_one_request_per_task_and_three_more(stores: int) -> None:
    engine = Engine(MemoryFiles(), stores)
    engine.run(1)  # the first one also looks for what earlier attempts have left
    engine.requests.clear()
    engine.run(5)
    assert dict(engine.requests) == {"create": 5 * (TASKS + 3)}


def test_a_publication_writes_each_store_once_and_frees_what_is_not_needed() -> None:
    files = MemoryFiles()
    engine = Engine(files, 8, publish_seconds=1)
    for _ in range(250):
        engine.run(1)
        engine.publish()
    snapshots = [name for name in files.tree if name.endswith(".snapshot")]
    epochs = [name for name in files.tree if name.startswith("epochs/")]
    logged = [name for name in files.tree if name.startswith("offsets/")]
    versions = {int(name.rpartition("/")[2].removesuffix(".snapshot")) for name in snapshots}
    assert len(snapshots) == 8 * len(versions)
    # The retention is 100 epochs, and the tidying comes every ten.
    assert len(epochs) <= TASKS * 125
    assert len(logged) <= 125
    assert len(versions) <= 125
