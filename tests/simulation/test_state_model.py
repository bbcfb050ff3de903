"""State stores against a dictionary per version, while processes race, crash and are unloaded.

Up to three processes hold providers of one store over one disk. Hypothesis picks who opens which
version, what changes, who commits, prepares, publishes, discards, aborts, reads, restarts or
maintains, after how many file operations a process dies or an operation fails, and when a provider
is closed in the middle of its own maintenance. After every step the disk must hold, for each
version still retained, exactly what the last commit that returned put there; a commit cut short may
have happened or not, but nothing in between. A failure is shrunk to the fewest steps that show it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.state.stores import KEY, VALUE

from epochal.errors import EpochalError, StateLoadError
from epochal.state.store import versions
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.store import ReadStateStore, StateStore
from epochal.state.store.store_files import PreparedVersion
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles

CHANGING = ("create", "replace", "delete", "delete_tree")

Content = dict[tuple[str, int], int]
Changes = list[tuple[tuple[str, int], int | None]]
Mishap = tuple[str, int]


class DiskFullError(OSError):
    """What a file operation fails with."""


class TickingClock:
    """Every look at it is a millisecond later, so that no two files are of the same time."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def uptime(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


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


@dataclass(eq=False)
class Process:
    """A provider and what is about to happen to it."""

    provider: HDFSBackedStateStoreProvider
    trouble: Trouble

    def arm(self, kind: str, after: int) -> None:
        """Decide what goes wrong in its next step, and before which file operation."""
        self.trouble.left = -1 if kind == "none" else after
        self.trouble.strike = {"crash": _crash, "fail": _fail}.get(kind, self.provider.close)


@dataclass(eq=False)
class Handle:
    """An open store, what it was opened on, and what it should hold by now."""

    process: Process
    store: StateStore
    base: object
    content: Content


@dataclass(frozen=True, slots=True)
class Pending:
    """A version that is prepared and not decided."""

    prepared: PreparedVersion
    content: Content
    by: Process
    token: object = field(default_factory=object)


def _crash() -> None:
    raise Crash


def _fail() -> None:
    raise DiskFullError


def content(store: ReadStateStore) -> Content:
    found = {(key[0], key[1]): value[0] for key, value in store.iterator()}
    assert len(store) == len(found)
    return found


NO_TROUBLE = ("none", 0)
WHO = st.integers(0, 2)
BACK = st.sampled_from([0, 0, 1])
TROUBLE = st.tuples(
    st.sampled_from(["none", "none", "none", "crash", "crash", "fail", "close"]), st.integers(0, 5)
)
CHANGES = st.lists(
    st.tuples(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3)),
        st.one_of(st.integers(0, 999), st.integers(0, 999), st.none()),
    ),
    min_size=1,
    max_size=5,
)


class StateStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryFiles(clock=TickingClock())
        self.truth: dict[int, tuple[object, Content]] = {0: (None, {})}
        self.pending: list[Pending] = []
        self.processes: list[Process] = []
        self.handles: list[Handle] = []
        self.attempts = 0
        self.retain = 2
        self.min_deltas = 3
        self.row_checksums = False
        self.repair = True
        self.checked: object = None
        self.flatten_above = versions.FLATTEN_ABOVE_ROWS

    @initialize(
        retain=st.sampled_from([2, 1, 4]),
        min_deltas=st.sampled_from([1, 3, 5]),
        row_checksums=st.sampled_from([False, False, False, True]),
        repair=st.booleans(),
        in_memory=st.lists(st.sampled_from([2, 3, 1, 0]), min_size=2, max_size=3),
        flatten_above=st.sampled_from([0, 3, 1024]),
        history=st.lists(CHANGES, max_size=8),
    )
    def begin(
        self,
        retain: int,
        min_deltas: int,
        row_checksums: bool,
        repair: bool,
        in_memory: list[int],
        flatten_above: int,
        history: list[Changes],
    ) -> None:
        versions.FLATTEN_ABOVE_ROWS = flatten_above
        self.retain, self.min_deltas, self.row_checksums = retain, min_deltas, row_checksums
        self.repair = repair
        self.processes = [self.start(count) for count in in_memory]
        self.run_batches(0, NO_TROUBLE, 0, history, maintains=True)

    def teardown(self) -> None:
        versions.FLATTEN_ABOVE_ROWS = self.flatten_above

    @rule(who=WHO, trouble=TROUBLE, back=BACK)
    def open(self, who: int, trouble: Mishap, back: int) -> None:
        self.act(who, trouble, lambda process: self.handles.append(self.opened(process, back)))

    @precondition(lambda self: not self.pending)
    @rule(
        who=WHO,
        trouble=TROUBLE,
        back=BACK,
        batches=st.lists(CHANGES, max_size=5),
        maintains=st.booleans(),
    )
    def run_batches(
        self, who: int, trouble: Mishap, back: int, batches: list[Changes], maintains: bool
    ) -> None:
        """What a query does: one version after the other, now and then the last one again."""
        for number, changes in enumerate(batches):
            handle = self.opened(self.processes[who % len(self.processes)], 0 if number else back)
            self.handles.append(handle)
            self.alter(handle, changes)
            last = number == len(batches) - 1
            self.commit(len(self.handles) - 1, trouble if last else NO_TROUBLE)
        if maintains:
            self.maintain(who, NO_TROUBLE)

    @rule(who=WHO, trouble=TROUBLE, back=BACK, changes=CHANGES)
    def run_epoch(self, who: int, trouble: Mishap, back: int, changes: Changes) -> None:
        """What an engine does: prepare the next version, decide later."""
        process = self.processes[who % len(self.processes)]
        self.handles.append(self.tip(process) if self.pending else self.opened(process, back))
        self.alter(self.handles[-1], changes)
        self.prepare(len(self.handles) - 1, trouble)

    @precondition(lambda self: bool(self.pending))
    @rule(who=WHO, trouble=TROUBLE)
    def open_what_is_not_decided(self, who: int, trouble: Mishap) -> None:
        self.act(who, trouble, lambda process: self.handles.append(self.tip(process)))

    @precondition(lambda self: bool(self.handles))
    @rule(which=WHO, changes=CHANGES)
    def change(self, which: int, changes: Changes) -> None:
        self.alter(self.handles[which % len(self.handles)], changes)

    @precondition(lambda self: bool(self.handles))
    @rule(which=WHO)
    def abort(self, which: int) -> None:
        self.handles.pop(which % len(self.handles)).store.abort()

    @precondition(lambda self: bool(self.handles))
    @rule(which=WHO, trouble=TROUBLE)
    def commit(self, which: int, trouble: Mishap) -> None:
        """Only the newest version is ever made, or made again, and on top of what it was."""
        handle = self.handles.pop(which % len(self.handles))
        version = handle.store.version + 1
        if self.pending or not self.is_on_top(handle):
            handle.store.abort()
            return
        before = self.truth.get(version, (None, None))[1]

        def step(process: Process) -> None:
            try:
                handle.store.commit()
            except (EpochalError, Crash) as error:
                self.settle(version, before, handle.content)
                if isinstance(error, Crash):
                    raise
            else:
                self.truth[version] = (object(), handle.content)

        self.act(self.processes.index(handle.process), trouble, step)

    @precondition(lambda self: bool(self.handles))
    @rule(which=WHO, trouble=TROUBLE)
    def prepare(self, which: int, trouble: Mishap) -> None:
        """Whoever has been overtaken prepares too: nobody will ever decide for it."""
        handle = self.handles.pop(which % len(self.handles))
        self.attempts += 1

        def step(process: Process) -> None:
            try:
                prepared = handle.store.commit_prepared(str(self.attempts))
            except EpochalError:
                return
            if self.is_on_top(handle) and not process.provider.closed:
                self.pending.append(Pending(prepared, handle.content, process))

        self.act(self.processes.index(handle.process), trouble, step)

    @precondition(lambda self: bool(self.pending))
    @rule(who=WHO, trouble=TROUBLE)
    def decide(self, who: int, trouble: Mishap) -> None:
        """Once decided it must come to be, whoever publishes it."""
        pending = self.pending.pop(0)

        def step(process: Process) -> None:
            self.truth[pending.prepared.version] = (pending.token, pending.content)
            try:
                process.provider.publish(pending.prepared)
            except (EpochalError, OSError, Crash) as error:
                self.start().provider.publish(pending.prepared)
                if isinstance(error, Crash):
                    raise

        self.act(who, trouble, step)

    @precondition(lambda self: self.attempts > 0)
    @rule(who=WHO, trouble=TROUBLE, keep=st.booleans())
    def discard(self, who: int, trouble: Mishap, keep: bool) -> None:
        if not keep:
            self.pending = []

        def step(process: Process) -> None:
            with suppress(DiskFullError):
                process.provider.discard(tuple(pending.prepared for pending in self.pending))

        self.act(who, trouble, step)

    @rule(who=WHO, trouble=TROUBLE)
    def maintain(self, who: int, trouble: Mishap) -> None:
        def step(process: Process) -> None:
            with suppress(DiskFullError):
                process.provider.do_maintenance()

        self.act(who, trouble, step)

    @rule(who=WHO, back=WHO)
    def read(self, who: int, back: int) -> None:
        version = max(0, self.latest - min(back, self.retain))
        provider = self.processes[who % len(self.processes)].provider
        assert content(provider.get_read_store(version)) == self.truth[version][1]

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.replace(self.processes[who % len(self.processes)])

    @invariant()
    def every_retained_version_holds_what_was_committed_last(self) -> None:
        now = (dict(self.disk.tree), {version: token for version, (token, _) in self.truth.items()})
        if now != self.checked:
            fresh = self.start(in_memory=self.retain + 1)
            for version in range(max(0, self.latest - self.retain), self.latest + 1):
                assert self.on_disk(version, fresh) == self.truth[version][1], version
            self.checked = now

    @property
    def latest(self) -> int:
        return max(self.truth)

    def start(self, in_memory: int = 2) -> Process:
        trouble = Trouble()
        conf = StateStoreConf(
            min_deltas_for_snapshot=self.min_deltas,
            min_versions_to_retain=self.retain,
            max_versions_to_retain_in_memory=in_memory,
            row_checksum_enabled=self.row_checksums,
            auto_snapshot_repair_enabled=self.repair,
        )
        files = FaultyFiles(self.disk, trouble.before)
        provider = HDFSBackedStateStoreProvider(
            StateStoreId("state", 0, 0), KEY, VALUE, conf, files=files
        )
        return Process(provider, trouble)

    def act(self, who: int, trouble: Mishap, step: Callable[[Process], None]) -> None:
        """Let a process do something, and bury it if it died or was closed meanwhile."""
        process = self.processes[who % len(self.processes)]
        process.arm(*trouble)
        try:
            step(process)
        except Crash:
            self.replace(process)
        else:
            process.trouble.left = -1
            if process.provider.closed:
                self.replace(process)

    def opened(self, process: Process, back: int) -> Handle:
        """A store of the newest version, or of one before, open and as it should be."""
        version = max(0, self.latest - back)
        token, expected = self.truth[version]
        store = process.provider.get_store(version)
        assert content(store) == expected
        return Handle(process, store, token, dict(expected))

    def tip(self, process: Process) -> Handle:
        """The first undecided version can be opened anywhere, later ones where they were made."""
        tip = [p for n, p in enumerate(self.pending) if n == 0 or p.by is process][-1]
        store = process.provider.get_store(tip.prepared.version, from_prepared=tip.prepared)
        assert content(store) == tip.content
        return Handle(process, store, tip.token, dict(tip.content))

    def alter(self, handle: Handle, changes: Changes) -> None:
        for key, value in changes:
            if value is None:
                handle.store.remove(key)
                handle.content.pop(key, None)
            else:
                handle.store.put(key, (value,))
                handle.content[key] = value
        assert content(handle.store) == handle.content

    def replace(self, process: Process) -> None:
        self.handles = [handle for handle in self.handles if handle.process is not process]
        in_memory = process.provider.conf.max_versions_to_retain_in_memory
        self.processes[self.processes.index(process)] = self.start(in_memory)

    def on_disk(self, version: int, fresh: Process) -> Content | None:
        """What a process finds that has only read older versions."""
        try:
            return content(fresh.provider.get_read_store(version))
        except StateLoadError as error:
            if not error.condition.endswith("CANNOT_READ_DELTA_FILE_NOT_EXISTS"):
                raise
            return None

    def settle(self, version: int, *allowed: Content | None) -> None:
        """A step on `version` was cut short: take what is on disk, if it may be there."""
        found = self.on_disk(version, self.start())
        assert found in allowed
        if found is None:
            self.truth.pop(version, None)
        elif version not in self.truth or self.truth[version][1] != found:
            self.truth[version] = (object(), found)

    def is_on_top(self, handle: Handle) -> bool:
        """Whether it was opened on what its version holds now, and nothing is far beyond it."""
        if self.pending:
            return handle.base is self.pending[-1].token
        version = handle.store.version
        now = self.truth.get(version)
        return version + 1 >= self.latest and now is not None and now[0] is handle.base


StateStores.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestStateStores = StateStores.TestCase
