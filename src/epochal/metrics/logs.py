"""Log lines as JSON, each with the query, run and epoch that it belongs to.

    handler.setFormatter(epochal.metrics.logs.JsonFormatter())

The engine sets these fields once per thread. Every line that is logged in the thread has them,
whether it comes from this package, a connector or a user's function.

Note: The fields are read when a line is formatted. A `QueueHandler` formats in another thread, so
add `ContextFilter` to it; the filter stores the fields in the record.
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
"""The attribute of a log record that holds the fields for a formatter in another thread."""


def set_log_context(**fields: str | int) -> None:
    """Add fields such as `query_id`, `run_id` and `epoch` to all later lines of this thread."""
    _context.set({**_context.get(), **fields})


@contextmanager
def log_context(**fields: str | int) -> Iterator[None]:
    """Add fields as `set_log_context` does, until the block ends."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class ContextFilter(logging.Filter):
    """Stores the fields of the logging thread in the record."""

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
