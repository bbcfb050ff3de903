from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden.library import Golden, unpack

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
