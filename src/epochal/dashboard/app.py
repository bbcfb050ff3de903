"""Defines the routes: the page with its scripts and style, its data, and a stream of events.

Every route is a GET. Requests name a query by its key, never by a path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from epochal.clock import Clock
from epochal.dashboard.board import Board
from epochal.dashboard.checkpoint_answers import (
    PAGE_ROWS,
    AnswerCache,
    HistoryReader,
    LagMeter,
    StateSelection,
    offsets_page,
    state_page,
    stats,
    stores,
)
from epochal.errors import EpochalError, OptionError
from epochal.files import Files
from epochal.metrics.prometheus import CONTENT_TYPE

NEWS_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 10.0
MAX_STREAMS = 32
HISTORY_SHARE, LAG_SHARE = 0.25, 0.5
"""Measuring lag is mostly waiting for brokers, which burdens nobody."""
SCRIPTS = ("app", "browse", "charts", "checkpoint", "format", "queries")

STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Dashboard:
    def __init__(
        self,
        board: Board,
        clock: Clock,
        follow: str | None = None,
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        """`kafka`: the settings of a client for the brokers that queries read from."""
        self._board, self._follow = board, follow
        self._stats, self._histories = AnswerCache(clock), AnswerCache(clock, HISTORY_SHARE)
        self._lags = AnswerCache(clock, LAG_SHARE)
        self._history, self._lag = HistoryReader(clock), LagMeter(kafka, clock)
        self._streams = 0
        self.closing: Callable[[], bool] = lambda: False
        """Whether the server is about to stop, so that open pages must let go."""

    def app(self) -> Starlette:
        """Return the application, without authorization."""
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
            Route(f"{key}/history", self._on_checkpoint(self._read_history)),
            Route(f"{key}/lag", self._on_checkpoint(self._measure_lag)),
            Route(f"{key}/offsets", self._on_checkpoint(self._offsets)),
            Route(f"{key}/stores", self._on_checkpoint(self._stores)),
            Route(f"{key}/state", self._on_checkpoint(self._state)),
            Route(f"{key}/stats", self._on_checkpoint(self._partitions)),
            Route("/metrics", self._metrics),
        ]
        return Starlette(routes=routes)

    def _queries(self, request: Request) -> Response:
        runs, home = self._board.runs, Path.home()
        shown = f"~/{runs.relative_to(home)}" if runs.is_relative_to(home) else str(runs)
        queries = self._board.summaries()
        return _JsonResponse({"queries": queries, "follow": self._follow, "runs": shown})

    def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._board.metrics(), headers={"Content-Type": CONTENT_TYPE})

    def _health(self, request: Request) -> Response:
        health = self._board.health(request.path_params["key"])
        if health is None:
            return _error("There is no such query, or its checkpoint is not checked yet.", 404)
        return _JsonResponse(health.as_json())

    def _on_checkpoint(
        self, answer: Callable[[Files, Request], Any]
    ) -> Callable[[Request], Response]:
        """Make a route that reads one query's checkpoint.

        A checkpoint that cannot be read is an answer, not a failed request: the page shows why.
        """

        def respond(request: Request) -> Response:
            try:
                files = self._board.files(request.path_params["key"])
                if files is None:
                    return _error("There is no such query.", 404)
                return _JsonResponse(answer(files, request))
            except OptionError as error:
                return _error(str(error), 400)
            except (EpochalError, OSError, RecursionError) as error:
                return _JsonResponse({"problem": str(error)})

        return respond

    def _read_history(self, files: Files, request: Request) -> Any:
        return self._histories.get(files.url, lambda: self._history.read(files))

    def _measure_lag(self, files: Files, request: Request) -> Any:
        def measure() -> dict[str, Any]:
            sources = self._read_history(files, request)["sources"]
            return {"sources": self._lag.add_lag(files, sources)}

        return self._lags.get(files.url, measure)

    def _offsets(self, files: Files, request: Request) -> Any:
        return offsets_page(files, _number(request, "before"), _number(request, "limit") or 20)

    def _stores(self, files: Files, request: Request) -> Any:
        return stores(files, _number(request, "batch"))

    def _state(self, files: Files, request: Request) -> Any:
        size = _number(request, "size") or PAGE_ROWS
        return state_page(files, _selection(request), _number(request, "page") or 0, size)

    def _partitions(self, files: Files, request: Request) -> Any:
        selection = _selection(request)
        return self._stats.get((files.url, selection), lambda: stats(files, selection))

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return _error(f"{MAX_STREAMS} pages are open, the maximum: close one.", 503)
        key = request.query_params.get("key", "")
        news = self._event_stream(key)
        return StreamingResponse(news, media_type="text/event-stream")

    async def _event_stream(self, key: str) -> AsyncIterator[str]:
        """Yield events about what has changed, as long as the page is open."""
        sent: dict[str, str] = {}
        sequence, run_id, silent = 0, None, 0.0
        self._streams += 1
        try:
            with self._board.watching(key):
                while not self.closing():  # closing the page cancels the response
                    changes, sequence, run_id = await run_in_threadpool(
                        self._changes, key, sequence, run_id
                    )
                    text = "".join(_event(name, value, sent) for name, value in changes)
                    silent = 0.0 if text else silent + NEWS_SECONDS
                    if text or silent >= KEEP_ALIVE_SECONDS:
                        silent = 0.0
                        yield text or ": keep-alive\n\n"
                    await asyncio.sleep(NEWS_SECONDS)
        finally:
            self._streams -= 1

    def _changes(
        self, key: str, sequence: int, run_id: str | None
    ) -> tuple[list[tuple[str, Any]], int, str | None]:
        """Return the events to send, and the sequence number and run that they reach."""
        board = self._board
        changes: list[tuple[str, Any]] = [("queries", board.summaries())]
        health = board.health(key)
        if health is not None:
            changes.append(("health", {"key": key, **health.as_json()}))
        news = board.since(key, sequence)
        anew = news is not None and news["run_id"] != run_id
        if anew:
            news = board.since(key, 0)
        if news is not None and (anew or news["epochs"] or news["reports"]):
            changes.append(("run", {"key": key, "anew": anew, **news}))
            sequence, run_id = news["sequence"], news["run_id"]
        return changes, sequence, run_id


def _json_text(value: Any) -> str:
    """JSON in ASCII: the names of files need not be text that UTF-8 can encode."""
    return json.dumps(value, separators=(",", ":"))


class _JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _json_text(content).encode()


def _event(name: str, value: Any, sent: dict[str, str]) -> str:
    """Format a server-sent event; empty if it equals the last one of its name."""
    text = _json_text(value)
    if sent.get(name) == text:
        return ""
    sent[name] = text
    return f"event: {name}\ndata: {text}\n\n"


def _static(content: bytes, kind: str) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        return Response(content, headers={"Content-Type": kind})

    return respond


def _error(message: str, status: int) -> Response:
    return _JsonResponse({"error": message}, status)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise OptionError(f"{name} must be a whole number, not {text[:40]!r}.")
    return int(text)


def _selection(request: Request) -> StateSelection:
    return StateSelection(
        operator=_number(request, "operator") or 0,
        store=request.query_params.get("store", "default"),
        batch=_number(request, "batch"),
        partition=_number(request, "partition"),
    )
