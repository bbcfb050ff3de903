"""Runs a real PostgreSQL server on loopback, as an unprivileged user, with its data in a folder.

The server is found, or installed, by `scripts/find-postgres`. It refuses to run as root, so root
starts it as user `postgres`, or `nobody` if there is no such user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.server import Server, free_port

START_SECONDS = 60
ROOT = Path(__file__).resolve().parents[2]
SUPERUSER = "epochal"


class Postgres:
    """A server that can be killed and started again with its data on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bin = folder, programs()
        self._port = free_port()
        self._server: Server | None = None
        give_away(folder)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", SUPERUSER, "-E", "UTF8")
        # Passwords are asked for by users that have one in their name.
        hba = self._data / "pg_hba.conf"
        hba.write_text(f"host all asked 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
        self.start()

    @property
    def url(self) -> str:
        """The address of the superuser's database."""
        return self.url_of(SUPERUSER)

    def url_of(self, user: str) -> str:
        """The address for another user."""
        return f"postgresql://{user}@127.0.0.1:{self._port}/postgres"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Start the server, with the data that it has."""
        command = [
            *as_user(str(self._bin / "postgres"), "-D", str(self._data)),
            *("-p", str(self._port), "-k", str(self._folder), "-h", "127.0.0.1"),
            *("-c", "shared_buffers=64MB", "-c", "max_connections=40"),
        ]
        self._server = Server("PostgreSQL", command, log=self._folder / "server.log")
        self._server.wait_until(self._answers, seconds=START_SECONDS)

    def kill(self) -> None:
        """Kill the server and its sessions; what was committed stays."""
        assert self._server is not None
        self._server.stop()
        self._server = None

    def close(self) -> None:
        if self._server is not None:
            self.kill()

    def psql(self, statement: str, *, user: str = SUPERUSER) -> str:
        """What `psql` prints for a statement: a row per line, columns separated by `|`."""
        command = [self._client("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        run = subprocess.run(
            [*command, "-d", self.url_of(user), "-c", statement],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if run.returncode != 0:
            raise AssertionError(f"{statement}: {run.stderr}")
        return run.stdout.rstrip("\n")

    def rows(self, statement: str) -> list[str]:
        """The rows that `psql` prints."""
        return self.psql(statement).splitlines()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _client(self, name: str) -> str:
        beside = self._bin / name
        return str(beside) if beside.exists() else name

    def _answers(self) -> bool:
        command = [self._client("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *words: str) -> None:
        command = as_user(str(self._bin / program), "--no-sync", *words)
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if run.returncode != 0:
            raise ComponentError(f"{program} ended with {run.returncode}: {run.stderr[-2000:]}")


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new server, which ends with the block; its data goes too."""
    folder = Path(tempfile.mkdtemp(prefix="epochal-postgres-"))
    try:
        server = Postgres(folder)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def programs() -> Path:
    """The directory of the server's programs. Raises if it is neither there nor installable."""
    run = subprocess.run(
        [str(ROOT / "scripts" / "find-postgres")], capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise ComponentError(run.stderr.strip().splitlines()[-1])
    return Path(run.stdout.strip())


def _user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ComponentError("PostgreSQL does not run as root, and there is no user for it.")


def give_away(folder: Path) -> None:
    """Let the user that servers run as have a folder."""
    if os.getuid() == 0:
        user = _user()
        os.chown(folder, user.pw_uid, user.pw_gid)


def as_user(*command: str) -> list[str]:
    """A command for an unprivileged user, with a clean environment."""
    clean = ["env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *command]
    if os.getuid() != 0:
        return clean
    user = _user()
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return ["setpriv", *ids, *clean]
