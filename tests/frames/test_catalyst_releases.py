"""Every supported release of Spark plans the corpus so that we can read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.queries import QUERIES
from tests.spark.releases import ROOT, environment_of

RELEASES = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    answer = tmp_path_factory.mktemp("plans") / "answer.json"
    return answer_of(RELEASES[-1], "tests.frames.plan_child", answer)


def test_the_newest_release_plans_every_query_of_the_corpus(newest: Any) -> None:
    first_lines = {name: found[-1] for name, found in newest.items()}
    assert first_lines == {query.name: "The DataFrame can run." for query in QUERIES}


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_a_release_plans_what_we_read(release: str, newest: Any, tmp_path: Path) -> None:
    found = answer_of(release, "tests.frames.plan_child", tmp_path / "answer.json")
    assert found == {name: newest[name] for name in found}
    assert len(found) > 0.9 * len(newest)


@pytest.mark.parametrize("release", RELEASES)
def test_spark_s_own_code_of_a_release_evaluates_expressions(release: str, tmp_path: Path) -> None:
    found = answer_of(release, "tests.frames.evaluator_child", tmp_path / "answer.json")
    lines = [f'{value},"a,b"' for value in range(3)]
    assert found == [
        {"value": value, "code": "R163", "more": [value + 1, None], "line": line}
        for value, line in enumerate(lines)
    ]


def answer_of(release: str, module: str, answer: Path) -> Any:
    """What a module writes to a file, if it runs with a release of Spark."""
    command = [sys.executable, "-m", module, str(answer)]
    done = subprocess.run(
        command,
        env=environment_of(release, ROOT / "src"),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(answer.read_text(encoding="utf-8"))
