"""Programs of Debian's, unpacked into the cache: nothing is installed, nobody is asked.

A package's own libraries must be named too; what every Debian has need not be.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir

FETCH_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Where packages were unpacked."""

    root: Path

    def run(self, program: str, *words: str, timeout: float = 60) -> str:
        """What a program of theirs prints; an error if it fails."""
        libraries = sorted(str(path) for path in self.root.glob("usr/lib/*-linux-gnu"))
        run = subprocess.run(
            [str(self.root / "usr" / "bin" / program), *words],
            env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if run.returncode != 0:
            raise ComponentError(f"{program} ended with {run.returncode}: {run.stderr[-2000:]}")
        return run.stdout


def unpacked(*packages: str) -> Unpacked:
    """Fetch packages once and unpack them; needs apt-get and dpkg, no rights."""
    target = cache_dir() / "debian" / "+".join(packages)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            _run(["apt-get", "download", *packages], Path(work))
            for archive in Path(work).glob("*.deb"):
                _run(["dpkg", "-x", str(archive), "root"], Path(work))
            Path(work, "root").rename(target)
    return Unpacked(target)


def _run(command: list[str], where: Path) -> None:
    try:
        run = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ComponentError(f"There is no {command[0]} here: this is no Debian.") from None
    if run.returncode != 0:
        raise ComponentError(f"{' '.join(command)} failed: {run.stderr[-2000:]}")
