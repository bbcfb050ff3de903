"""Starts the dashboard: opens a socket, creates a token and prints the link.

The socket is bound before the link is printed, so that the link works at once. Requests are not
logged, because the URL of the first one contains the token.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import uvicorn

from epochal.clock import SystemClock
from epochal.dashboard.app import Dashboard
from epochal.dashboard.auth import Guard, host_rule
from epochal.dashboard.board import Board
from epochal.errors import OptionError

TOKEN_BYTES = 32


def serve_dashboard(
    checkpoints: Sequence[str],
    *,
    follow: str | None,
    host: str,
    port: int,
    runs: Path,
    names: Sequence[str] = (),
    kafka: Mapping[str, str] | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve until interrupted. `ready` is called with the link that opens the page.

    `kafka`: the settings of a client for the brokers that plain Spark queries read from.
    """
    clock = SystemClock()
    board = Board(checkpoints, runs, clock)
    with closing(_listen(host, port)) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        dashboard = Dashboard(board, clock, follow, kafka)
        guarded = Guard(
            dashboard.app(),
            token=token,
            hosts=host_rule(host, names),
            # Browsers share cookies between all ports of a host. With the port in its name, two
            # dashboards on one host do not overwrite each other's cookie.
            cookie=f"epochal-{port}",
        )
        config = uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        board.start()
        try:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{port}/?token={token}")
            server = uvicorn.Server(config)
            dashboard.closing = lambda: server.should_exit
            server.run(sockets=[listener])
        finally:
            board.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OptionError(
            f"The dashboard cannot listen on {host}:{port}: {error.strerror}. Choose another "
            f"--port, or leave it out to use any free port."
        ) from None
    listener.listen(64)
    return listener
