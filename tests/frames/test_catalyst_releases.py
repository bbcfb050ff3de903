"""Every supported release of Spark plans the corpus so that we can read it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tests.corpus.queries import QUERIES
from tests.spark.releases import ROOT, environment_of, run_module

RELEASES = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


@cache
def answer_of(release: str) -> Any:
    """The plans of the corpus, and the values of some expressions, in a release of Spark."""
    environment = environment_of(release, ROOT / "src")
    return json.loads(run_module("tests.frames.plan_child", env=environment))


def test_the_newest_release_plans_every_query_of_the_corpus() -> None:
    first_lines = {name: found[-1] for name, found in answer_of(RELEASES[-1])["plans"].items()}
    assert first_lines == {query.name: "The DataFrame can run." for query in QUERIES}


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_a_release_plans_what_we_read(release: str) -> None:
    found, newest = (answer_of(each)["plans"] for each in (release, RELEASES[-1]))
    assert found == {name: newest[name] for name in found}
    assert len(found) > 0.9 * len(newest)


@pytest.mark.parametrize("release", RELEASES)
def test_spark_s_own_code_of_a_release_evaluates_expressions(release: str) -> None:
    lines = [f'{value},"a,b"' for value in range(3)]
    assert answer_of(release)["values"] == [
        {"value": value, "code": "R163", "more": [value + 1, None], "line": line}
        for value, line in enumerate(lines)
    ]
