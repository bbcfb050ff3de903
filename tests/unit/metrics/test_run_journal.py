from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
from tests.unit.metrics.runs import RUN, epoch, progress

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
