"""State stores against a dictionary per version, while processes race, crash and are unloaded.

Up to three processes hold providers of one store over one disk. The seed picks who opens which
version, what changes, who commits, prepares, publishes, aborts, reads or maintains, after how many
file operations a process dies or an operation fails, and when a provider is closed in the middle of
its own maintenance. After every step the disk must hold, for each version still retained, exactly
what the last commit that returned put there; a commit cut short may have happened or not, but
nothing in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.unit.state.stores import KEY, VALUE

from epochal.errors import EpochalError, StateLoadError
from epochal.state import versions
from epochal.state.conf import StateStoreConf
from epochal.state.ids import StateStoreId
from epochal.state.prepared import PreparedVersion
from epochal.state.provider import HDFSBackedStateStoreProvider
from epochal.state.store import ReadStateStore, StateStore
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles

STEPS = 100
SEEDS = 100
CHANGING = ("create", "replace", "delete", "delete_tree")

Content = dict[tuple[str, int], int]


class TickingClock:
    """Every look at it is a millisecond later, so that no two files are of the same time."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


@dataclass
class Process:
    """A provider and what is about to happen to it."""

    provider: HDFSBackedStateStoreProvider
    trouble: Trouble


class Trouble:
    """Lets some file operations pass, then crashes, fails or closes the provider."""

    def __init__(self) -> None:
        self.left = -1
        self.strike: Callable[[], None] = lambda: None

    def before(self, operation: str, path: str) -> None:
        del path
        if operation in CHANGING and self.left >= 0:
            self.left -= 1
            if self.left < 0:
                self.strike()


@dataclass
class Handle:
    """An open store, what it was opened on, and what it should hold by now."""

    process: Process
    store: StateStore
    base: object
    content: Content


@dataclass
class World:
    rng: random.Random
    disk: MemoryFiles = field(default_factory=lambda: MemoryFiles(clock=TickingClock()))
    truth: dict[int, tuple[object, Content]] = field(default_factory=lambda: {0: (None, {})})
    processes: list[Process] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)
    retain: int = 2
    min_deltas: int = 3
    row_checksums: bool = False

    @property
    def latest(self) -> int:
        return max(self.truth)

    def start(self, trouble: Trouble | None = None) -> Process:
        trouble = trouble or Trouble()
        conf = StateStoreConf(
            min_deltas_for_snapshot=self.min_deltas,
            min_versions_to_retain=self.retain,
            max_versions_to_retain_in_memory=self.rng.choice([0, 1, 2, 2, 3]),
            row_checksum_enabled=self.row_checksums,
        )
        files = FaultyFiles(self.disk, trouble.before)
        provider = HDFSBackedStateStoreProvider(
            StateStoreId("state", 0, 0), KEY, VALUE, conf, files=files
        )
        return Process(provider, trouble)

    def read(self, version: int) -> Content | None:
        """What a process that knows nothing finds on disk."""
        try:
            return content(self.start().provider.get_read_store(version))
        except StateLoadError as error:
            if not error.condition.endswith("CANNOT_READ_DELTA_FILE_NOT_EXISTS"):
                raise
            return None

    def settle(self, version: int, *allowed: Content | None) -> None:
        """A step on `version` was cut short: take what is on disk, if it may be there."""
        found = self.read(version)
        assert found in allowed
        if found is None:
            self.truth.pop(version, None)
        elif version not in self.truth or self.truth[version][1] != found:
            self.truth[version] = (object(), found)

    def check(self) -> None:
        for version in range(max(0, self.latest - self.retain), self.latest + 1):
            assert self.read(version) == self.truth[version][1], version


def content(store: ReadStateStore) -> Content:
    found = {(key[0], key[1]): value[0] for key, value in store.iterator()}
    assert len(store) == len(found)
    return found


def replace_process(world: World, process: Process) -> None:
    world.handles = [handle for handle in world.handles if handle.process is not process]
    world.processes[world.processes.index(process)] = world.start()


