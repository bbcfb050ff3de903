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
    found = answer_of(release, "tests.frames.plan_child", tmp_path / "answer.json")
    expected = {
        plan.name: [plan.shapes.get(release[:3], plan.shape), "The DataFrame can run."]
        for plan in PLANS
        if release[:3] >= plan.since
    }
    assert found == expected


@pytest.mark.parametrize("release", RELEASES)
def test_spark_s_own_code_of_a_release_evaluates_expressions(release: str, tmp_path: Path) -> None:
    found = answer_of(release, "tests.frames.evaluator_child", tmp_path / "answer.json")
    lines = [f'{value},"a,b"' for value in range(3)]
    assert found == [
        {"value": value, "code": "R163", "more": [value + 1, None], "line": line}
        for value, line in enumerate(lines)
    ]


def answer_of(release: str, module: str, answer: Path) -> object:
    """What a module writes to a file, if it runs with a release of Spark."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
        "PYTHONPATH": os.pathsep.join((str(tree(release)), str(ROOT), str(ROOT / "src"))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", module, str(answer)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(answer.read_text(encoding="utf-8"))
