"""Failed tests are run once more, and the summary says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import run_tests

FAILS_ONCE = """
from pathlib import Path

import pytest

MARK = Path(__file__).with_suffix(".seen")

@pytest.mark.parametrize("number", range({count}))
def test_number(number):
    first = not MARK.exists()
    if number == {count} - 1:
        MARK.touch()
    assert not first or number < {steady}
"""


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own with one part, `sample`."""
    (tmp_path / "tests" / "sample").mkdir(parents=True)
    (tmp_path / "reports").mkdir()
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(run_tests, "PARTS", {"sample": ("sample",)})
    return tmp_path / "reports"


def run_sample(reports: Path, text: str) -> tuple[run_tests.Outcome, run_tests.Outcome]:
    """The outcome of the first run, and the final one."""
    (reports.parent / "tests" / "sample" / "test_sample.py").write_text(text)
    first = run_tests.run_part("sample", run_tests.EVERYDAY, coverage=False)
    return first, run_tests.run_again(first, run_tests.EVERYDAY, coverage=False)


def test_a_test_that_passes_when_it_is_run_again_is_unsteady(reports: Path) -> None:
    first, final = run_sample(reports, FAILS_ONCE.format(count=3, steady=2))
    assert first.status == run_tests.TESTS_FAILED
    assert final.status == 0
    assert final.failed == ("tests/sample/test_sample.py::test_number[2]",)


def test_a_test_that_fails_twice_has_failed(reports: Path) -> None:
    _, final = run_sample(reports, "def test_nothing():\n    assert False\n")
    assert final.status == run_tests.TESTS_FAILED


def test_many_failed_tests_are_not_run_again(reports: Path) -> None:
    count = run_tests.MAX_UNSTEADY + 1
    first, final = run_sample(reports, FAILS_ONCE.format(count=count, steady=0))
    assert len(first.failed) == count
    assert final is first
