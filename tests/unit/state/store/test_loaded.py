"""Providers of a process: claimed and given up; versions never see each other's changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.state.stores import KEY, VALUE, content_at, files_in, put, update_to
from tests.waiting import eventually

from epochal.errors import RpcTimeoutError
from epochal.files.local import LocalFiles
from epochal.state.store import versions
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
from epochal.state.store.versions import EMPTY, Draft, FrozenVersion, memory_bytes
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


def first_byte(keys: Sequence[bytes]) -> list[bytes]:
    return [key[:1] for key in keys]


def version(**rows: str) -> FrozenVersion:
    return FrozenVersion.of({key.encode(): value.encode() for key, value in rows.items()})


def test_a_draft_without_changes_freezes_into_its_parent() -> None:
    parent = version(a="1")
    assert parent.draft().freeze() is parent


def test_many_keys_are_read_in_their_order_with_none_for_missing_ones() -> None:
    draft = version(a="1", b="2").draft()
    assert draft.get_many([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    draft.put_many([b"x", b"b", b"x"], [b"7", b"8", b"9"])
    assert draft.get_many([b"b", b"x", b"a"]) == [b"8", b"9", b"1"]


def test_an_iterator_shows_the_store_as_it_was_when_it_was_made() -> None:
    draft = version(a="1", b="2").draft()
    draft.put(b"c", b"3")
    rows = draft.items()
    draft.put(b"d", b"4")
    draft.put(b"a", b"9")
    draft.remove(b"b")
    assert dict(rows) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_prefix_finds_its_rows_in_every_layer() -> None:
    draft = version(a1="1", a2="2", b1="3").draft()
    draft.put(b"a3", b"4")
    frozen = draft.freeze()
    draft = frozen.draft()
    draft.put(b"a4", b"5")
    draft.remove(b"a1")
    assert dict(draft.with_prefix(b"a", first_byte)) == {b"a2": b"2", b"a3": b"4", b"a4": b"5"}
    assert draft.with_prefix(b"z", first_byte) == []
    draft.put(b"a5", b"6")
    draft.put_many([b"a6", b"a2"], [b"7", b"8"])
    draft.remove(b"a3")
    assert dict(draft.with_prefix(b"a", first_byte)) == {
        b"a2": b"8",
        b"a4": b"5",
        b"a5": b"6",
        b"a6": b"7",
    }


def test_memory_counts_what_versions_share_once() -> None:
    first = FrozenVersion.of({f"{n:08d}".encode(): bytes(16) for n in range(1000)})
    draft = first.draft()
    draft.put(b"new", bytes(16))
    second = draft.freeze()
    alone = memory_bytes([second])
    assert alone > memory_bytes([first]) > 1000 * (8 + 16)
    assert memory_bytes([first, second]) < alone * 1.1
    assert memory_bytes([]) == 0


@pytest.mark.parametrize("seed", range(30), ids=lambda seed: f"seed{seed}")
def test_any_sequence_of_changes_equals_a_dictionary(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(versions, "FLATTEN_ABOVE_ROWS", rng.choice([0, 2, 5, 1024]))
    frozen: list[tuple[FrozenVersion, dict[bytes, bytes]]] = [(EMPTY, {})]
    for _ in range(40):
        start, rows = rng.choice(frozen)
        draft, model = Draft(start), dict(rows)
        for _ in range(rng.randrange(12)):
            key, value = rng.choice(b"abcdefgh").to_bytes(1, "big") + b"x", rng.randbytes(3)
            if rng.random() < 0.6:
                draft.put(key, value)
                model[key] = value
            else:
                assert draft.remove(key) is (model.pop(key, None) is not None)
            if rng.random() < 0.2:
                found = draft.with_prefix(key[:1], first_byte)
                assert dict(found) == {k: v for k, v in model.items() if k[:1] == key[:1]}
        assert dict(draft.items()) == model
        assert len(draft) == len(model)
        frozen.append((draft.freeze(), model))
    for version_found, model in frozen:
        assert dict(version_found.items()) == model
        assert len(version_found) == len(model)
        assert {key: version_found.get(key) for key in model} == model
        exact = FrozenVersion.of(dict(model)).row_bytes
        assert version_found.row_bytes == exact
