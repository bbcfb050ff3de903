"""README and tutorials run as a reader runs them: from an empty directory, block by block, exactly
as they stand. The output that a page shows is the output that its commands have."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.run_page import Block, PageError, agrees, blocks, check, renewed

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))


def test_the_readme_runs_as_it_stands() -> None:
    readme = (ROOT / "README.md").read_text()
    pasted = [block.kind for block in blocks(readme) if not block.installs]
    assert pasted == ["python", "sh", "python"]
    check(readme)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_shows_what_it_prints(tutorial: Path) -> None:
    check(tutorial.read_text())


def page(*blocks: tuple[str, str]) -> str:
    return "".join(f"```{kind}\n{text}\n```\n" for kind, text in blocks)


def test_shell_and_python_stay_open_and_share_an_empty_directory() -> None:
    check(
        page(
            ("sh", "ls\nname=ada"),
            ("text", ""),
            ('python title="hello.py"', "print('hello')"),
            ("sh", "python hello.py $name\nfalse  # exit status 1"),
            ("text", "hello"),
            ("python", "from pathlib import Path\nPath('a').write_text('b')"),
            ("python", "for each in Path().iterdir():\n    print(each.name)"),
            ("text", "…"),
            ("sh", "cat a; pwd"),
            ("text", "b/home/you"),
        )
    )


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ([("sh", "true\nfalse\ntrue")], "1 commands failed, 0 of them announced: .'false'."),
        ([("sh", "true  # exit status 1")], "0 commands failed, 1 of them announced"),
        ([("python", "print(1 / 0)")], "ZeroDivisionError"),
        ([("sh", "echo 2 rows"), ("text", "3 rows")], "shows\n3 rows\n\nbut .* is\n2 rows"),
        ([("python", "1 + 1"), ("text", "3")], "shows\n3\n\nbut the output is\n2"),
    ],
)
def test_a_page_that_is_not_true_is_found(shown: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(PageError, match=reason):
        check(page(*shown))


def test_output_that_has_changed_is_renewed_and_the_rest_stays() -> None:
    before = page(("sh", "echo 1; echo 2"), ("text", "1\n…"), ("sh", "echo new"), ("text", "old"))
    assert renewed(before) == before.replace("old", "new")


def test_output_may_differ_in_times_and_ids_but_not_in_words() -> None:
    shown = "batch 3 of 0b5b6a1c-3c5f-4a0e-8f52-6a2f4f2a9d11 took 12 ms\n"
    assert agrees(shown, "batch 3 of 9d1c0c4e-0a3e-4f0e-9a57-9a1c55c0e7aa took 9.5 ms")
    assert not agrees(shown, "batch 4 of 9d1c0c4e-0a3e-4f0e-9a57-9a1c55c0e7aa took 9.5 ms")
    assert agrees("first\n…\nlast\n", "first\nsecond\nthird\nlast\n")
    assert not agrees("first\n…\nlast\n", "first\nsecond\n")


def test_a_block_that_installs_something_is_told_from_one_that_does_not() -> None:
    assert Block("sh", None, "pip install epochal\nmake demo  # it\n", 0).installs
    assert not Block("sh", None, "pip install epochal\nepochal demo\n", 0).installs
