from __future__ import annotations

import io
import json
import logging
import threading
from typing import Any

from epochal.metrics.logs import ContextFilter, JsonFormatter, log_context, set_log_context


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        handler = logging.StreamHandler(self._out)
        handler.setFormatter(JsonFormatter())
        self.handler = handler
        self.logger = logging.Logger("test")
        self.logger.addHandler(handler)

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


def test_a_line_is_json_with_query_run_and_epoch() -> None:
    lines = Lines()
    with log_context(query_id="q", run_id="r"), log_context(epoch=7):
        lines.logger.warning("%d rows of %s", 3, "ä")
    lines.logger.info("outside")
    first, second = lines.all()
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "test",
        "message": "3 rows of ä",
        "thread": "MainThread",
        "query_id": "q",
        "run_id": "r",
        "epoch": 7,
    }
    assert "query_id" not in second


def test_what_a_thread_says_of_itself_stays_with_it() -> None:
    lines = Lines()

    def run(name: str) -> None:
        set_log_context(query_id=name)
        lines.logger.info("here")

    for name in ("a", "b"):
        thread = threading.Thread(target=run, args=(name,))
        thread.start()
        thread.join()
    lines.logger.info("here")
    assert [line.get("query_id") for line in lines.all()] == ["a", "b", None]


def test_an_exception_is_one_field_of_its_line() -> None:
    lines = Lines()
    try:
        raise ValueError("no\nwhere")
    except ValueError:
        lines.logger.exception("failed")
    (line,) = lines.all()
    assert line["exception"].endswith("ValueError: no\nwhere")


def test_a_filter_keeps_the_fields_for_a_formatter_in_another_thread() -> None:
    lines = Lines()
    record = logging.LogRecord("test", logging.INFO, __file__, 1, "later", (), None)
    with log_context(epoch=3):
        ContextFilter().filter(record)
    lines.handler.emit(record)
    assert lines.all()[0]["epoch"] == 3
