"""Runs `epochal dashboard` as a process of its own."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.browser import Page

from epochal.testing.server import Server

START_SECONDS = 60


@contextmanager
def running_dashboard(folder: Path, *arguments: str | Path) -> Iterator[tuple[str, int]]:
    """Run the dashboard with these arguments; return its link and its process id.

    Its log is a new file in `folder`.
    """
    log = folder / f"dashboard-{time.monotonic_ns()}.log"
    words = [str(each) for each in arguments]
    command = [sys.executable, "-m", "epochal.cli.main", "dashboard", *words]
    with Server("the dashboard", command, log=log) as server:
        server.wait_until(lambda: "Ctrl-C" in log.read_text(), seconds=START_SECONDS)
        found = re.search(r"http://\S+", log.read_text())
        assert found
        yield found[0], server.pid


def choose(page: Page, name: str) -> None:
    """Select a query in the list and wait until the page shows it."""
    rows = "[...document.querySelectorAll('#queries button')]"
    row = f"{rows}.find((each) => each.innerText.split('\\n')[0] === {json.dumps(name)})"
    page.wait(row, what=f"{name} is listed")
    page.evaluate(f"{row}.click()")
    page.wait(f"document.getElementById('name').innerText === {json.dumps(name)}")
