"""A switch that is killed leaves one checkpoint to start from, or one command away from that."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.golden.library import Golden, Unpacked, unpack
from tests.waiting import eventually

from epochal.checkpoint.entries import QueryMetadata
from epochal.cli.main import main
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal

EXECUTE = ("--execute", "--settle-seconds", "0")
EVERYDAY_MOMENTS = 2
MOMENTS = [
    pytest.param(seed, marks=[pytest.mark.long] if seed >= EVERYDAY_MOMENTS else [])
    for seed in range(40)
]


def startable(place: Unpacked) -> set[str]:
    found = set()
    for name in ("checkpoint", "new"):
        try:
            if QueryMetadata.read(LocalFiles(place.base / name)) is not None:
                found.add(name)
        except EpochalError:
            pass
    return found


def run(*words: str) -> None:
    assert main((*words, *EXECUTE)) == 0, words


def kill_inside(journal: Path, draw: random.Random, *words: str) -> None:
    command = [sys.executable, "-m", "epochal.cli.main", *words, *EXECUTE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    known = set(journal.glob("*"))
    eventually(
        lambda: process.poll() is not None or set(journal.glob("*")) > known,
        "an entry in the journal",
        pause=0.001,
    )
    time.sleep(draw.uniform(0, 0.2))  # the moment of the kill is random
    process.kill()
    process.communicate()


@pytest.mark.parametrize("seed", MOMENTS)
def test_a_killed_switch_is_finished_or_undone_and_so_is_a_killed_way_back(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    place = unpack(Golden("4.3.0", "file_sink_counts"), tmp_path, relocate=True)
    old, new = str(place.checkpoint), str(place.base / "new")
    forth, back = ("switch", old, "--to", new), ("switch", old, "--back", new)
    for words, opened, other in ((forth, "new", "checkpoint"), (back, "checkpoint", "new")):
        edited = place.base / opened
        kill_inside(edited / ".epochal" / "journal", draw, *words)
        assert len(startable(place)) < 2
        interrupted = Journal(LocalFiles(edited)).unfinished() is not None
        assert interrupted or len(startable(place)) == 1
        if interrupted and draw.random() < 0.5:
            run("checkpoint", "undo", str(edited), "--other", str(place.base / other))
            assert startable(place) == {other}
        if startable(place) != {opened}:
            run(*words)
        assert startable(place) == {opened}
