"""A switch that is killed leaves one checkpoint to start from, or one command away from that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fault.test_edit_kill import EXECUTE, MOMENTS, kill_inside
from tests.golden.library import Golden, Unpacked, unpack

from epochal.checkpoint.entries import QueryMetadata
from epochal.cli.main import main
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal


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
        kill_inside(edited, "*", draw, *words, *EXECUTE)
        assert len(startable(place)) < 2
        interrupted = Journal(LocalFiles(edited)).unfinished() is not None
        assert interrupted or len(startable(place)) == 1
        if interrupted and draw.random() < 0.5:
            run("checkpoint", "undo", str(edited), "--other", str(place.base / other))
            assert startable(place) == {other}
        if startable(place) != {opened}:
            run(*words)
        assert startable(place) == {opened}
