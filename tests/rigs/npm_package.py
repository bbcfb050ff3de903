"""Downloads packages from npm into the cache, once each, for rigs that use their files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir

INSTALL_SECONDS = 600


def cached_package(package: str, version: str, fill: Callable[[Path, Path, Path], None]) -> Path:
    """The directory of a package in the cache. It is downloaded if necessary.

    `fill` gets the downloaded archive, the directory to fill, and the path that it will have.
    """
    target = cache_dir() / "npm" / f"{package.rpartition('/')[2]}-{version}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".npm-") as work:
            filled = Path(work, "filled")
            filled.mkdir()
            fill(_downloaded(package, version, Path(work)), filled, target)
            with suppress(OSError):  # another process may have put it there first
                filled.rename(target)
    return target


def _downloaded(package: str, version: str, work: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise ComponentError(f"{package} comes from npm, which is not on PATH. Install Node.js.")
    run = subprocess.run(
        [npm, "pack", "--silent", f"{package}@{version}", "--pack-destination", str(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    found = list(work.glob("*.tgz"))
    if run.returncode != 0 or len(found) != 1:
        raise ComponentError(
            f"npm cannot download {package} {version}. Its output ends:\n{run.stdout[-2000:]}"
        )
    return found[0]
