"""Every tool, cut off before each of its file operations, leaves what can be made whole.

Whole means: as before, or as after, byte for byte. Where it is neither, running the same command
again finishes it and `undo` takes it back; both are tried at every point, and so is a second crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.golden.library import Golden, unpack

from epochal.files import Files
from epochal.state.store.store_format import ROCKSDB
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after
from epochal.tools.edit.apply_edit import Conditions, apply, undo
from epochal.tools.edit.copy_checkpoint import plan_copy
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import NOTICE, Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.migrate_offsets import plan_migrate
from epochal.tools.edit.offset_targets import ShiftBy
from epochal.tools.edit.repair import plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey
from epochal.tools.edit_state.convert import plan_convert
from epochal.tools.edit_state.evolve import RenameColumn, plan_evolve
from epochal.tools.edit_state.mutate import Mutation, plan_mutations
from epochal.tools.edit_state.repartition import plan_repartition
from epochal.tools.inspect.edit_status import JournalState
from epochal.tools.switch.clone import CloneOptions, plan_clone
from epochal.tools.verify.findings import finding
from epochal.tools.verify.verify import verify

Bytes = dict[str, tuple[bytes, int]]

NOW_MS = 1_800_000_000_000
A_MINUTE = 60.0
CHANGING = ("create", "replace", "delete", "delete_tree")
PLACES = ("checkpoint", "new", "output", "empty")
"""What the command line names."""


@dataclass(slots=True)
class World:
    """A disk that survives, and the clock; processes come and go."""

    disk: Bytes
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    runs: int = 0

    def files(self, name: str, before: Callable[[str, str], None] | None = None) -> Files:
        inner = MemoryFiles(self.disk, prefix=name, clock=self.clock)
        return inner if before is None else FaultyFiles(inner, before, base=name)

    def conditions(self, before: Callable[[str, str], None] | None) -> Conditions:
        """A new process: another run id, and enough time for the old one's lease to end."""
        self.runs += 1
        self.clock.advance(A_MINUTE)
        return Conditions(
            run_id=f"run-{self.runs}",
            settle_seconds=0,
            clock=self.clock,
            places=[self.files(name, before) for name in PLACES],
        )

    def content(self) -> dict[str, bytes]:
        return {path: data for path, (data, _) in self.disk.items() if "/.epochal/" not in path}


@dataclass(frozen=True, slots=True)
class Tool:
    """A writing command on a golden checkpoint."""

    name: str
    case: str
    command: str
    plan: Callable[[Files, Files, Files], Plan]
    """From the checkpoint, its output and an empty place."""
    damage: Callable[[Files], None] = lambda files: None
    edits: str = "checkpoint"

    def __str__(self) -> str:
        return self.name

    def run(self, world: World, before: Callable[[str, str], None] | None = None) -> None:
        checkpoint, output, empty = (
            world.files(name, before) for name in ("checkpoint", "output", "empty")
        )
        edited = checkpoint if self.edits == "checkpoint" else empty
        apply(
            edited,
            self.command,
            lambda: self.plan(checkpoint, output, empty),
            world.conditions(before),
        )

    def undo(self, world: World, before: Callable[[str, str], None] | None = None) -> None:
        undo(world.files(self.edits, before), None, world.conditions(before))

    def start(self) -> World:
        world = World(dict(golden(self.case)))
        self.damage(world.files("checkpoint"))
        return world


@cache
def golden(case: str) -> Bytes:
    with TemporaryDirectory() as scratch:
        place = unpack(Golden("4.3.0", case), Path(scratch))
        return {
            f"{name}/{path.relative_to(place.base / name)}": (
                path.read_bytes(),
                path.stat().st_mtime_ns // 1_000_000,
            )
            for name in ("checkpoint", "output")
            for path in (place.base / name).rglob("*")
            if path.is_file()
        }


