"""Runs `pstest`, Google's own Pub/Sub server for tests, on loopback. It needs Go to be built."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir
from epochal.testing.server import Server

SOURCE = Path(__file__).with_name("pstest")
BUILD_SECONDS = 900
START_SECONDS = 30
_READY = re.compile(r"^export PUBSUB_EMULATOR_HOST=(\S+)$", re.M)


@contextmanager
def running_pstest() -> Iterator[str]:
    """Start an empty server and yield its address. It ends with the block."""
    with tempfile.TemporaryDirectory(prefix="epochal-pstest-") as folder:
        log = Path(folder, "pstest.log")
        with Server("pstest", [str(_built())], log=log) as server:
            server.wait_until(lambda: bool(_READY.search(log.read_text())), seconds=START_SECONDS)
            found = _READY.search(log.read_text())
            assert found is not None
            yield found[1]


def _built() -> Path:
    """The path of the program. It is built into the cache if necessary."""
    version = re.findall(r"pubsub/v2 v(\S+)", (SOURCE / "go.mod").read_text())[0]
    target = cache_dir() / "go" / f"pstest-{version}"
    if not target.exists():
        go = shutil.which("go")
        if go is None:
            raise ComponentError(
                "pstest is a Go program, but `go` is not on PATH. Install Go 1.26 or newer, or run "
                "the everyday tests, which do without it."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pstest-") as work:
            built = Path(work, "pstest")
            run = subprocess.run(
                [go, "build", "-o", str(built), "."],
                cwd=SOURCE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
            if run.returncode != 0:
                raise ComponentError(f"go cannot build pstest. It says:\n{run.stdout[-2000:]}")
            built.replace(target)
    return target
