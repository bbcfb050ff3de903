"""What a query tells of itself: its journal of runs and its log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.metrics.logs import ContextFilter, JsonFormatter, log_context, set_log_context
from epochal.metrics.run_journal import JournalTail, JournalWriter, run_files, runs_directory
from epochal.metrics.run_records import RunEnded, RunStarted, decode


def private(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_what_is_written_is_read_as_it_comes(tmp_path: Path) -> None:
    writer = JournalWriter(private(tmp_path), RUN)
    (path,) = run_files(private(tmp_path))
    tail = JournalTail(path)
    assert tail.read() == ([RUN], True)
    assert tail.read() == ([], False)
    writer.write([epoch(0), progress()])
    assert tail.read() == ([epoch(0), progress()], False)
    writer.write([RunEnded(5, "it broke")])
    writer.close()
    assert tail.read() == ([RunEnded(5, "it broke")], False)


def test_the_file_is_bounded_and_keeps_the_newest_records(tmp_path: Path) -> None:
    writer = JournalWriter(private(tmp_path), RUN, max_bytes=8_000, kept_bytes=3_000)
    (path,) = run_files(private(tmp_path))
    tail = JournalTail(path)
    tail.read()
    began_anew, seen = 0, []
    for number in range(500):
        writer.write([epoch(number)])
        assert path.stat().st_size <= 8_000
        records, anew = tail.read()
        began_anew += anew
        seen.append(records[-1])
        assert anew == (records[0] == RUN)
    assert seen == [epoch(number) for number in range(500)]
    assert began_anew > 10
    fresh, _ = JournalTail(path).read()
    assert fresh[0] == RUN
    assert fresh[1:] == [epoch(number) for number in range(501 - len(fresh), 500)]


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    line = msgspec.json.encode(RUN) + b"\n"
    path.write_bytes(line[:30])
    tail = JournalTail(path)
    assert tail.read() == ([], True)
    with path.open("ab") as file:
        file.write(line[30:])
    assert tail.read() == ([RUN], False)


def test_records_of_another_release_are_passed_over() -> None:
    assert decode(b'{"kind":"hologram","at_ms":1}') is None
    assert decode(b"not json") is None
    assert decode(b'{"kind":"end","at_ms":1,"error":null,"mood":"fine"}') == RunEnded(1)


def test_a_writer_that_was_killed_is_known_from_one_that_is_silent(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from tests.unit.metrics.runs import RUN\n"
        "from epochal.metrics.run_journal import JournalWriter\n"
        "writer = JournalWriter(pathlib.Path(sys.argv[1]), RUN)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(private(tmp_path))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (path,) = run_files(private(tmp_path))
    tail = JournalTail(path)
    tail.read()
    assert tail.alive
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    tail.read()
    assert not tail.alive


def test_of_runs_that_have_ended_the_oldest_are_forgotten(tmp_path: Path) -> None:
    def named(number: int) -> RunStarted:
        return msgspec.structs.replace(RUN, run_id=f"run-{number}")

    running = JournalWriter(private(tmp_path), named(0))
    for number in range(1, 8):
        JournalWriter(private(tmp_path), named(number)).close()
        os.utime(private(tmp_path) / f"run-{number}.jsonl", (number, number))
    os.utime(private(tmp_path) / "run-0.jsonl", (0, 0))
    JournalWriter(private(tmp_path), named(8), kept_runs=3)
    assert [path.stem for path in run_files(private(tmp_path))] == [
        *("run-0", "run-6", "run-7", "run-8")
    ]
    running.close()


def test_the_directory_is_the_users_runtime_directory_or_cache() -> None:
    assert runs_directory({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/epochal")
    assert runs_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/epochal/runs")
    assert runs_directory({}) == Path.home() / ".cache" / "epochal" / "runs"


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