def arm(world: World, process: Process) -> None:
    """Decide what, if anything, goes wrong in the next step of the process."""

    def crash() -> None:
        raise Crash

    def fail() -> None:
        raise OSError("the disk is full")

    kind = world.rng.random()
    process.trouble.left = world.rng.randrange(6) if kind < 0.45 else -1
    process.trouble.strike = (
        crash if kind < 0.25 else fail if kind < 0.35 else process.provider.close
    )


def open_store(world: World, process: Process) -> None:
    version = max(0, world.latest - world.rng.choice([0, 0, 0, 1]))
    store = process.provider.get_store(version)
    token, expected = world.truth[version]
    assert content(store) == expected
    world.handles.append(Handle(process, store, token, dict(expected)))


def change(world: World, handle: Handle) -> None:
    for _ in range(world.rng.randrange(1, 6)):
        key = (world.rng.choice("abc"), world.rng.randrange(4))
        if world.rng.random() < 0.65:
            value = world.rng.randrange(1000)
            handle.store.put(key, (value,))
            handle.content[key] = value
        else:
            handle.store.remove(key)
            handle.content.pop(key, None)
    assert content(handle.store) == handle.content


def may_commit(world: World, handle: Handle) -> bool:
    """Only the newest version is ever made, or made again, and on top of what it was opened on."""
    version = handle.store.version
    return version + 1 >= world.latest and world.truth[version][0] is handle.base


def commit(world: World, handle: Handle) -> None:
    version = handle.store.version + 1
    before = world.truth.get(version, (None, None))[1]
    try:
        handle.store.commit()
    except (EpochalError, Crash) as error:
        world.settle(version, before, handle.content)
        if isinstance(error, Crash):
            raise
    else:
        world.truth[version] = (object(), handle.content)


def prepare(world: World, handle: Handle) -> None:
    """Prepare, then decide or not; once decided it must come to be, whoever publishes it."""
    version = handle.store.version + 1
    before = world.truth.get(version, (None, None))[1]
    attempt = str(world.rng.randrange(1000))
    crashed: Crash | None = None
    prepared: PreparedVersion | None = None
    try:
        prepared = handle.store.commit_prepared(attempt)
    except EpochalError:
        pass
    except Crash as error:
        crashed = error
    assert world.read(version) == before
    if prepared is None or world.rng.random() < 0.3:
        world.start().provider.discard()
    else:
        try:
            handle.process.provider.publish(prepared)
        except (EpochalError, OSError, Crash) as error:
            world.start().provider.publish(prepared)
            crashed = error if isinstance(error, Crash) else None
        world.truth[version] = (object(), handle.content)
    if crashed is not None:
        raise crashed


def maintain(world: World, process: Process) -> None:
    try:
        process.provider.do_maintenance()
    except OSError as error:
        if "the disk is full" not in str(error):
            raise


def read_one(world: World, process: Process) -> None:
    version = world.rng.randrange(max(0, world.latest - world.retain), world.latest + 1)
    assert content(process.provider.get_read_store(version)) == world.truth[version][1]


def step(world: World) -> None:
    process = world.rng.choice(world.processes)
    mine = [handle for handle in world.handles if handle.process is process]
    handle = world.rng.choice(mine) if mine else None
    action = world.rng.random()
    arm(world, process)
    try:
        if handle is None:
            if action < 0.6:
                open_store(world, process)
            elif action < 0.8:
                maintain(world, process)
            else:
                read_one(world, process)
        elif action < 0.4:
            change(world, handle)
        else:
            world.handles.remove(handle)
            if action < 0.5 or not may_commit(world, handle):
                handle.store.abort()
            elif action < 0.85:
                commit(world, handle)
            else:
                prepare(world, handle)
    except Crash:
        replace_process(world, process)
    process.trouble.left = -1
    if process.provider.closed:
        replace_process(world, process)


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_every_retained_version_holds_what_was_committed_last(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(versions, "FLATTEN_ABOVE_ROWS", rng.choice([0, 3, 1024]))
    world = World(
        rng,
        retain=rng.choice([1, 2, 4]),
        min_deltas=rng.choice([1, 3, 5]),
        row_checksums=rng.random() < 0.2,
    )
    world.processes = [world.start() for _ in range(rng.choice([1, 2, 3]))]
    for _ in range(STEPS):
        step(world)
        world.check()
    assert world.latest > 3
