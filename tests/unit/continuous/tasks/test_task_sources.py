"""How much a source reads in a turn and how often, and whether a task is told when rows come."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.continuous.tasks.test_task import FIRST, start, totals

from epochal.connectors.contract import Positions, ReaderFactory, SourceReader
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.stateless.row_operators import ObserveEventTimeSpec
from epochal.continuous.plan.stages import QueryPlan, ReaderPlan, SourcePlan, Target
from epochal.continuous.tasks.task_sources import MAX_ROWS_PER_TURN, Chain, OpenSource, TaskSources
from epochal.continuous.tasks.worker import EARLY_TURNS, TURN_SECONDS, next_woken_read, turn_seconds
from epochal.epoch.event_time.units import HOLDS_NOTHING
from epochal.record_batches import FEW_ROWS


class Script(SourceReader):
    """A reader whose reads return these numbers of rows, and then nothing."""

    def __init__(self, *counts: int) -> None:
        self.left = list(counts)

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if not self.left:
            return None
        count = min(self.left[0], max_rows)
        self.left[0] -= count
        if not self.left[0]:
            del self.left[0]
        return pa.record_batch([list(range(count))], names=["n"])

    def positions(self) -> Positions:
        return {}

    def limit(self, ends: Positions) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


def read(reader: Script, partitions: int, *, reads_all: bool) -> tuple[list[int], bool]:
    numbers = {str(number): number for number in range(partitions)}
    source = OpenSource(reader, numbers, [], None, reads_all=reads_all)
    batches, more = source.read()
    return [batch.num_rows for batch in batches], more


def test_each_partition_is_read_until_it_is_empty() -> None:
    reader = Script(3, 2, 1)
    assert read(reader, 2, reads_all=False) == ([3, 2], False)
    assert reader.left == [1]


@pytest.mark.parametrize("count", [1, FEW_ROWS, MAX_ROWS_PER_TURN - 1])
def test_a_reader_that_reads_all_partitions_is_asked_once(count: int) -> None:
    reader = Script(count, 2)
    assert read(reader, 2, reads_all=True) == ([count], False)
    assert reader.left == [2]


def test_a_full_turn_says_that_there_is_more() -> None:
    assert read(Script(MAX_ROWS_PER_TURN + 1), 1, reads_all=True) == ([MAX_ROWS_PER_TURN], True)


class Told(Script):
    """Tells when rows come."""

    fd = 7


class Readers(ReaderFactory):
    def __init__(self, reader: Script) -> None:
        self.reader = reader

    def open(self, partitions: Positions) -> Script:
        del partitions
        return self.reader


def opened(readers: tuple[Script, ...]) -> TaskSources:
    schema = pa.schema([("n", pa.int64())])
    sources = tuple(SourcePlan(Readers(each), schema, ()) for each in readers)
    plan = QueryPlan(sources, (), (), None, schema, 1)  # type: ignore[arg-type]
    mine = [ReaderPlan(number, number, "0", "0") for number in range(len(readers))]
    return TaskSources(plan, mine)


@pytest.mark.parametrize(
    ("readers", "expected"), [((Told(), Told()), (7, 7)), ((Told(), Script()), None), ((), ())]
)
def test_a_task_is_woken_only_if_all_its_sources_tell_when_rows_come(
    readers: tuple[Script, ...], expected: tuple[int, ...] | None
) -> None:
    assert opened(readers).descriptors == expected


class Waiting(Script):
    """Waits for rows in the calling thread."""

    def wait(self, seconds: float) -> bool:
        return seconds > 0


@pytest.mark.parametrize(
    ("readers", "expected"),
    [((Waiting(),), True), ((Waiting(), Waiting()), False), ((Script(),), False), ((), False)],
)
def test_a_task_waits_in_its_source_only_if_it_has_no_other(
    readers: tuple[Script, ...], expected: bool
) -> None:
    assert opened(readers).wait(1.0) is expected


class Mixed(Script):
    """A reader of two partitions, whose rows come together."""

    def __init__(self) -> None:
        super().__init__()
        self.last_read: tuple[str, ...] = ()

    def waiting(self) -> Positions:
        return {"a": "9", "b": ""}


STAMP = pa.timestamp("us", tz="UTC")


def times(*at_ms: int) -> pa.RecordBatch:
    stamps = pa.array([at * 1000 for at in at_ms], STAMP)
    return pa.RecordBatch.from_arrays([stamps], names=["at"])


def noted(reads: list[tuple[tuple[str, ...], pa.RecordBatch]], dropped: int = 0) -> OpenSource:
    """A source after these reads, of which the operators have dropped so many rows."""
    chain, reader = Chain([ObserveEventTimeSpec(0, "at")]), Mixed()
    source = OpenSource(reader, {"a": 4, "b": 5}, [(chain, Target(0))], None)
    source.begin(watermarks=2)
    for partitions, batch in reads:
        source._partitions_read.update(partitions)
        chain.run([batch], Moment(0, -1, 0, -1))
        source.note_event_times(batch.num_rows + dropped)
    return source


def highs(source: OpenSource) -> dict[int, tuple[int, ...]]:
    return {each.reader: each.highs for each in source.waits()}


def test_a_partition_that_is_read_alone_has_reached_its_highest_event_time() -> None:
    source = noted([(("a",), times(300, 500, 400)), (("b",), times(70))])
    assert highs(source) == {4: (500, HOLDS_NOTHING), 5: (70, HOLDS_NOTHING)}
    assert [each.end for each in source.waits()] == ["9", ""]


def test_partitions_that_are_read_together_have_reached_the_lowest_of_them() -> None:
    source = noted([(("a", "b"), times(300, 80, 400)), (("a",), times(450))])
    assert highs(source) == {4: (450, HOLDS_NOTHING), 5: (80, HOLDS_NOTHING)}


def test_nothing_is_known_of_partitions_whose_rows_were_dropped_on_the_way() -> None:
    together = (("a", "b"), times(300, 80))
    assert highs(noted([together], dropped=1)) == {4: (-1, HOLDS_NOTHING), 5: (-1, HOLDS_NOTHING)}
    assert highs(noted([(("a",), times(300))], dropped=1))[4] == (300, HOLDS_NOTHING)


def test_a_branch_without_rows_does_not_hold_the_watermark_that_it_shares() -> None:
    chains = [Chain([ObserveEventTimeSpec(0, "at")]) for _ in range(2)]
    branches = [(chain, Target(0)) for chain in chains]
    source = OpenSource(Mixed(), {"a": 4, "b": 5}, branches, None)
    source.begin(watermarks=1)
    reached = []
    for rows in ((times(300), times()), (times(500), times(400))):
        source._partitions_read.add("a")
        for chain, batch in zip(chains, rows, strict=True):
            chain.run([batch], Moment(0, -1, 0, -1))
        source.note_event_times(2)
        reached.append(highs(source)[4])
    assert reached == [(300,), (400,)]


@pytest.mark.parametrize(
    ("idle_seconds", "pause"), [(0.0, 0.001), (0.9, 0.001), (1.1, 0.004), (1e9, 0.004)]
)
def test_a_task_reads_every_millisecond_until_it_had_no_rows_for_a_second(
    idle_seconds: float, pause: float
) -> None:
    assert turn_seconds(idle_seconds) == pause


@given(st.lists(st.floats(0.0, 0.01), max_size=40))
@example([0.0] * 40)
def test_woken_reads_are_a_millisecond_apart_on_average_and_some_come_early(
    gaps: list[float],
) -> None:
    """Rows come after these pauses, each counted from the read before."""
    now = earliest = 100.0
    reads = []
    for gap in gaps:
        due = now + gap
        now = max(due, earliest)
        assert now - due <= TURN_SECONDS + 1e-6
        reads.append(now)
        earliest = next_woken_read(earliest, now)
        assert earliest <= now + TURN_SECONDS + 1e-6
    for first in range(len(reads)):
        for last in range(first, len(reads)):
            most = (reads[last] - reads[first]) / TURN_SECONDS + EARLY_TURNS + 1
            assert last - first <= most + 1e-6


def test_rows_that_come_singly_do_not_wait() -> None:
    earliest, times = 0.0, [100.0, 100.0002, 100.003, 100.0031, 100.006, 100.0061]
    for now, following in pairwise(times):
        earliest = next_woken_read(earliest, now)
        assert earliest <= following


def test_a_turn_says_whether_rows_were_read_or_came_from_other_tasks() -> None:
    world = totals(2, rows=3)
    reader, other = world.cores
    assert not reader.turn(0).had_rows
    out = reader.turn(0, (), [start(FIRST)])
    assert out.had_rows
    assert not reader.turn(0).had_rows
    frames = [frame for target, frame in out.frames if target == 1]
    received = other.turn(0, frames, [start(FIRST)], read=False)
    assert (len(frames) > 0, received.had_rows) == (True, True)
    assert not other.turn(0, read=False).had_rows


def test_a_task_with_state_never_waits_in_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must notice rows of other tasks, and timers."""
    monkeypatch.setattr(TaskSources, "wait", lambda *_: True)
    assert not totals(2, rows=3).cores[0].wait(1.0)
