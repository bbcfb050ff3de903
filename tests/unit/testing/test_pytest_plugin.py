"""The pytest plugin, in a process of its own, and the blocks of docs/testing.md without a JVM."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from epochal import testing

pytest_plugins = ["pytester"]

PLUGIN = "epochal.testing.pytest_plugin"

TESTS = """
from epochal import testing

ORDERS = "user string, amount bigint"

def totals(orders):
    return orders.group_by("user").agg(total=("sum", "amount"))

def test_right(epochal_driver):
    driver = epochal_driver(totals(testing.stream(ORDERS)))
    driver.feed([("ada", 1), ("ada", 2)])
    assert driver.run() == [{"user": "ada", "total": 3}]

def test_wrong(epochal_driver):
    driver = epochal_driver(totals(testing.stream(ORDERS)), tasks=2)
    driver.feed([("ada", 1), ("bob", 2)])
    driver.run()
    assert driver.output == [{"user": "ada", "total": 2}, {"user": "bob", "total": 2}]

def test_other_lists_are_compared_as_ever():
    assert [1] == [2]
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    is_installed = any(each.value == PLUGIN for each in entry_points(group="pytest11"))
    loading = () if is_installed else ("-p", PLUGIN)
    return pytester.runpytest_subprocess(*loading, "-p", "no:cacheprovider", *arguments)


def test_a_failed_comparison_shows_which_rows_differ(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    found = run(pytester)
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(
        [
            "E*assert found 2 rows, expected 2:",
            "E*missing    {'user': 'ada', 'total': 2}",
            "E*unexpected {'user': 'ada', 'total': 1}",
            "E*assert * == *2*",
        ]
    )
    found.stdout.no_fnmatch_line("*missing    {'user': 'bob'*")


def test_a_driver_is_closed_after_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from epochal import testing

        made = []

        def test_first(epochal_driver):
            made.append(epochal_driver(testing.stream("n int")))
            made[0].epoch()

        def test_second():
            try:
                made[0].epoch()
            except testing.driver.query_driver.EpochError as error:
                assert "not running" in str(error)
            else:
                raise AssertionError("it still runs")
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_the_plugin_imports_nothing_until_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_nothing():
            found = [name for name in sys.modules if name.startswith(("epochal", "pyspark"))]
            assert sorted(found) == ["epochal", "epochal.testing", "{PLUGIN}", "epochal.version"]
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_same_tests_run_on_a_real_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        TESTS
        + """

def test_crashing(epochal_driver):
    driver = epochal_driver(totals(testing.stream(ORDERS)))
    driver.feed([("ada", 1)])
    driver.crash(at="commit")

def test_the_session_is_real(epochal_driver, epochal_session):
    epochal_driver(testing.stream(ORDERS))
    assert epochal_session.range(3).count() == 3
"""
    )
    found = run(pytester, "--epochal-spark", "-rs")
    found.assert_outcomes(passed=2, failed=2, skipped=1)
    found.stdout.fnmatch_lines(
        [
            "E*missing    {'user': 'ada', 'total': 2}",
            "SKIPPED*crash(at='commit') is only in epochal.testing.Driver, not on Spark*",
        ]
    )


PAGE = Path(__file__).resolve().parents[3] / "docs" / "testing.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_blocks_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        if "testing.frame" not in block:
            exec(block, names)
    names["test_totals"](testing.Driver)
    (shown,) = blocks("text")
    assert shown in capsys.readouterr().out
