"""Ctrl-C, as a real SIGINT to a real process: one line, exit status 130, and nothing left behind.

Each child runs the real command. A hook makes it wait at the stage that is tested, because no test
could hit it by chance.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack

from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.inspect.edit_status import JournalState

HOOK = """
import sys, time
from {module} import {owner} as owner
original, calls = owner.{method}, 0

def waiting(*given, **named):
    global calls
    calls += 1
    if calls == {at}:
        print("waiting", flush=True)
        time.sleep(60)
    return original(*given, **named)

owner.{method} = waiting
from epochal.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True).base / "checkpoint"


def interrupted_at(hook: str, *arguments: object) -> str:
    """Run a command until it waits, send SIGINT to its process group, and return stderr."""
    command = [sys.executable, "-c", hook, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n", process.communicate()[1]
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.count("\n") == 1, err
    return err


def hook(module: str, owner: str, method: str, at: int = 1) -> str:
    return HOOK.format(module=module, owner=owner, method=method, at=at)


CHANGING = hook("epochal.tools.edit.edit_journal", "Journal", "_apply", 3)
RESTORING = hook("epochal.tools.edit.edit_journal", "Journal", "_restore", 3)
NOTHING = "epochal: Interrupted. Nothing was changed.\n"


def content(root: Path) -> dict[str, bytes]:
    own = root / ".epochal"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_relative_to(own)
    }


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "epochal", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_during_the_import_of_the_command(tmp_path: Path) -> None:
    importing = (
        "import sys, time, builtins\n"
        "before = builtins.__import__\n"
        "def slow(name, *rest, **named):\n"
        "    if name == 'epochal.cli.main':\n"
        "        print('waiting', flush=True); time.sleep(60)\n"
        "    return before(name, *rest, **named)\n"
        "builtins.__import__ = slow\n"
        "from epochal.__main__ import main\n"
        "sys.exit(main())\n"
    )
    assert interrupted_at(importing, "checkpoint", "show", tmp_path) == NOTHING


def test_during_a_dry_run(checkpoint: Path) -> None:
    before = content(checkpoint)
    planning = hook("epochal.tools.edit", "rewind", "plan_rewind")
    told = interrupted_at(
        planning, "checkpoint", "rewind", checkpoint, "--no-file-sink", "--to-batch", 5
    )
    assert told == NOTHING
    assert content(checkpoint) == before
    assert not (checkpoint / ".epochal").exists()


TO_BATCH_5 = ("--no-file-sink", "--to-batch", 5, "--execute", "--settle-seconds", 0)


@pytest.mark.parametrize(
    "stage",
    [
        hook("epochal.tools.edit", "apply_edit", "disturbances"),
        hook("epochal.tools.edit.edit_journal", "Journal", "_prepare_change", 4),
    ],
    ids=["while it watches for a running query", "while it keeps copies of the old files"],
)
def test_before_the_first_change_leaves_no_trace(stage: str, checkpoint: Path) -> None:
    before = content(checkpoint)
    words = ("rewind", checkpoint, *TO_BATCH_5)
    assert interrupted_at(stage, "checkpoint", *words) == NOTHING
    assert content(checkpoint) == before
    journal = checkpoint / ".epochal" / "journal"
    assert not journal.exists() or not list(journal.iterdir())
    assert run("checkpoint", *words).returncode == 0


def interrupted_rewind(checkpoint: Path) -> tuple[str, ...]:
    """A rewind that Ctrl-C has stopped half-way; returns its words."""
    words = (
        "rewind",
        str(checkpoint),
        "--no-file-sink",
        "--to-batch",
        "5",
        "--execute",
        "--settle-seconds",
        "0",
    )
    told = interrupted_at(CHANGING, "checkpoint", *words)
    assert told == (
        "epochal: Interrupted: 0001-rewind is half done, and no query starts on the checkpoint "
        "meanwhile. Run the same command again to finish it, or `epochal checkpoint undo "
        f"{checkpoint} --execute` to revert it.\n"
    )
    (entry,) = Journal(LocalFiles(checkpoint)).entries()
    assert entry.state is JournalState.UNFINISHED
    return words


def test_half_way_the_command_that_is_named_reverts_the_edit(checkpoint: Path) -> None:
    before = content(checkpoint)
    interrupted_rewind(checkpoint)
    assert content(checkpoint) != before
    done = run("checkpoint", "undo", checkpoint, "--execute")
    assert (done.returncode, content(checkpoint)) == (0, before)


def test_half_way_the_same_command_finishes_the_edit(checkpoint: Path) -> None:
    words = interrupted_rewind(checkpoint)
    done = run("checkpoint", *words)
    assert done.returncode == 0, done.stderr
    assert "Finished the interrupted rewind" in done.stdout
    assert sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")) == [*range(6)]
    assert run("checkpoint", "verify", checkpoint).returncode == 0


def test_half_way_through_an_undo_the_undo_is_finished_by_another(checkpoint: Path) -> None:
    before = content(checkpoint)
    words = ("rewind", checkpoint, *TO_BATCH_5)
    assert run("checkpoint", *words).returncode == 0
    undo = ("undo", checkpoint, "--execute", "--settle-seconds", 0)
    told = interrupted_at(RESTORING, "checkpoint", *undo)
    assert "0001-rewind is half undone. Run `epochal checkpoint undo" in told
    assert run("checkpoint", *undo).returncode == 0
    assert content(checkpoint) == before


def test_a_verification_ends_with_its_processes(checkpoint: Path) -> None:
    forked = (
        "import os\nos.cpu_count = lambda: 2\n"
        "from epochal.tools.verify import check_operators\n"
        "check_operators.PARALLEL_FROM_FILES = 1\n"
        "start = check_operators._start\n"
        "def slow(share, work):\n"
        "    import time\n"
        "    def wait(*given):\n"
        "        time.sleep(60)\n"
        "    child = start(share, wait)\n"
        "    print('child', child[0], flush=True)\n"
        "    return child\n"
        "check_operators._start = slow\n"
    ) + hook("epochal.tools.verify", "check_operators", "_collect")
    command = [sys.executable, "-c", forked, "checkpoint", "verify", str(checkpoint)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    word, child = process.stdout.readline().split()
    assert word == "child"
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, signal.SIGINT)  # not to the child: its parent must end it
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, NOTHING)
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_an_export_leaves_no_part_of_its_file(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("as it was")
    reading = hook("epochal.tools.read_state.read", "StoreReader", "batches", 2)
    told = interrupted_at(reading, "state", "export", checkpoint, "--to", target)
    assert told == f"epochal: Interrupted. {target} was not written.\n"
    assert target.read_text() == "as it was"
    assert [path.name for path in tmp_path.glob("rows*")] == ["rows.csv"]
