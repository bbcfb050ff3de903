"""Spark's own Delta sink and ours write one table from one checkpoint, and Spark reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.spark.delta_turns_child import ROWS_PER_TURN
from tests.spark.releases import ROOT, tree

from epochal.checkpoint import Checkpoint
from epochal.testing.jars import resolve

RELEASE, DELTA = "4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"
SPARK, OURS = "spark", "ours"


def turns(home: Path, *script: tuple[str, str, bool]) -> dict[str, Any]:
    jars = ",".join(map(str, resolve(DELTA)))
    environment = {
        **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
        "PYTHONPATH": os.pathsep.join((str(tree(RELEASE)), str(ROOT / "src"), str(ROOT))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.spark.delta_turns_child", str(home), jars],
        input=json.dumps(script),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, f"{run.stdout[-2000:]}\n{run.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
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
