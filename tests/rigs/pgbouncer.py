"""Runs a real PgBouncer on loopback, in front of a PostgreSQL server of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.postgres import SUPERUSER, Postgres, as_user, give_away

from epochal.errors import ComponentError
from epochal.testing.jars import cache_dir
from epochal.testing.server import Server, accepts, free_port

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


PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
START_SECONDS = 60


@contextmanager
def running_pgbouncer(server: Postgres, mode: str, *, sessions: int) -> Iterator[str]:
    """Start a pooler with this many sessions of the server; return the address of its database."""
    root, port = unpacked(*PACKAGES).root, free_port()
    folder = Path(tempfile.mkdtemp(prefix="epochal-pgbouncer-"))
    try:
        (folder / "users.txt").write_text(f'"{SUPERUSER}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"postgres = host=127.0.0.1 port={server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder}/users.txt\n"
            f"pool_mode = {mode}\ndefault_pool_size = {sessions}\n"
        )
        give_away(folder)
        program = folder / "pgbouncer"
        shutil.copy(root / "usr" / "sbin" / "pgbouncer", program)
        libraries = [path for path in root.glob("usr/lib/*-linux-gnu/*") if ".so" in path.name]
        for library in libraries:
            shutil.copy(library, folder / library.name)
        command = as_user(
            "env", f"LD_LIBRARY_PATH={folder}", str(program), f"{folder}/pgbouncer.ini"
        )
        with Server("PgBouncer", command, log=folder / "log") as pooler:
            pooler.wait_until(lambda: accepts("127.0.0.1", port), seconds=START_SECONDS)
            yield f"postgresql://{SUPERUSER}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
