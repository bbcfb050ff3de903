"""The driver of an Iceberg sink is killed at any moment; the table equals the model."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from random import Random

import pytest
from tests.fault.iceberg_driver import ids_of
from tests.fault.torment import launched
from tests.iceberg_tables import Warehouse
from tests.waiting import eventually

from epochal.checkpoint import CommitLog

KEEP_UP = (
    "compact=true",
    "compactMinFiles=4",
    "expireSnapshotsKeep=5",
    "maintenanceInterval=100 milliseconds",
)


class Driver:
    """Runs of the program, one after another, on one checkpoint."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options

    def newest(self) -> int:
        commits = CommitLog(str(self._folder / "checkpoint" / "commits"), read_only=True)
        return -1 if (found := commits.latest_batch_id()) is None else found

    def start(self, epochs: int) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder), str(epochs), *self._options]
        return launched(self._folder / "driver.log", "tests.fault.iceberg_driver", *arguments)

    def kill_after(self, seconds: float) -> None:
        """Start it, and kill it this long after its first commit."""
        before = self.newest()
        process = self.start(100_000)
        try:
            eventually(lambda: self.newest() > before or process.poll() is not None, self.story)
            assert process.poll() is None, self.story()
            time.sleep(seconds)  # a random moment
        finally:
            process.kill()
            process.wait()

    def finish(self) -> None:
        """Let it recover, run a few epochs and end."""
        assert self.start(3).wait(120) == 0, self.story()

    def story(self) -> str:
        return (self._folder / "driver.log").read_text()[-4000:]


def check(folder: Path, newest: int, *, by_key: bool) -> None:
    """Compare the table with the model, and its directory with what snapshots name."""
    warehouse = Warehouse(folder)
    model = {n: str(epoch) for epoch in range(newest + 1) for n in ids_of(epoch, by_key=by_key)}
    rows = warehouse.rows()
    assert len(rows) == len(model)
    assert {row["id"]: row["v"] for row in rows} == model
    named = set()
    for snapshot in (table := warehouse.table()).metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            named |= {entry.data_file.file_path.rpartition("/")[2] for entry in entries}
    assert {path.name for path in warehouse.data_files()} - named == set()


def survives(folder: Path, kills: int, seed: int, *options: str) -> None:
    driver, rng = Driver(folder, *options), Random(seed)
    for _ in range(kills):
        driver.kill_after(rng.uniform(0.0, 0.6))
    driver.finish()
    check(folder, driver.newest(), by_key="mergeKeys=id" in options)


def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path) -> None:
    survives(tmp_path, 1, 1, *KEEP_UP)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [(), KEEP_UP, ("mergeKeys=id", "expireSnapshotsKeep=5", "maintenanceInterval=100 ms")],
    ids=["append", "upkeep", "by-key"],
)
def test_many_kills_of_the_driver_lose_and_double_nothing(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    survives(tmp_path, 40, 7, *options)
