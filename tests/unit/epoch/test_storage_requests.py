"""What an epoch asks of storage: as much with many stores as with few."""

from __future__ import annotations

import pytest
from benchmarks.epoch import TASKS, Engine

from epochal.testing.files import FaultyFiles, MemoryFiles


@pytest.mark.parametrize(("stores", "epochs"), [(8, 5), (64, 5), (8, 250)])
def test_an_epoch_is_one_request_per_task_and_three_more(stores: int, epochs: int) -> None:
    """Between publications nothing is read, also in a run beyond the retention of 100 epochs."""
    engine = Engine(MemoryFiles(), stores)
    engine.run(1)  # the first one also looks for what earlier attempts have left
    engine.requests.clear()
    engine.run(epochs)
    assert dict(engine.requests) == {"create": epochs * (TASKS + 3)}


def test_a_long_run_lists_the_logs_once_and_epoch_files_at_publications_only() -> None:
    engine = Engine(MemoryFiles(), 8, publish_seconds=25)
    engine.run(1)
    listed = []
    for _ in range(400):
        engine.requests.clear()
        engine.run(1)
        listed.append(engine.requests["list"])
        engine.publish()
    rounds = [count for count in listed if count]
    assert sorted(rounds) == [1] * (len(rounds) - 1) + [3]  # once also both logs
    assert len(rounds) <= 400 // 25
    assert engine.requests["read"] == engine.requests["info"] == 0


def test_nothing_is_deleted_twice() -> None:
    deleted = []

    def note(operation: str, path: str) -> None:
        if operation == "delete":
            deleted.append(path)

    engine = Engine(FaultyFiles(MemoryFiles(), note), 8, publish_seconds=10)
    for _ in range(250):
        engine.run(1)
        engine.publish()
    assert "offsets/0" in deleted
    assert len(deleted) == len(set(deleted))


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


def test_a_query_that_restarts_often_keeps_no_more_than_the_retention() -> None:
    files = MemoryFiles()
    for attempt in range(1, 21):
        engine = Engine(files, 8, publish_seconds=10, attempt=attempt)
        for _ in range(40):  # fewer than the retention of 100, so that no attempt gets far
            engine.run(1)
            engine.publish()
    logged = [name for name in files.tree if name.startswith("offsets/")]
    epochs = [name for name in files.tree if name.startswith("epochs/")]
    snapshots = [name for name in files.tree if name.endswith(".snapshot")]
    # The last attempt has added its epochs to those that were retained at its start.
    most = 100 + 40 + 25
    assert len(logged) <= most
    assert len(epochs) <= TASKS * most
    assert len(snapshots) <= 8 * most // 10
