"""Runs a real schema registry on loopback: Apicurio Registry, with its Confluent-compatible API."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir, find_java
from epochal.testing.server import Server, free_port

VERSION = "3.0.9"  # later ones need Java 21
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
)
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
START_SECONDS = 180
FETCH_SECONDS = 600


@contextmanager
def running_registry() -> Iterator[str]:
    """Start an empty registry; return the address of its API. It ends with the block."""
    program, port = unpacked(), free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="epochal-registry-") as folder:
        command = [
            *(find_java(), "-Xmx512m", f"-Dquarkus.http.port={port}"),
            *("-Dquarkus.http.host=127.0.0.1", "-Dquarkus.log.level=WARN"),
            *("-Dquarkus.analytics.disabled=true", f"-Djava.io.tmpdir={folder}"),
            *("-jar", str(program)),
        ]
        with Server("the schema registry", command, log=Path(folder, "registry.log")) as server:
            server.wait_until(lambda: answers(f"{url}/health/ready"), seconds=START_SECONDS)
            yield f"{url}/apis/ccompat/v7"


def answers(url: str) -> bool:
    """Whether a GET request succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def unpacked() -> Path:
    """Download and unpack the registry, once; return its jar."""
    target = cache_dir() / "apicurio" / VERSION
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            archive, root = Path(work, "all.tar.gz"), Path(work, "root")
            _fetch(archive)
            with tarfile.open(archive) as packed:
                packed.extractall(root, filter="data")
            try:
                os.rename(root, target)
            except OSError:
                if not target.is_dir():
                    raise
                # Another process has unpacked the same release first.
    found = sorted(target.rglob("quarkus-run.jar")) or sorted(target.rglob("*-runner.jar"))
    if not found:
        raise ComponentError(
            f"{target} has no program. Delete it; the next run downloads it again."
        )
    return found[0]


def _fetch(archive: Path) -> None:
    try:
        with (
            urllib.request.urlopen(ARCHIVE, timeout=FETCH_SECONDS) as answer,
            archive.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)
    except OSError as error:
        raise ComponentError(
            f"Cannot download {ARCHIVE}: {error}. Check that Maven Central is reachable."
        ) from error
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ComponentError(f"{ARCHIVE} has SHA-256 {found}, not {SHA256}. Try again.")