def damaged(files: Files) -> None:
    files.delete("metadata")
    files.create("offsets/.11.crc", b"crc\0\0\0\2\0")
    files.create("commits/007", files.read("commits/7"))
    files.create("state/0/0/abc.snapshot", b"stray")
    files.replace("offsets/10", b"v1\ntruncated")
    files.delete("commits/10")


def lose_state(files: Files) -> None:
    """A snapshot that its deltas replace, and a delta without which the query has to go back."""
    files.replace("state/0/0/8.snapshot", files.read("state/0/0/8.snapshot")[:-9])
    files.delete("state/0/1/10.delta")


DAMAGE = [
    finding("METADATA_MISSING", "metadata", ""),
    finding("CRC_ORPHAN", "offsets/.11.crc", ""),
    finding("LOG_NAME_NOT_CANONICAL", "commits/007", ""),
    finding("STATE_STRAY_SNAPSHOT", "state/0/0/abc.snapshot", ""),
    finding("LOG_ENTRY_UNREADABLE", "offsets/10", ""),
]
OPTIONS = RepairOptions(query_id="53b62e34-0476-452d-8313-c1786e091891")

TOOLS = [
    Tool("rewind", "windowed", "rewind", lambda at, _, __: plan_rewind(survey(at), 5)),
    Tool(
        "rewind-with-sink",
        "file_sink",
        "rewind",
        lambda at, output, _: plan_rewind(survey(at), 4, sink=survey_sink(output)),
    ),
    Tool(
        "set-offsets",
        "windowed",
        "set-offsets",
        lambda at, _, __: plan_set_offsets(survey(at), "0", ShiftBy(-2)),
    ),
    Tool(
        "set-offsets-with-sink",
        "file_sink",
        "set-offsets",
        lambda at, output, _: plan_set_offsets(
            survey(at), "0", ShiftBy(-1), sink=survey_sink(output)
        ),
    ),
    Tool(
        "set-offsets-rocksdb",
        "rocksdb_v2",
        "set-offsets",
        lambda at, _, __: plan_set_offsets(survey(at), "0", ShiftBy(0), new_id=lambda: "new-id"),
    ),
    Tool(
        "repair",
        "windowed",
        "repair",
        lambda at, _, __: plan_repair(survey(at), DAMAGE, OPTIONS).plan,
        damaged,
    ),
    Tool(
        "migrate-offsets",
        "several_sources",
        "migrate-offsets",
        lambda at, _, __: plan_migrate(survey(at), {0: "early", 1: "late", 2: "ticks"}),
    ),
    Tool(
        "copy",
        "windowed",
        "copy",
        lambda at, _, empty: plan_copy(survey(at), empty, {}),
        edits="empty",
    ),
    Tool(
        "clone",
        "windowed",
        "clone",
        lambda at, output, empty: plan_clone(
            survey(at),
            empty,
            CloneOptions(query_id=OPTIONS.query_id, at=8),
            output=output.at("clone"),
        ),
        edits="empty",
    ),
    Tool(
        "state-delete",
        "global",
        "state-delete",
        lambda at, _, __: plan_mutations(survey(at), [Mutation({}, None)]),
    ),
    Tool(
        "state-repartition",
        "dedup",
        "state-repartition",
        lambda at, _, __: plan_repartition(survey(at), 3),
    ),
    Tool(
        "state-repartition-with-sink",
        "file_sink_counts",
        "state-repartition",
        lambda at, output, _: plan_repartition(survey(at), 3, sink=survey_sink(output)),
    ),
    Tool(
        "state-convert",
        "global",
        "state-convert",
        lambda at, _, __: plan_convert(survey(at), ROCKSDB),
    ),
    Tool(
        "state-evolve",
        "global",
        "state-evolve",
        lambda at, _, __: plan_evolve(survey(at), [RenameColumn("sum", "total")]),
    ),
    Tool(
        "state-repair",
        "file_sink_counts",
        "state-repair",
        lambda at, output, _: (
            plan_repair(
                survey(at),
                verify(at).findings,
                replace(OPTIONS, may_go_back=True),
                sink=survey_sink(output),
                command="state-repair",
            ).plan
        ),
        lose_state,
    ),
]


