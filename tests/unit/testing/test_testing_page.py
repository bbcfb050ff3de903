"""The blocks of docs/testing.md run as a reader would type them, except those that need a JVM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from epochal import testing

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
