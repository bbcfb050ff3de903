"""A writing command that is killed with SIGKILL leaves a checkpoint that can be repaired."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.golden.library import Golden, unpack
from tests.no_file_sink import with_no_sink
from tests.waiting import eventually

from epochal.cli.main import main
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import NOTICE, Journal
from epochal.tools.edit.edit_plan import read_tree
from epochal.tools.inspect.edit_status import JournalState

EXECUTE = ("--execute", "--settle-seconds", "0")
A_WINDOW = {
    "window": {"start": "2024-01-01T00:08:00.000000Z", "end": "2024-01-01T00:09:00.000000Z"},
    "k": "k4",
}


def undamaged(checkpoint: Path) -> None:
    """Break nothing: most commands run on an intact checkpoint."""
    del checkpoint


def damaged(checkpoint: Path) -> None:
    (checkpoint / "offsets" / ".11.crc").write_bytes(b"crc\0\0\0\2\0")
    (checkpoint / "commits" / "007").write_bytes((checkpoint / "commits" / "7").read_bytes())
    (checkpoint / "state" / "0" / "0" / "abc.snapshot").write_bytes(b"stray")
    for name in ("metadata", ".metadata.crc"):
        (checkpoint / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the golden checkpoint it runs on."""

    words: tuple[str, ...]
    case: str
    options: tuple[str, ...] = ()
    damage: Callable[[Path], None] = undamaged
    copies: bool = False
    """Whether it does not change the checkpoint but writes to another directory."""
    settles: bool = True
    """Whether it watches for a running query first."""

    def prepare(self, base: Path) -> Path:
        """Prepare its checkpoint; return the directory that it edits."""
        checkpoint = unpack(Golden("4.3.0", self.case), base).checkpoint
        self.damage(checkpoint)
        return base / "copied" if self.copies else checkpoint

    def line(self, edited: Path) -> tuple[str, ...]:
        places = (edited.parent / "checkpoint", edited) if self.copies else (edited,)
        execute = EXECUTE if self.settles else EXECUTE[:1]
        return (*self.words, *map(str, places), *self.options, *execute)


COMMANDS = {
    "rewind": Command(("checkpoint", "rewind"), "windowed", ("--to-batch", "4")),
    "set-offsets": Command(("checkpoint", "set-offsets"), "join_inner", ("--shift-by", "-3")),
    "migrate-offsets": Command(("checkpoint", "migrate-offsets"), "several_sources"),
    "repair": Command(
        ("checkpoint", "repair"),
        "windowed",
        ("--query-id", "53b62e34-0476-452d-8313-c1786e091891"),
        damaged,
    ),
    "copy": Command(("checkpoint", "copy"), "windowed", copies=True),
    "clone": Command(
        ("checkpoint", "clone"),
        "windowed",
        ("--query-id", "53b62e34-0476-452d-8313-c1786e091891"),
        copies=True,
        settles=False,
    ),
    "state-put": Command(
        ("state", "put"),
        "windowed",
        ("--key", json.dumps(A_WINDOW), "--value", '{"count": 9, "sum": 99}'),
    ),
    "state-delete": Command(("state", "delete"), "windowed", ("--key", json.dumps(A_WINDOW))),
    "state-repartition": Command(("state", "repartition"), "dedup", ("--partitions", "5")),
    "state-evolve": Command(("state", "evolve"), "windowed", ("--add", 'seen:string="yes"')),
    "state-move": Command(("state", "move"), "windowed", ("--to", "3")),
}
EVERYDAY_MOMENTS = 2
MOMENTS = [
    pytest.param(seed, marks=[pytest.mark.long] if seed >= EVERYDAY_MOMENTS else [])
    for seed in range(40)
]


def content(directory: Path) -> dict[str, bytes]:
    files = LocalFiles(directory)
    return {path: files.read(path) for path in read_tree(files).infos}


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "epochal.cli.main", *with_no_sink(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*arguments: str) -> None:
    assert main(with_no_sink(arguments)) == 0, arguments


def run_undo(edited: Path) -> None:
    run("checkpoint", "undo", str(edited), *EXECUTE)


@cache
def undisturbed(name: str) -> dict[str, bytes]:
    """Return the checkpoint's content after a run of the command that is not killed."""
    command = COMMANDS[name]
    with TemporaryDirectory() as scratch:
        edited = command.prepare(Path(scratch))
        run(*command.line(edited))
        return elsewhere(content(edited), Path(scratch))


def elsewhere(found: dict[str, bytes], base: Path) -> dict[str, bytes]:
    """Remove the name of this test's temporary directory."""
    return {path: data.replace(str(base).encode(), b"BASE") for path, data in found.items()}


def kill_inside(edited: Path, began: str, draw: random.Random, *arguments: str) -> None:
    """Start a command, and kill it a short time after it has begun to write."""
    journal = edited / ".epochal" / "journal"
    known = set(journal.glob(began))
    process = start(*arguments)
    eventually(
        lambda: process.poll() is not None or set(journal.glob(began)) > known,
        f"{began} in the journal",
        pause=0.001,
    )
    time.sleep(draw.uniform(0, 0.25))  # the moment of the kill is random
    process.kill()
    process.communicate()


def without_crc(found: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the crc of `metadata`, which is written last, and temporary files of a killed
    process."""
    return {
        path: data
        for path, data in found.items()
        if path != ".metadata.crc" and not path.endswith(".tmp")
    }


@pytest.mark.parametrize("seed", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_finished_by_running_it_again_or_undone(
    name: str, seed: int, tmp_path: Path
) -> None:
    command = COMMANDS[name]
    base = tmp_path / "golden"
    edited = command.prepare(base)
    before, after = content(edited), undisturbed(name)
    kill_inside(edited, "*", random.Random(f"{name}/{seed}"), *command.line(edited))

    journal = Journal(LocalFiles(edited))
    states = [entry.state for entry in journal.entries()]
    now = content(edited)
    if now != before and elsewhere(now, base) != after:
        assert states == [JournalState.UNFINISHED] or (command.copies and not states)
        assert NOTICE.encode() in now.get("metadata", b"") or without_crc(elsewhere(now, base)) in (
            without_crc(elsewhere(before, base)),
            without_crc(after),
        )
    if seed % 2:
        if states:
            run_undo(edited)
        assert content(edited) == before
    else:
        if states != [JournalState.DONE]:
            run(*command.line(edited))
        assert elsewhere(content(edited), base) == after
    assert journal.unfinished() is None


@pytest.mark.parametrize("seed", MOMENTS)
def test_a_killed_undo_is_completed_by_the_next_undo(seed: int, tmp_path: Path) -> None:
    name = sorted(COMMANDS)[seed % len(COMMANDS)]
    command = COMMANDS[name]
    base = tmp_path / "golden"
    edited = command.prepare(base)
    before = content(edited)
    run(*command.line(edited))
    draw = random.Random(f"undo/{seed}")
    kill_inside(edited, "*/undoing", draw, "checkpoint", "undo", str(edited), *EXECUTE)

    journal = Journal(LocalFiles(edited))
    (entry,) = journal.entries()
    now = elsewhere(content(edited), base)
    if now not in (elsewhere(before, base), undisturbed(name)):
        assert entry.state is JournalState.HALF_UNDONE
        assert NOTICE.encode() in now.get("metadata", b"") or without_crc(now) in (
            without_crc(elsewhere(before, base)),
            without_crc(undisturbed(name)),
        )
    if entry.state is not JournalState.UNDONE:
        run_undo(edited)
    assert content(edited) == before
    assert [each.state for each in journal.entries()] == [JournalState.UNDONE]