def operations(act: Callable[[Callable[[str, str], None]], None]) -> int:
    """How many operations change something."""
    count = 0

    def before(operation: str, path: str) -> None:
        nonlocal count
        del path
        count += operation in CHANGING

    act(before)
    return count


def crashed(act: Callable[[Callable[[str, str], None]], None], point: int) -> bool:
    """Run until the crash; False if it came to its end before."""
    try:
        act(crash_after(point))
    except Crash:
        return True
    return False


def is_startable(world: World, tool: Tool) -> bool:
    raw = world.content().get(f"{tool.edits}/metadata", b"")
    return NOTICE.encode() not in raw and raw != b""


def without_crc(content: dict[str, bytes]) -> dict[str, bytes]:
    """The crc of `metadata` comes last of all; until then it is missing, which nobody minds."""
    return {path: data for path, data in content.items() if not path.endswith("/.metadata.crc")}


def crash_points(tool: Tool) -> Iterator[tuple[int, World]]:
    world = tool.start()
    total = operations(partial(tool.run, world))
    assert total > 5
    for point in range(total):
        world = tool.start()
        assert crashed(partial(tool.run, world), point), point
        yield point, world


def ends(tool: Tool) -> tuple[dict[str, bytes], dict[str, bytes]]:
    world = tool.start()
    before = world.content()
    tool.run(world)
    after = world.content()
    assert before != after
    return before, after


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_after_any_crash_the_checkpoint_is_whole_or_cannot_be_started(tool: Tool) -> None:
    before, after = ends(tool)
    halfway = 0
    for point, world in crash_points(tool):
        if without_crc(world.content()) not in (without_crc(before), without_crc(after)):
            halfway += 1
            assert not is_startable(world, tool), f"startable half-way at {point}"
    assert halfway > 0


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_after_any_crash_the_same_command_finishes_it(tool: Tool) -> None:
    _, after = ends(tool)
    for point, world in crash_points(tool):
        if Journal(world.files(tool.edits)).unfinished() or world.content() != after:
            tool.run(world)
        assert world.content() == after, point
        journal = Journal(world.files(tool.edits))
        assert journal.unfinished() is None


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_after_any_crash_undo_takes_it_back(tool: Tool) -> None:
    before, _ = ends(tool)
    earlier = Journal(tool.start().files(tool.edits)).entries()
    for point, world in crash_points(tool):
        if len(Journal(world.files(tool.edits)).entries()) > len(earlier):
            tool.undo(world)
        assert world.content() == before, point


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_a_crash_anywhere_in_an_undo_is_completed_by_the_next_undo(tool: Tool) -> None:
    before, after = ends(tool)
    world = tool.start()
    tool.run(world)
    done = dict(world.disk)
    total = operations(partial(tool.undo, world))
    for point in range(total):
        world = World(dict(done))
        assert crashed(partial(tool.undo, world), point)
        if without_crc(world.content()) not in (without_crc(before), without_crc(after)):
            assert not is_startable(world, tool), f"startable half-way at {point}"
        entry = Journal(world.files(tool.edits)).entries()[-1]
        if entry.state is not JournalState.UNDONE:
            tool.undo(world)
        assert world.content() == before, point


@pytest.mark.parametrize("tool", TOOLS[:2], ids=str)
def test_crash_after_crash_is_finished_in_the_end(tool: Tool) -> None:
    _, after = ends(tool)
    for first, world in crash_points(tool):
        saved = dict(world.disk)
        for second in range(1, 20, 3):
            world = World(dict(saved))
            crashed(partial(tool.run, world), second)
            if world.content() != after:
                tool.run(world)
            assert world.content() == after, (first, second)
