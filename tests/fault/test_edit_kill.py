"""A writing command that is killed with SIGKILL leaves a checkpoint that can be made whole."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.golden.library import Golden, unpack

from epochal.checkpoint.edits import read_tree
from epochal.checkpoint.journal import NOTICE, Journal
from epochal.checkpoint.records import JournalState
from epochal.files.local import LocalFiles

COMMANDS = {
    "rewind": ("rewind", "windowed", ("--to-batch", "4")),
    "set-offsets": ("set-offsets", "join_inner", ("--shift-by", "-3")),
    "migrate-offsets": ("migrate-offsets", "several_sources", ()),
}
LONGEST_WAIT_SECONDS = 60.0


def content(directory: Path) -> dict[str, bytes]:
    files = LocalFiles(directory)
    return {path: files.read(path) for path in read_tree(files).infos}


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "epochal.cli.main", "checkpoint", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*arguments: str) -> None:
    process = start(*arguments)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


@cache
def undisturbed(name: str) -> dict[str, bytes]:
    """What the command makes of its checkpoint when nobody kills it."""
    command, case, options = COMMANDS[name]
    with TemporaryDirectory() as scratch:
        directory = unpack(Golden("4.3.0", case), Path(scratch)).checkpoint
        run(command, str(directory), *options, "--execute", "--settle-seconds", "0")
        return content(directory)


def kill_inside(directory: Path, draw: random.Random, *arguments: str) -> bool:
    """Start a command and kill it once it has begun to write; False if it was done before."""
    process = start(*arguments)
    journal = directory / ".epochal" / "journal"
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while process.poll() is None and not journal.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.25))
    was_running = process.poll() is None
    process.kill()
    process.communicate()
    return was_running


MOMENTS = [pytest.param(seed, marks=[pytest.mark.long] if seed >= 4 else []) for seed in range(40)]


@pytest.mark.parametrize("seed", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_finished_by_running_it_again_or_undone(
    name: str, seed: int, tmp_path: Path
) -> None:
    command, case, options = COMMANDS[name]
    place = unpack(Golden("4.3.0", case), tmp_path / "golden")
    directory = place.checkpoint
    flags = (*options, "--execute", "--settle-seconds", "0")
    before = content(directory)
    after = undisturbed(name)
    kill_inside(directory, random.Random(f"{name}/{seed}"), command, str(directory), *flags)

    journal = Journal(LocalFiles(directory))
    states = [entry.state for entry in journal.entries()]
    now = content(directory)
    if now not in (before, after):
        assert states == [JournalState.UNFINISHED]
        assert NOTICE.encode() in now["metadata"] or without_crc(now) in (
            without_crc(before),
            without_crc(after),
        )
    if seed % 2:
        if states:
            run("undo", str(directory), "--execute", "--settle-seconds", "0")
        assert content(directory) == before
    else:
        if states != [JournalState.DONE]:
            run(command, str(directory), *flags)
        assert content(directory) == after
    assert journal.unfinished() is None


def without_crc(found: dict[str, bytes]) -> dict[str, bytes]:
    """The crc of `metadata` comes last of all; temporary files of a killed process stay."""
    return {
        path: data
        for path, data in found.items()
        if path != ".metadata.crc" and not path.endswith(".tmp")
    }
