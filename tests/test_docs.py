"""Keeps the docs correct: generated pages are current, names resolve, links work."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import typer.main
from tests.golden.field_reports import REPORTS
from typer.core import TyperGroup

from epochal import errors
from epochal.cli.main import app
from epochal.options import options_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
MAX_PICTURE_BYTES = 300_000


def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated_pages() -> dict[str, str]:
    pages: dict[str, str] = make_docs().pages()
    return pages


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```", page.read_text(), re.M | re.S)


def resolve(target: str) -> object:
    """Return the object that a dotted name refers to: the longest module, then attributes."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{target} is not a module")


@pytest.mark.parametrize(
    "name",
    [
        "cli.md",
        "api.md",
        "findings.md",
        "functions.md",
        "decisions/index.md",
        "drawings/imports.svg",
    ],
)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generated_pages()[name], "run `make docs`"


def test_every_error_has_one_line_that_says_what_to_do() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\|$", text, re.M)
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.EpochalError)
    ]
    assert sorted(name for name, _, _ in rows) == sorted(classes)
    assert [name for name, _, do in rows if not do] == ["EpochalError"]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    outside = re.compile(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?(?:https?:)?//""")
    pages = list(tmp_path.rglob("*.html"))
    assert [page.name for page in pages if outside.search(page.read_text())] == []
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_in_the_docs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "sh")), re.M)
    shown += re.findall(r"`make ([a-z_-]+)", page.read_text())
    (benches,) = re.findall(r"^BENCHES := (.*)$", makefile, re.M)
    suites = [*benches.split(), *benches.replace("_", "-").split()]
    known = {*re.findall(r"^([a-z-]+):", makefile, re.M), *(f"bench-{each}" for each in suites)}
    assert [target for target in shown if target not in {*known, "bench-"}] == []


def named_targets() -> list[tuple[str, str]]:
    names = ("spark-names.md", "architecture.md")
    text = "\n".join((ROOT / "docs" / name).read_text() for name in names)
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", text, re.M)
    return [
        (name, target)
        for name, targets in rows
        for target in re.findall(r"`(epochal\.[^`]+)`", targets)
    ]


@pytest.mark.parametrize(("name", "target"), named_targets())
def test_every_name_in_a_table_leads_to_something_that_exists(name: str, target: str) -> None:
    assert resolve(target) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_pictures_are_small_and_every_one_is_shown() -> None:
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    sizes = {path.name: path.stat().st_size for path in pictures}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > MAX_PICTURE_BYTES} == {}
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in sizes if f"pictures/{name}" not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, name_of(page), "exec")


def commands_in(page: Path) -> list[list[str]]:
    lines = "\n".join(blocks(page, "(?:sh|bash|console|text)")).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(epochal [^`]+)`", page.read_text())
    # Skip inline lists of alternatives such as `epochal a | b`: they are not commands to type.
    lines += [line for line in inline if not re.search(r" [/|] |…|\.\.\.", line)]
    words = [line.removeprefix("$ ").split("#")[0].split() for line in lines]
    return [line for line in words if line[:1] == ["epochal"] and len(line) > 1 and "…" not in line]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_docs_exist_with_the_options_they_show(page: Path) -> None:
    if page.name == "cli.md":
        return
    for words in commands_in(page):
        command: Any = typer.main.get_command(app)
        context = typer.Context(command)
        rest = words[1:]
        while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
            child = command.get_command(context, rest[0])
            assert child is not None, f"{name_of(page)}: {' '.join(words)}"
            command, rest = child, rest[1:]
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        shown = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert shown - known - {"--help"} == set(), f"{name_of(page)}: {' '.join(words)}"


def option_classes() -> list[type[Any]]:
    """Return every options class that a connector or the engine reads."""
    found = []
    source = ROOT / "src" / "epochal"
    for path in sorted([*source.glob("continuous/*.py"), *source.glob("connectors/**/*.py")]):
        for name in re.findall(r"^class (\w+Options)\b", path.read_text(), re.M):
            module = path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".")
            found.append(getattr(importlib.import_module(module), name))
    return found


@pytest.mark.parametrize("cls", option_classes(), ids=lambda cls: cls.__name__)
def test_every_option_is_documented_with_its_default(cls: type[Any]) -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    (section,) = re.findall(rf"^### [^\n]*`{cls.__name__}`\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    rows = re.findall(r"^\| `([^`]+)`[^|]* \| (?:`([^`]*)`)?[^|]*\|", section, re.M)
    expected = [(option.name, option.default) for option in options_of(cls) if option.name]
    assert sorted(rows) == sorted(expected)


def test_troubleshooting_lists_each_report_that_is_tested_and_no_other() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    texts = set(re.findall(r"^### `(.+)`$", page, re.MULTILINE))
    assert texts == {text for each in REPORTS for text in (each.error, each.older) if text}
    for each in REPORTS:
        named = each.error or str(each)
        assert " ".join(named.lower().split()) in " ".join(page.lower().split()), named
