"""Browsing a checkpoint while its query runs, and before it has committed a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, unpack

from epochal.dashboard.checkpoint_answers import StateSelection, state_page, stats, stores
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles


class Purging(LocalFiles):
    """Fails to find purged files: each name in `misses` is missing once."""

    def __init__(self, root: str | Path, misses: list[str]) -> None:
        super().__init__(root)
        self.misses = misses

    def at(self, path: str) -> LocalFiles:
        return Purging(super().at(path).url, self.misses)

    def read(self, path: str, *, large: bool = False) -> bytes:
        if path.endswith((".delta", ".snapshot")) and self.misses:
            raise FileNotFoundError(self.misses.pop())
        return super().read(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(Golden("4.3.0", "chained"), tmp_path).checkpoint


READS: dict[str, Callable[[LocalFiles, StateSelection], dict[str, Any]]] = {
    "rows": lambda files, selection: state_page(files, selection, 0, 50),
    "figures": stats,
}


@pytest.mark.parametrize("what", READS)
def test_the_newest_state_is_looked_up_again_when_it_was_purged_under_way(
    checkpoint: Path, what: str
) -> None:
    files = Purging(checkpoint, ["1.delta"])
    assert READS[what](files, StateSelection()) == READS[what](
        LocalFiles(checkpoint), StateSelection()
    )
    assert files.misses == []


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize(("batch", "misses"), [(None, 1000), (1, 1)])
def test_state_that_stays_away_or_was_asked_for_by_number_is_said_to_be_gone(
    checkpoint: Path, what: str, batch: int | None, misses: int
) -> None:
    with pytest.raises((EpochalError, OSError)):
        READS[what](Purging(checkpoint, ["1.delta"] * misses), StateSelection(batch=batch))


def test_a_query_that_has_committed_nothing_has_no_stores_yet(checkpoint: Path) -> None:
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    nothing: dict[str, Any] = {"batch_id": None, "stores": [], "oldest": None, "newest": None}
    assert stores(LocalFiles(checkpoint), None) == nothing
