"""The health of checkpoints, and which of them are found below a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, unpack

from epochal.dashboard import board as module
from epochal.dashboard.board import find_checkpoints
from epochal.dashboard.health import HealthMonitor
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.tools.verify.findings import Depth, Finding, finding
from epochal.tools.verify.verify import Report


def checkpoint(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(unpack(Golden("4.3.0", "rate"), tmp_path).checkpoint))


class Looks:
    """Stands in for `verify`: returns prepared results, each after a given time."""

    def __init__(self, clock: ManualClock, *answers: list[Finding], seconds: float = 0.01) -> None:
        self._clock, self._answers, self._seconds = clock, list(answers), seconds
        self.depths: list[Depth] = []

    def __call__(self, files: Any, *, depth: Depth) -> Report:
        self.depths.append(depth)
        self._clock.advance(self._seconds)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Report(files.url, tuple(found), 1, 1, depth)


BROKEN = finding("LOG_ENTRY_UNREADABLE", "offsets/3", "it is empty")


def test_a_finding_counts_when_a_second_look_finds_it_too(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    looks = Looks(clock, [BROKEN], [])
    assert HealthMonitor(files, clock, looks).check().findings == ()
    looks = Looks(clock, [BROKEN], [BROKEN])
    assert HealthMonitor(files, clock, looks).check().findings == (BROKEN,)
    assert len(looks.depths) == 2


def test_a_finding_that_is_known_needs_no_second_look(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    looks = Looks(clock, [BROKEN])
    monitor = HealthMonitor(files, clock, looks)
    monitor.check()
    before = len(looks.depths)
    monitor.check()
    assert len(looks.depths) == before + 1


def test_a_slow_checkpoint_is_looked_at_rarely(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    quick = HealthMonitor(files, clock, Looks(clock, [], seconds=0.01))
    quick.check()
    assert 0.4 < quick.due - clock.monotonic() < 0.6
    looks = Looks(clock, [], seconds=3.0)
    slow = HealthMonitor(files, clock, looks)
    slow.check()
    for _ in range(20):
        clock.advance(slow.due - clock.monotonic())
        slow.check()
    assert clock.monotonic() > 20 * 3 / 0.4
    assert {Depth.QUICK, Depth.NORMAL} == set(looks.depths)


def test_what_only_reading_everything_shows_stays_until_everything_is_read_again(
    tmp_path: Path,
) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    deep = finding("STATE_FILE_UNREADABLE", "state/0/0/3.delta", "its checksum is wrong")
    looks = Looks(clock, [deep], [deep], [], [], seconds=0.2)
    monitor = HealthMonitor(files, clock, looks)
    monitor.check()
    clock.advance(0.6)
    assert monitor.check().findings == (deep,)
    assert looks.depths == [Depth.NORMAL, Depth.NORMAL, Depth.QUICK]
    clock.advance(2.0)
    assert monitor.check().findings == ()
    assert looks.depths[3:] == [Depth.NORMAL]


def new_checkpoint(path: Path) -> str:
    (path / "offsets").mkdir(parents=True)
    (path / "metadata").write_text("{}")
    return str(path)


def found(path: Path) -> list[str]:
    return find_checkpoints(LocalFiles(path))


def test_all_checkpoints_below_a_directory_are_found_in_order(tmp_path: Path) -> None:
    made = [new_checkpoint(tmp_path / name) for name in ("a", "b/c/checkpoint", "b/checkpoint")]
    new_checkpoint(tmp_path / "much" / "too" / "far" / "below")
    assert found(tmp_path) == made


def test_tables_and_output_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "data" / "day=1").mkdir(parents=True)
    new_checkpoint(tmp_path / "delta" / "_delta_log")
    new_checkpoint(tmp_path / "parquet" / "day=2")
    new_checkpoint(tmp_path / ".hidden")
    assert found(tmp_path) == [str(tmp_path)], "nothing is found: the page says so"


def test_a_directory_that_does_not_exist_is_shown_as_it_was_given(tmp_path: Path) -> None:
    assert found(tmp_path / "gone") == [str(tmp_path / "gone")]


def test_a_large_tree_is_searched_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [new_checkpoint(tmp_path / f"q{number}") for number in range(9)]
    monkeypatch.setattr(module, "MAX_DIRECTORIES", 5)
    assert found(tmp_path) == made[:4]
