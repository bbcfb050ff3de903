"""Providers of a process: claimed, maintained in turn, given up when another holds the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.state.stores import KEY, VALUE, content_at, files_in, put, update_to
from tests.waiting import eventually

from epochal.errors import RpcTimeoutError
from epochal.files.local import LocalFiles
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.loaded import LoadedProviders
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.store_coordinator import (
    CoordinatorReply,
    CoordinatorRequest,
    StateStoreCoordinatorEndpoint,
    StateStoreCoordinatorRef,
    VerifyIfInstanceActive,
    WorkerLocation,
)
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles

CONF = StateStoreConf(min_deltas_for_snapshot=3, min_versions_to_retain=2)


class World:
    """A checkpoint, a coordinator, and the processes made by a test."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.endpoint = StateStoreCoordinatorEndpoint(ManualClock(), CONF)
        self.processes: list[LoadedProviders] = []

    def process(self, executor: str, worker: str = "", **options: float) -> LoadedProviders:
        here = WorkerLocation("h", executor, worker)
        process = LoadedProviders(here, self.endpoint.ref(), interval_seconds=3600, **options)
        self.processes.append(process)
        return process

    def files(self, provider_id: StateStoreProviderId) -> LocalFiles:
        return LocalFiles(self.where / provider_id.store_id.path, durable=False)

    def load(self, provider_id: StateStoreProviderId) -> HDFSBackedStateStoreProvider:
        return HDFSBackedStateStoreProvider(
            provider_id.store_id,
            KEY,
            VALUE,
            CONF,
            files=self.files(provider_id),
            query_run_id=provider_id.query_run_id,
            coordinator=self.endpoint.ref(),
        )

    def get(
        self, process: LoadedProviders, provider_id: StateStoreProviderId
    ) -> StateStoreProvider:
        return process.get(provider_id, lambda: self.load(provider_id))[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for process in world.processes:
        process.stop()


def store(partition: int = 0, run: str = "run-1") -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId("state", 0, partition), run)


def test_a_provider_is_loaded_once_and_reported_to_the_coordinator(world: World) -> None:
    process = world.process("1")
    first = world.get(process, store())
    assert world.get(process, store()) is first
    assert process.is_loaded(store())
    assert world.endpoint.ref().get_location(store()) == "executor_h_1"


def test_a_store_of_a_run_that_ended_is_maintained_and_unloaded(world: World) -> None:
    process = world.process("1")
    provider = world.get(process, store())
    update_to(provider, 0, 4)
    world.endpoint.ref().deactivate_instances("run-1")
    process.maintain()
    assert not process.is_loaded(store())
    assert "4.snapshot" in files_in(world.where / "0" / "0")
    assert provider.cached_versions() == []


def test_a_store_another_executor_took_is_unloaded_by_maintenance(world: World) -> None:
    first, second = world.process("1"), world.process("2")
    world.get(first, store())
    first.maintain()
    assert first.is_loaded(store())
    world.get(second, store())
    first.maintain()
    assert not first.is_loaded(store())
    second.maintain()
    assert second.is_loaded(store())


def test_a_store_another_executor_took_is_unloaded_when_a_different_one_is_opened(
    world: World,
) -> None:
    first, second = world.process("1"), world.process("2")
    world.get(first, store(0))
    world.get(second, store(0))
    world.get(first, store(1))
    assert not first.is_loaded(store(0))
    assert first.is_loaded(store(1))


def test_what_another_process_wrote_is_read_when_the_store_comes_back(world: World) -> None:
    """Two workers of one executor take turns; the cache of the first is of another history."""
    first, second = world.process("1", "71"), world.process("1", "72")
    update_to(world.get(first, store()), 0, 2)
    put(world.get(second, store()), 1, ("b", 0, 99))
    found = world.get(first, store())
    assert found.cached_versions() == []
    assert content_at(found, 2) == {("a", 0): 1, ("b", 0): 99}


def test_the_cache_is_kept_while_nobody_else_holds_the_store(world: World) -> None:
    process = world.process("1")
    provider = world.get(process, store())
    update_to(provider, 0, 2)
    assert world.get(process, store()).cached_versions() == [2, 1]


def test_a_failing_provider_is_unloaded_and_the_others_are_not(world: World) -> None:
    process = world.process("1")

    def refuse(operation: str, path: str) -> None:
        if operation == "replace" and path.endswith(".snapshot"):
            raise OSError("disk full")

    def load_failing() -> HDFSBackedStateStoreProvider:
        return HDFSBackedStateStoreProvider(
            store(0).store_id,
            KEY,
            VALUE,
            CONF,
            files=FaultyFiles(world.files(store(0)), refuse),
            query_run_id="run-1",
        )

    failing, _ = process.get(store(0), load_failing)
    healthy = world.get(process, store(1))
    update_to(failing, 0, 4)
    update_to(healthy, 0, 4)
    process.maintain()
    assert not process.is_loaded(store(0))
    assert process.is_loaded(store(1))
    assert "4.snapshot" in files_in(world.where / "0" / "1")
    assert content_at(world.load(store(0)), 4) == {("a", 0): 4}


def test_stopping_ends_the_thread_and_unloads_everything(world: World) -> None:
    before = threading.active_count()
    process = world.process("1")
    provider = world.get(process, store())
    update_to(provider, 0, 4)
    assert threading.active_count() == before + 1
    process.stop()
    process.stop()
    assert threading.active_count() == before
    assert not process.is_loaded(store())
    assert "4.snapshot" in files_in(world.where / "0" / "0")


def test_the_thread_maintains_by_itself(world: World) -> None:
    process = LoadedProviders(WorkerLocation("h", "1"), world.endpoint.ref(), interval_seconds=0.01)
    world.processes.append(process)
    provider = world.get(process, store())
    update_to(provider, 0, 4)
    eventually(lambda: "4.snapshot" in files_in(world.where / "0" / "0"))


def test_stores_given_up_are_closed_without_waiting_for_the_interval(world: World) -> None:
    first, second = world.process("1"), world.process("2")
    taken = world.get(first, store(0))
    update_to(taken, 0, 4)
    world.get(second, store(0))
    world.get(first, store(1))
    eventually(lambda: taken.cached_versions() == [])
    eventually(lambda: "4.snapshot" in files_in(world.where / "0" / "0"))


def test_a_driver_that_does_not_answer_unloads_nothing(world: World) -> None:
    def ask(message: CoordinatorRequest) -> CoordinatorReply:
        if isinstance(message, VerifyIfInstanceActive):
            raise RpcTimeoutError("StateStoreCoordinator", "tcp://127.0.0.1:1", 10)
        return world.endpoint.ask(message)

    here = WorkerLocation("h", "1")
    process = LoadedProviders(here, StateStoreCoordinatorRef(ask), interval_seconds=3600)
    world.processes.append(process)
    provider = world.get(process, store())
    update_to(provider, 0, 4)
    process.maintain()
    assert process.is_loaded(store())
    assert "4.snapshot" in files_in(world.where / "0" / "0")
