"""README and tutorials run as a reader runs them: from an empty directory, block by block, exactly
as they stand. The output that a page shows is the output that its commands have."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.run_page import Block, agrees, blocks, check

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))


def test_the_readme_runs_as_it_stands() -> None:
    page = (ROOT / "README.md").read_text()
    pasted = [block.kind for block in blocks(page) if not block.installs]
    assert pasted == ["python", "sh", "python"]
    check(page)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_shows_what_it_prints(page: Path) -> None:
    check(page.read_text())


def test_output_may_differ_in_times_and_ids_but_not_in_words() -> None:
    shown = "batch 3 of 0b5b6a1c-3c5f-4a0e-8f52-6a2f4f2a9d11 took 12 ms\n"
    assert agrees(shown, "batch 3 of 9d1c0c4e-0a3e-4f0e-9a57-9a1c55c0e7aa took 9.5 ms")
    assert not agrees(shown, "batch 4 of 9d1c0c4e-0a3e-4f0e-9a57-9a1c55c0e7aa took 9.5 ms")
    assert agrees("first\n…\nlast\n", "first\nsecond\nthird\nlast\n")
    assert not agrees("first\n…\nlast\n", "first\nsecond\n")


def test_a_block_that_installs_something_is_told_from_one_that_does_not() -> None:
    assert Block("sh", None, "pip install epochal\nmake demo  # it\n", 0).installs
    assert not Block("sh", None, "pip install epochal\nepochal demo\n", 0).installs
