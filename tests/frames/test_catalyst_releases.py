"""Every supported release of Spark plans the corpus so that we can read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frames.plan_corpus import PLANS
from tests.spark.releases import ROOT, tree

RELEASES = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_plans_what_we_read(release: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    environment = {
        **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
        "PYTHONPATH": os.pathsep.join((str(tree(release)), str(ROOT), str(ROOT / "src"))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.frames.plan_child", str(answer)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(answer.read_text(encoding="utf-8"))
    expected = {
        plan.name: [plan.shapes.get(release[:3], plan.shape), "The DataFrame can run."]
        for plan in PLANS
        if release[:3] >= plan.since
    }
    assert found == expected
