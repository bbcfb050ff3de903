"""A switch, cut off before each of its file operations, never leaves two checkpoints to start from.

And never none for good: the same command again opens the one, `undo` the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from tests.simulation import test_edit_crashes
from tests.simulation.test_edit_crashes import (
    Tool,
    World,
    crash_points,
    crashed,
    golden,
    operations,
)

from epochal.checkpoint.entries import QueryMetadata
from epochal.errors import EpochalError
from epochal.tools.edit.apply_edit import apply
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.offset_targets import ShiftBy
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey
from epochal.tools.edit_state.repartition import plan_repartition
from epochal.tools.switch.clone import CloneOptions, plan_clone
from epochal.tools.switch.switch import SwitchedOutput, plan_back, plan_existing, plan_new

NEW_ID = "0c6c1b9e-7a52-4f3e-9d0e-5a2f0f4d8f11"
Before = Callable[[str, str], None] | None


def no_preparation(world: World) -> None:
    del world


def edit(world: World, name: str, plan: Callable[[], Plan]) -> None:
    command = plan().command
    apply(world.files(name), command, plan, world.conditions(None))


def prepare_a_clone_with_edits(world: World) -> None:
    """A clone whose state was edited: it is two batches further, at the same offsets."""
    old, new = world.files("checkpoint"), world.files("new")
    edit(world, "new", lambda: plan_clone(survey(old), new, CloneOptions(query_id=NEW_ID)))
    edit(world, "new", lambda: plan_repartition(survey(new), 3))
    edit(world, "new", lambda: plan_repartition(survey(new), 2))


def prepare_a_switched_query_that_went_on(world: World) -> None:
    """The new query has written two more batches."""
    old, new, output = (world.files(each) for each in ("checkpoint", "new", "output"))
    edit(world, "new", lambda: plan_new(survey(old), new, NEW_ID))
    for _ in range(2):
        edit(
            world,
            "new",
            lambda: plan_set_offsets(survey(new), "0", ShiftBy(0), sink=survey_sink(output)),
        )


@dataclass(frozen=True, kw_only=True)
class Turn(Tool):
    """A switch of the golden case with a file sink; it edits the checkpoint that it opens."""

    case: str = "file_sink_counts"
    command: str = "switch"
    edits: str = "new"
    prepare: Callable[[World], None] = no_preparation

    def start(self) -> World:
        world = World(dict(golden(self.case)))
        self.prepare(world)
        return world

    def run(self, world: World, before: Before = None) -> None:
        """The plan is made from the old checkpoint, the new one and the output."""
        files = [world.files(name, before) for name in ("checkpoint", "new", "output")]
        opened = world.files(self.edits, before)
        apply(opened, self.command, lambda: self.plan(*files), world.conditions(before))


TURNS = [
    Turn("to-a-new-checkpoint", lambda old, new, _: plan_new(survey(old), new, NEW_ID)),
    Turn(
        "to-a-clone-with-edits",
        lambda old, new, output: plan_existing(survey(old), survey(new), survey_sink(output)),
        prepare=prepare_a_clone_with_edits,
    ),
    Turn(
        "back",
        lambda old, new, output: plan_back(
            survey(old), survey(new), SwitchedOutput(survey_sink(output))
        ),
        prepare=prepare_a_switched_query_that_went_on,
        edits="checkpoint",
    ),
]


def startable(world: World) -> set[str]:
    """The checkpoints with a query id, without which no query starts."""
    found = set()
    for name in ("checkpoint", "new"):
        try:
            if QueryMetadata.read(world.files(name)) is not None:
                found.add(name)
        except EpochalError:
            pass
    return found


@pytest.mark.parametrize(
    "promise",
    [
        test_edit_crashes.test_after_any_crash_the_same_command_finishes_it,
        test_edit_crashes.test_after_any_crash_undo_takes_it_back,
        test_edit_crashes.test_a_crash_anywhere_in_an_undo_is_completed_by_the_next_undo,
    ],
)
@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_a_switch_keeps_the_promises_of_an_edit(
    turn: Turn, promise: Callable[[Tool], None]
) -> None:
    promise(turn)


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_at_no_moment_can_both_be_started_that_could_not_be_before(turn: Turn) -> None:
    world = turn.start()
    before = startable(world)
    seen = set()
    for point, world in crash_points(turn):
        now = startable(world)
        seen.add(frozenset(now))
        # A clone can be started before the switch, with an output of its own.
        assert len(now) < 2 or now == before, point
        unfinished = Journal(world.files(turn.edits)).unfinished() is not None
        assert unfinished or now in (before, {turn.edits}), point
    assert frozenset() in seen  # otherwise there was nothing to be afraid of


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_an_undo_that_crashes_leaves_no_two_to_start(turn: Turn) -> None:
    world = turn.start()
    untouched = startable(world)
    turn.run(world)
    assert startable(world) == {turn.edits}
    saved = dict(world.disk)
    for point in range(operations(partial(turn.undo, world))):
        world = World(dict(saved))
        assert crashed(partial(turn.undo, world), point)
        assert len(startable(world)) < 2 or startable(world) == untouched, point


def test_the_worlds_notice_a_switch_that_opens_before_it_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ungated(self: Journal, plan: Plan) -> tuple[None, list[Change]]:
        return None, list(reversed(plan.changes))

    monkeypatch.setattr(Journal, "_gate_of", ungated)
    with pytest.raises(AssertionError):
        test_at_no_moment_can_both_be_started_that_could_not_be_before(TURNS[0])
