"""Starts the dashboard: opens a socket, creates a token, prints the link; authorizes requests.

The socket is bound before the link is printed, so that the link works at once. Requests are not
logged, because the URL of the first one contains the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.clock import SystemClock
from epochal.dashboard.app import Dashboard
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


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE_DAYS = 7


@dataclass(frozen=True, slots=True)
class HostRule:
    names: frozenset[str]
    any_address: bool = False
    """Whether any IP address is accepted: an attacker can rebind a name, but not an address."""

    def allows(self, header: str) -> bool:
        host = header.strip().lower()
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        elif host.count(":") == 1:
            host = host.partition(":")[0]
        if host in self.names:
            return True
        return self.any_address and is_address(host)


def host_rule(bound: str, also: Iterable[str] = ()) -> HostRule:
    """Return the rule for a server that is bound to an address."""
    names = frozenset({"localhost", "127.0.0.1", "::1", bound.lower(), *map(str.lower, also)})
    return HostRule(names, any_address=not is_loopback(bound))


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


class Guard:
    """ASGI middleware that authorizes requests before the page handles them.

        method       only GET and HEAD, since the page changes nothing
        host         only known names, which prevents DNS rebinding: another site cannot point its
                     own name at this server
        token        in the printed link, then in a cookie; programs send it as a bearer token
        other pages  requests from pages of other sites are refused, even with a valid token

    Every response has a content security policy that lets the page load nothing from other servers.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: HostRule, cookie: str) -> None:
        self._app, self._token, self._hosts, self._cookie = app, token, hosts, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that must not reach the page; None if it may."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The dashboard is read-only.\n", 405, {"Allow": "GET, HEAD"})
        if not self._hosts.allows(headers.get("host", "")):
            return PlainTextResponse(
                "The dashboard does not accept requests under this host name: start it with "
                "--allow-host NAME.\n",
                421,
            )
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if scope["path"] == "/" and tokens:
            return self._sign_in(tokens[0])
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Requests from other sites are refused.\n", 403)
        if not any(self._is_token(token) for token in self._tokens_in(headers)):
            return PlainTextResponse(
                "A valid token is required: open the link that `epochal dashboard` printed.\n",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _sign_in(self, token: str) -> Response:
        if not self._is_token(token):
            return PlainTextResponse(
                "This token is not valid: open the link that `epochal dashboard` printed last.\n",
                401,
            )
        answer = RedirectResponse("/", 303)
        age = COOKIE_DAYS * 24 * 3600
        answer.set_cookie(
            self._cookie, token, max_age=age, path="/", httponly=True, samesite="strict"
        )
        return answer

    def _tokens_in(self, headers: Headers) -> list[str]:
        tokens = []
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            tokens.append(bearer.strip())
        try:
            cookies: SimpleCookie | dict[str, Any] = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = {}
        if self._cookie in cookies:
            tokens.append(cookies[self._cookie].value)
        return tokens

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())
