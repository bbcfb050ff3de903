"""Log lines as JSON, each with the query, run and epoch that it belongs to.

    handler.setFormatter(epochal.metrics.logs.JsonFormatter())

The engine says once per thread whom it works for; whatever is logged there, by this package, a
connector or a user's function, carries it. What a reader would get wrong: the fields are taken
when a line is formatted, so a `QueueHandler` needs `ContextFilter` on the logger's side.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_context: ContextVar[Mapping[str, str | int]] = ContextVar("epochal_log_context", default={})  # noqa: B039  never changed in place

FIELD = "epochal_context"
"""The attribute of a record that keeps the fields for a formatter in another thread."""


def set_log_context(**fields: str | int) -> None:
    """From here on lines of this thread belong to these: `query_id`, `run_id`, `epoch`, …"""
    _context.set({**_context.get(), **fields})


@contextmanager
def log_context(**fields: str | int) -> Iterator[None]:
    """As `set_log_context`, until the block ends."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class ContextFilter(logging.Filter):
    """Keeps the fields of the thread that logs with the record."""

    def filter(self, record: logging.LogRecord) -> bool:
        setattr(record, FIELD, dict(_context.get()))
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
            **getattr(record, FIELD, _context.get()),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)
