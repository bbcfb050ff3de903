"""What every sink keeps, wherever it writes; and what those that are exactly once add to it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.contract.sinks import (
    DELTA_S3,
    EXACTLY_ONCE,
    KAFKA,
    POSTGRES,
    WORDS,
    WORLDS,
    DeltaWorld,
    KafkaWorld,
    PostgresWorld,
    World,
    written,
)
from tests.rigs.postgres import Postgres
from tests.rigs.s3 import S3

from epochal.connectors.contract import Sink, SinkWriter, WriterContext
from epochal.errors import StorageError
from epochal.testing.kafka import Kafka


def made(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param in KAFKA:
        broker: Kafka = request.getfixturevalue("broker")
        return KafkaWorld(tmp_path, broker.bootstrap_servers, KAFKA[request.param])
    if request.param in POSTGRES:
        server: Postgres = request.getfixturevalue("postgres")
        return PostgresWorld(tmp_path, server, POSTGRES[request.param])
    if request.param == DELTA_S3:
        s3: S3 = request.getfixturevalue("s3")
        return DeltaWorld(tmp_path, f"s3a://{s3.bucket}/{uuid4()}/table")
    return WORLDS[request.param](tmp_path)


@pytest.fixture(params=[*sorted(WORLDS), *KAFKA, *POSTGRES, DELTA_S3])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return made(request, tmp_path)


@pytest.fixture(params=EXACTLY_ONCE)
def exact(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return made(request, tmp_path)


@contextmanager
def started(world: World, attempt: int = 1) -> Iterator[Sink]:
    """A sink of this attempt."""
    with closing(world.open()) as sink:
        sink.fence(attempt)
        yield sink


def opened(sink: Sink, task: int = 0, attempt: int = 1) -> SinkWriter:
    factory = pickle.loads(pickle.dumps(sink.writers))
    writer: SinkWriter = factory.open(WriterContext(task, attempt, "run", WORDS))
    return writer


def words(*found: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(found, pa.string())], schema=WORDS)


def messages(
    sink: Sink, epoch: int, per_task: Sequence[Sequence[str]], attempt: int = 1
) -> list[bytes]:
    """What tasks report that wrote these words in one epoch."""
    tasks = [[{"value": word} for word in found] for found in per_task]
    return written(sink, epoch, tasks, attempt=attempt)


def test_committed_rows_are_seen(world: World) -> None:
    with started(world) as sink:
        sink.commit(0, messages(sink, 0, [["w1", "w2"], ["w3"]]))
        sink.commit(1, messages(sink, 1, [["w4"], []]))
        assert world.visible() == ["w1", "w2", "w3", "w4"]


def test_rows_after_a_cut_belong_to_the_next_epoch(world: World) -> None:
    with started(world) as sink:
        with closing(opened(sink)) as writer:
            writer.write(words("w1"))
            first = writer.cut(0)
            writer.write(words("w2"))
            second = writer.cut(1)
            writer.write(words("w3"))
            prepared = [first(), second()]
        sink.commit(0, prepared[:1])
        if sink.exactly_once:
            assert world.visible() == ["w1"]
        sink.commit(1, prepared[1:])
        assert set(world.visible()) >= {"w1", "w2"}
        assert not sink.exactly_once or world.visible() == ["w1", "w2"]


def test_epochs_without_rows_are_committed_too(world: World) -> None:
    with started(world) as sink:
        for epoch in range(5):
            sink.commit(epoch, messages(sink, epoch, [[], []]))
        assert world.visible() == []


def test_nothing_is_seen_before_the_commit(exact: World) -> None:
    with started(exact) as sink:
        assert sink.exactly_once
        sink.commit(0, messages(sink, 0, [["w0"]]))
        prepared = messages(sink, 1, [["w1"], ["w2"]])
        assert exact.visible() == ["w0"]
        sink.commit(1, prepared)
        assert exact.visible() == ["w0", "w1", "w2"]


def test_a_commit_may_be_repeated(exact: World) -> None:
    with started(exact) as sink:
        for epoch in range(8):
            prepared = messages(sink, epoch, [[f"w{epoch}"], []])
            sink.commit(epoch, prepared)
            sink.commit(epoch, prepared)
        assert exact.visible() == [f"w{epoch}" for epoch in range(8)]


def test_a_decided_epoch_is_finished_by_the_next_run(exact: World) -> None:
    with started(exact) as sink:
        sink.commit(0, messages(sink, 0, [["w0"]]))
        decided = messages(sink, 1, [["w1"], ["w2"]])
    with started(exact, 2) as sink:
        assert [sink.decided(epoch) for epoch in (0, 1)] == [True, False]
        sink.commit(1, decided)
        sink.commit(1, decided)
        assert sink.decided(1)
        sink.commit(2, messages(sink, 2, [["w3"]], attempt=2))
        assert exact.visible() == ["w0", "w1", "w2", "w3"]


def test_what_an_earlier_attempt_left_is_never_seen(exact: World) -> None:
    with started(exact) as sink:
        sink.commit(0, messages(sink, 0, [["w0"]]))
        messages(sink, 1, [["left"], ["over"]])
    with started(exact, 2) as sink:
        for epoch in range(1, 5):
            with suppress(StorageError):  # the sweep of leftovers may remove its file at any time
                messages(sink, epoch, [["zombie"]], attempt=1)
            sink.commit(epoch, messages(sink, epoch, [[f"w{epoch}"]], attempt=2))
        assert exact.visible() == ["w0", "w1", "w2", "w3", "w4"]


def test_a_writer_that_leaves_early_shows_nothing(exact: World) -> None:
    with started(exact) as sink:
        writer = opened(sink)
        writer.write(words("w1"))
        writer.cut(0)
        writer.close()
        assert exact.visible() == []
