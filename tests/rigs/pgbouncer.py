"""Runs a real PgBouncer on loopback, in front of a PostgreSQL server of the tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.debian import unpacked
from tests.rigs.postgres import SUPERUSER, Postgres, as_user, give_away

from epochal.testing.server import Server, accepts, free_port

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
