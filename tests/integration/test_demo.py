"""The whole demo: a worker is killed, and no row is lost or duplicated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epochal.files.local import LocalFiles
from epochal.tools.verify.verify import verify


def outcome(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "epochal.cli.main", "demo", "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("table", ["parquet", "delta"])
def test_the_demo_balances_through_a_kill(table: str, tmp_path: Path) -> None:
    home = tmp_path / "orders"
    found = outcome("--seconds", "6", "--rate", "500", "--table", table, "--directory", str(home))
    assert found["balance"] == {
        "sent": 3000,
        "received": 3000,
        "lost": 0,
        "repeated": 0,
        "wrong_totals": 0,
        "wrong_states": 0,
    }
    assert found["recovery_seconds"] > 0
    assert list(verify(LocalFiles(home / "checkpoint")).findings) == []


def test_the_story_has_no_warnings_and_its_commands_work(tmp_path: Path) -> None:
    home = tmp_path / "my orders"
    command = [sys.executable, "-m", "epochal", "demo", "--seconds", "5", "--rate", "200"]
    run = subprocess.run([*command, "--directory", str(home)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr[-4000:]
    assert "WARN" not in run.stdout
    assert "WARN" in (home / "demo.log").read_text()
    assert " 0 customers" not in run.stdout
    lines = run.stdout.splitlines()
    tried = [line.strip() for line in lines[lines.index("Try next:") + 1 :]]
    assert len(tried) == 3
    for line in tried:
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), line
    assert "customer-" in done.stdout


@pytest.mark.long
def test_the_demo_balances_on_kafka_too() -> None:
    found = outcome("--kafka", "--seconds", "10")["balance"]
    assert (found["sent"], found["received"], found["lost"]) == (10_000, 10_000, 0)
