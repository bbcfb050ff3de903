"""Downloads Debian packages and unpacks them into the cache, without installing them.

Libraries that a package needs must be listed too, unless every Debian system has them.
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
    """The directory of unpacked packages."""

    root: Path

    def run(self, program: str, *words: str, timeout: float = 60) -> str:
        """Run a program of these packages and return its output. Raises if it fails."""
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
    """Download and unpack packages, once. Needs apt-get and dpkg, but no root rights."""
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
        raise ComponentError(
            f"{command[0]} was not found. This works only on Debian and its derivatives."
        ) from None
    if run.returncode != 0:
        raise ComponentError(f"{' '.join(command)} failed: {run.stderr[-2000:]}")
