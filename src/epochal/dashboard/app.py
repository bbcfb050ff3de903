"""The routes: one page, its script and style, what they ask for, and a stream of news.

Every route is a GET. A query is named by its key, so that no request carries a path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from importlib.resources import files as resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from epochal.clock import Clock
from epochal.dashboard.board import Board
from epochal.dashboard.browse import PAGE_ROWS, Place, StatsCache, offsets_page, state_page, stores
from epochal.errors import EpochalError, OptionError
from epochal.files import Files
from epochal.metrics.text import CONTENT_TYPE

NEWS_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 10.0
MAX_STREAMS = 32

STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/browse.js": ("browse.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Dashboard:
    """The routes over a board."""

    def __init__(self, board: Board, clock: Clock, follow: str | None = None) -> None:
        self._board, self._follow = board, follow
        self._stats = StatsCache(clock)
        self._streams = 0

    def app(self) -> Starlette:
        """The application, without a guard."""
        static = resources("epochal.dashboard") / "static"
        routes = [
            Route(path, _static((static / name).read_bytes(), kind))
            for path, (name, kind) in STATIC.items()
        ]
        key = "/api/queries/{key}"
        routes += [
            Route("/api/queries", self._queries),
            Route("/api/events", self._events),
            Route(f"{key}/health", self._health),
            Route(f"{key}/offsets", self._about(self._offsets)),
            Route(f"{key}/stores", self._about(self._stores)),
            Route(f"{key}/state", self._about(self._state)),
            Route(f"{key}/stats", self._about(self._partitions)),
            Route("/metrics", self._metrics),
        ]
        return Starlette(routes=routes)

    def _queries(self, request: Request) -> Response:
        return JSONResponse({"queries": self._board.summaries(), "follow": self._follow})

    def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._board.metrics(), headers={"Content-Type": CONTENT_TYPE})

    def _health(self, request: Request) -> Response:
        health = self._board.health(request.path_params["key"])
        if health is None:
            return _refused("There is no such query, or nobody has looked at it yet.", 404)
        return JSONResponse(health.as_json())

    def _about(self, answer: Callable[[Files, Request], Any]) -> Callable[[Request], Response]:
        """A route about one query's checkpoint; what cannot be read is an answer too."""

        def respond(request: Request) -> Response:
            try:
                files = self._board.files(request.path_params["key"])
                if files is None:
                    return _refused("There is no such query.", 404)
                return JSONResponse(answer(files, request))
            except OptionError as error:
                return _refused(str(error), 400)
            except (EpochalError, OSError) as error:
                return _refused(str(error), 409)

        return respond

    def _offsets(self, files: Files, request: Request) -> Any:
        return offsets_page(files, _number(request, "before"), _number(request, "limit") or 20)

    def _stores(self, files: Files, request: Request) -> Any:
        return stores(files, _number(request, "batch"))

    def _state(self, files: Files, request: Request) -> Any:
        size = _number(request, "size") or PAGE_ROWS
        return state_page(files, _place(request), _number(request, "page") or 0, size)

    def _partitions(self, files: Files, request: Request) -> Any:
        return self._stats.get(files, _place(request))

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return _refused(f"{MAX_STREAMS} pages look on already: close one.", 503)
        key = request.query_params.get("key", "")
        news = self._news(key)
        return StreamingResponse(news, media_type="text/event-stream")

    async def _news(self, key: str) -> AsyncIterator[str]:
        """What has changed, for as long as somebody listens."""
        said: dict[str, str] = {}
        sequence, run_id, silent = 0, None, 0.0
        self._streams += 1
        try:
            with self._board.watching(key):
                while True:  # until the response is cancelled, when nobody listens any more
                    told, sequence, run_id = await run_in_threadpool(
                        self._told, key, sequence, run_id
                    )
                    text = "".join(_event(name, value, said) for name, value in told)
                    silent = 0.0 if text else silent + NEWS_SECONDS
                    if text or silent >= KEEP_ALIVE_SECONDS:
                        silent = 0.0
                        yield text or ": still here\n\n"
                    await asyncio.sleep(NEWS_SECONDS)
        finally:
            self._streams -= 1

    def _told(
        self, key: str, sequence: int, run_id: str | None
    ) -> tuple[list[tuple[str, Any]], int, str | None]:
        """What is to be told now, how far that is, and of which run."""
        board = self._board
        told: list[tuple[str, Any]] = [("queries", board.summaries())]
        health = board.health(key)
        if health is not None:
            told.append(("health", {"key": key, **health.as_json()}))
        news = board.since(key, sequence)
        anew = news is not None and news["run_id"] != run_id
        if anew:
            news = board.since(key, 0)
        if news is not None and (anew or news["epochs"] or news["reports"]):
            told.append(("run", {"key": key, "anew": anew, **news}))
            sequence, run_id = news["sequence"], news["run_id"]
        return told, sequence, run_id


def _event(name: str, value: Any, said: dict[str, str]) -> str:
    """A server-sent event; empty if the last of its name said the same."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if said.get(name) == text:
        return ""
    said[name] = text
    return f"event: {name}\ndata: {text}\n\n"


def _static(content: bytes, kind: str) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        return Response(content, headers={"Content-Type": kind})

    return respond


def _refused(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise OptionError(f"{name} must be a whole number, not {text[:40]!r}.")
    return int(text)


def _place(request: Request) -> Place:
    return Place(
        operator=_number(request, "operator") or 0,
        store=request.query_params.get("store", "default"),
        batch=_number(request, "batch"),
        partition=_number(request, "partition"),
    )
