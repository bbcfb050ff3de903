"""Asks an ASGI application without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

OWN_HOST = {"host": "127.0.0.1:8000"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: ASGIApp, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request; `path` may have a query."""
    place, _, query = path.partition("?")
    given = OWN_HOST if headers is None else {**OWN_HOST, **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def respond() -> None:
        await app(scope, receive, send)

    asyncio.run(respond())
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    headers_found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers_found, body)
