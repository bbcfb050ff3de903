"""Spark's own Delta sink and ours write one table from one checkpoint, and Spark reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.spark.delta_turns_child import ROWS_PER_TURN
from tests.spark.releases import ROOT, environment_of, run_module

from epochal.checkpoint import Checkpoint
from epochal.cli.main import main
from epochal.testing.jars import resolve

RELEASE, DELTA = "4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"
SPARK, OURS = "spark", "ours"

pytestmark = pytest.mark.timeout(900)


def turns(home: Path, *script: tuple[str, str, bool]) -> dict[str, Any]:
    jars = ",".join(map(str, resolve(DELTA)))
    environment = environment_of(RELEASE, ROOT / "src")
    child = "tests.spark.delta_turns_child"
    found: dict[str, Any] = json.loads(
        run_module(child, home, jars, env=environment, given=json.dumps(script))
    )
    return found


def test_a_checkpoint_moves_between_the_two_sinks_and_no_row_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    script = [
        (SPARK, "append", False),
        (OURS, "append", False),
        (SPARK, "append", True),
        (OURS, "append", True),
        (SPARK, "append", False),
        (OURS, "append", True),
        (OURS, "append", False),
    ]
    found = turns(tmp_path, *script)
    assert found["rows"] == [[n, n % 3] for n in range(len(script) * ROWS_PER_TURN)]
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    metadata = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    marker = DeltaTable(tmp_path / "table").transaction_version(metadata["id"])
    newest = checkpoint.commits.latest_batch_id()
    assert marker is not None
    assert newest is not None
    assert 0 <= newest - marker <= 2  # our epochs without rows have no marker


def test_a_complete_result_moves_between_the_two_sinks(tmp_path: Path) -> None:
    script = [(OURS, "complete", False), (SPARK, "complete", True), (OURS, "complete", False)]
    found = turns(tmp_path, *script)
    total = len(script) * ROWS_PER_TURN
    assert found["rows"] == [[part, len(range(part, total, 3))] for part in range(3)]


def test_a_table_skips_what_a_rewound_query_plans_anew_and_takes_it_from_a_clone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the warning of a rewind says: the table remembers batches, restored or not."""
    home, saved = tmp_path / "home", tmp_path / "saved"
    checkpoint, old = str(home / "checkpoint"), str(home / "old")
    home.mkdir()
    turns(home, *[(SPARK, "append", False)] * 3)
    shutil.copytree(home, saved)
    words = ["checkpoint", "rewind", checkpoint, "--to-batch", "0", "--no-file-sink"]
    assert main([*words, "--settle-seconds", "0", "--execute"]) == 0
    assert "skips all up to the latest that it has" in capsys.readouterr().out
    DeltaTable(home / "table").restore(0)
    lost = turns(home, (SPARK, "append", False))["rows"]
    assert len(lost) < 4 * ROWS_PER_TURN

    shutil.rmtree(home)
    saved.rename(home)  # the log of the source names the input, so it must stay where it was
    (home / "checkpoint").rename(old)
    words = ["checkpoint", "clone", old, checkpoint, "--at", "0", "--no-file-sink", "--execute"]
    assert main(words) == 0
    DeltaTable(home / "table").restore(0)
    rows = turns(home, (SPARK, "append", False))["rows"]
    assert rows == [[n, n % 3] for n in range(4 * ROWS_PER_TURN)]
