"""Checks pages for accessibility with axe-core, which is downloaded from npm into the cache."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path

from tests.rigs.browser import Page
from tests.rigs.npm_package import cached_package

PACKAGE, VERSION, SCRIPT = "axe-core", "4.14.0", "axe.min.js"


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is now: rules, and the elements at fault."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(f"{_source()}; true")
    found: str = page.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then((result) => JSON.stringify("
        "result.violations.map((each) => `${each.id}: ${each.help}: ` + each.nodes.map((node) => "
        "`${node.target} (${node.any.concat(node.all, node.none).map((check) => check.message)})`)"
        ".join('; '))))"
    )
    listed: list[str] = json.loads(found)
    return listed


@cache
def _source() -> str:
    home = cached_package(PACKAGE, VERSION, _unpack)
    return (home / SCRIPT).read_text(encoding="utf-8")


def _unpack(package: Path, filled: Path, target: Path) -> None:
    with tarfile.open(package) as archive:
        member = archive.extractfile(f"package/{SCRIPT}")
        assert member is not None
        (filled / SCRIPT).write_bytes(member.read())
