"""What every source keeps, whatever it reads."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.sources import KAFKA_WORLDS, WORLDS, World, read_some, read_to

from epochal.connectors.contract import Positions, Source


@pytest.fixture(params=sorted([*WORLDS, *KAFKA_WORLDS]))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param in KAFKA_WORLDS:
        return KAFKA_WORLDS[request.param](tmp_path, request.getfixturevalue("broker"))
    return WORLDS[request.param](tmp_path)


@pytest.fixture
def source(world: World) -> Iterator[Source]:
    with closing(world.open()) as opened:
        world.feed(opened)
        world.feed(opened)
        yield opened


def all_rows(world: World, source: Source, start: Positions) -> list[object]:
    with closing(source.readers.open(start)) as reader:
        return sorted(read_to(reader, world.end(source)))


def test_reads_every_row_once_however_partitions_are_divided(world: World, source: Source) -> None:
    start = source.initial()
    halves = [{p: start[p]} for p in start]
    apart: list[object] = []
    for half in halves:
        with closing(source.readers.open(half)) as reader:
            apart.extend(read_to(reader, world.end(source), max_rows=3))
    together = all_rows(world, source, start)
    assert sorted(apart, key=repr) == sorted(together, key=repr)
    assert len(set(together)) == len(together) > 10


def test_goes_on_at_a_position_with_exactly_the_rows_after_it(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        read_some(reader, 8, max_rows=3)
        middle = dict(reader.positions())
        after = sorted(read_to(reader, world.end(source), max_rows=5))
    assert all_rows(world, source, middle) == after


def test_goes_on_after_the_driver_was_replaced(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        before = read_some(reader, 8, max_rows=3)
        middle = dict(reader.positions())
    source.close()
    with closing(world.open()) as second:
        world.feed(second)
        everything = all_rows(world, second, second.initial())
        assert sorted(before + all_rows(world, second, middle)) == everything


def test_reads_to_its_limits_and_no_further(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        before = read_some(reader, 5, max_rows=2)
        limits = source.boundary(reader.positions())
        reader.limit(limits)
        world.feed(source)
        before += read_to(reader, limits, max_rows=4)
        assert [reader.read(10) for _ in range(5)] == [None] * 5
        assert dict(reader.positions()) == dict(limits)
    everything = all_rows(world, source, source.initial())
    assert sorted(before + all_rows(world, source, limits)) == everything


def test_reads_on_from_one_limit_to_the_next(world: World, source: Source) -> None:
    """However many rows it has taken from the source before it was told to read on."""
    with closing(source.readers.open(source.initial())) as ahead:
        limits = [dict(ahead.positions())]
        for _ in range(4):
            read_some(ahead, 2, max_rows=2)
            limits.append(dict(ahead.positions()))
    limits.append(dict(world.end(source)))
    got: list[object] = []
    with closing(source.readers.open(source.initial())) as reader:
        for limit in limits:
            reader.limit(limit)
            got += read_to(reader, limit, max_rows=1_000)
            assert reader.read(10) is None
            assert dict(reader.positions()) == limit
    everything = all_rows(world, source, source.initial())
    assert sorted(got, key=repr) == sorted(everything, key=repr)


def test_a_limit_may_be_any_position_that_a_reader_can_reach(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        for _ in range(5):
            read_some(reader, 3, max_rows=3)
            middle = dict(reader.positions())
            with closing(source.readers.open(source.initial())) as second:
                second.limit(middle)
                before = read_to(second, middle, max_rows=4)
                assert second.read(10) is None
            everything = all_rows(world, source, source.initial())
            assert sorted(before + all_rows(world, source, middle)) == everything


def test_a_boundary_is_what_the_logged_offset_gives_back(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        for _ in range(6):
            read_some(reader, 1, max_rows=2)
            boundary = source.boundary(reader.positions())
            assert source.resume(source.offset(boundary)) == boundary
            assert source.boundary(boundary) == boundary


def test_the_logged_offset_of_any_position_skips_no_row(world: World, source: Source) -> None:
    with closing(source.readers.open(source.initial())) as reader:
        for _ in range(4):
            read_some(reader, 2, max_rows=2)
            middle = dict(reader.positions())
            logged = source.resume(source.offset(middle))
            assert set(all_rows(world, source, middle)) <= set(all_rows(world, source, logged))


def test_the_start_is_a_boundary(source: Source) -> None:
    start = source.initial()
    assert source.boundary(start) == start
    assert source.resume(source.offset(start)) == start


def test_says_none_when_there_is_nothing(world: World, source: Source) -> None:
    with closing(source.readers.open(world.end(source))) as reader:
        assert [reader.read(10) for _ in range(5)] == [None] * 5
        assert dict(reader.positions()) == dict(world.end(source))
        world.feed(source)
        assert read_to(reader, world.end(source))


def test_lag_is_gone_once_all_is_read(world: World, source: Source) -> None:
    latest = world.end(source)
    assert source.lag(source.initial(), latest) > 0
    assert source.lag(latest, latest) == 0


def test_knows_no_new_partitions_when_all_are_known(source: Source) -> None:
    assert source.discover(source.initial()) == {}


def test_factories_travel_and_schemas_hold(world: World, source: Source) -> None:
    factory = pickle.loads(pickle.dumps(source.readers))
    with closing(factory.open(source.initial())) as reader:
        batch = None
        while batch is None:
            batch = reader.read(10)
        assert batch.schema.equals(source.schema)


def test_acknowledging_twice_or_never_changes_nothing(world: World, source: Source) -> None:
    start = source.initial()
    expected = all_rows(world, source, start)
    source.acknowledge(3, world.end(source))
    source.acknowledge(3, world.end(source))
    assert all_rows(world, source, start) == expected
