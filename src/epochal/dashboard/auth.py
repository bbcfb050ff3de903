"""Authorizes requests. Every request passes through here first.

    method       only GET and HEAD, since the page changes nothing
    host         only known names, which prevents DNS rebinding: another site cannot point its own
                 name at this server
    token        in the printed link, then in a cookie; programs send it as a bearer token
    other pages  requests from pages of other sites are refused, even with a valid token

Every response has a content security policy that lets the page load nothing from other servers.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """The host names that requests may use."""

    names: frozenset[str]
    any_address: bool = False
    """Whether any IP address is accepted: an attacker can rebind a name, but not an address."""

    def allows(self, header: str) -> bool:
        """Whether a `Host` header is accepted."""
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
    """Whether this is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


class Guard:
    """ASGI middleware that authorizes requests before the page handles them."""

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
