"""Random prepared checkpoints and outputs, and every command: none leads out of them.

A child process records each path and each address that Python opens. A violation is a path below a
directory that only the checkpoint names, any address, a changed file there, a traceback, a command
that does not end, or a control character in what is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.fuzz.prepared_child import COMMANDS, commands
from tests.test_security import commands as all_commands

from epochal.cli.main import app

SEEDS = 20
ROOT = Path(__file__).resolve().parents[2]
NEEDS_A_BROKER = {"epochal kafka lag"}
"""It asks the broker first, and then reads what `kafka commit` reads."""
OPENS_NO_CHECKPOINT = {"epochal demo", "epochal run", "epochal kafka serve", "epochal pubsub serve"}


def fuzz(scratch: Path, first: int, seeds: int, fault: str = "") -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.fuzz.prepared_child", str(scratch), str(first)]
    child = subprocess.run(
        [*words, str(seeds), *fault.split()], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    found: dict[str, Any] = json.loads(child.stdout)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(20))
def test_no_command_leaves_a_prepared_checkpoint(part: int, tmp_path: Path) -> None:
    found = fuzz(tmp_path, part * SEEDS, SEEDS)
    assert found["violations"] == []
    assert found["commands"] == SEEDS * COMMANDS
    assert found["paths"] > found["commands"]
    assert found["most_bytes"] < 2 << 30


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        ("links are followed", "opened "),
        ("journals name places", "contacted "),
        ("text is printed as it is", "printed control characters"),
    ],
)
def test_a_fault_in_the_boundary_is_noticed(fault: str, noticed: str, tmp_path: Path) -> None:
    violations = fuzz(tmp_path, 20, SEEDS, fault)["violations"]
    assert [each for each in violations if noticed in each]


def test_every_command_that_opens_a_checkpoint_is_run() -> None:
    run = {
        " ".join(["epochal", *(command[:2] if command[0] in GROUPS else command[:1])])
        for command in commands("home", "scratch")
    }
    known = {path for path, _ in all_commands(typer.main.get_command(app))}
    assert run == known - NEEDS_A_BROKER - OPENS_NO_CHECKPOINT


GROUPS = ("checkpoint", "state", "kafka")
