"""Runs Azurite, Microsoft's Azure Storage emulator, on loopback. It needs Node.js and npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir
from epochal.testing.server import Server, accepts, free_port

AZURITE = "3.35.0"
ACCOUNT = "epochal"
KEY = base64.b64encode(b"a key for loopback only, 32 bytes").decode()
INSTALL_SECONDS = 900
START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Azurite:
    """The endpoint of a running emulator, and its container."""

    endpoint: str
    container: str

    @property
    def url(self) -> str:
        """The URL of the container in Hadoop's form."""
        return f"abfss://{self.container}@{ACCOUNT}.dfs.core.windows.net"

    def environment(self) -> dict[str, str]:
        """The environment variables for its clients."""
        return {"AZURE_STORAGE_ENDPOINT": self.endpoint, "AZURE_STORAGE_ACCOUNT_KEY": KEY}


@contextmanager
def running_azurite(container: str = "checkpoints") -> Iterator[Azurite]:
    """Start an emulator with one empty container. It ends with the block, and its blobs go too."""
    node, script = shutil.which("node"), _installed()
    if node is None:
        raise ComponentError("Azurite needs Node.js, but `node` is not on PATH. Install Node.js.")
    with tempfile.TemporaryDirectory(prefix="epochal-azurite-") as folder:
        port = free_port()
        command = [
            *("/usr/bin/env", f"AZURITE_ACCOUNTS={ACCOUNT}:{KEY}", node, str(script)),
            *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder),
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]
        with Server("Azurite", command, log=Path(folder, "azurite.log")) as server:
            server.wait_until(lambda: accepts("127.0.0.1", port), seconds=START_SECONDS)
            azurite = Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}", container)
            _create_container(azurite)
            yield azurite


def _installed() -> Path:
    """The path of Azurite's blob server. It is downloaded into the cache if necessary."""
    target = cache_dir() / "npm" / f"azurite-{AZURITE}"
    script = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")
    if not (target / script).exists():
        npm = shutil.which("npm")
        if npm is None:
            raise ComponentError(
                "Azurite is installed with npm, but `npm` is not on PATH. Install Node.js with npm."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".azurite-") as work:
            filled = Path(work, "filled")
            filled.mkdir()
            command = [npm, "install", "--no-audit", "--no-fund", f"azurite@{AZURITE}"]
            run = subprocess.run(
                [*command, "--prefix", str(filled)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
            if run.returncode != 0:
                raise ComponentError(
                    f"npm cannot install Azurite. Its output ends:\n{run.stdout[-2000:]}"
                )
            if not target.exists():  # another process may have put it there first
                filled.rename(target)
    return target / script


def _create_container(azurite: Azurite) -> None:
    date, version = formatdate(usegmt=True), "2021-12-02"
    to_sign = (
        "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n"
        f"/{ACCOUNT}/{ACCOUNT}/{azurite.container}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(KEY), to_sign.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"{azurite.endpoint}/{azurite.container}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        },
    )
    with urllib.request.urlopen(request, timeout=30):
        pass
