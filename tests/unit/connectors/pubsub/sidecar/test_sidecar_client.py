"""Finding a sidecar: which JVM it belongs to, where its socket is, and cleaning up dead ones."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from epochal.connectors.pubsub.sidecar.sidecar import KeptLog, sweep
from epochal.connectors.pubsub.sidecar.sidecar_client import executor_jvm, run_directory
from epochal.connectors.pubsub.sidecar.sidecar_messages import LogLine, Read
from epochal.connectors.pubsub.sidecar.sidecar_wire import MAX_BYTES, receive, send
from epochal.errors import PubSubReaderError


def test_only_this_user_can_enter_the_directory_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = run_directory()
    assert path == tmp_path / f"epochal-{os.getuid()}"
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    with pytest.raises(PubSubReaderError, match="other users"):
        run_directory()


def test_a_worker_without_a_jvm_is_known_by_its_parent() -> None:
    pid, started = executor_jvm()
    assert pid > 0
    assert started.isdigit()


def test_a_jvm_is_known_by_its_start_too(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    code = (
        "import subprocess, sys; subprocess.run([sys.argv[1], '-c', 'from epochal.connectors.pubsub"
        ".sidecar.sidecar_client import executor_jvm; print(*executor_jvm())'])"
    )
    child = subprocess.Popen(
        [str(java), "-c", code, sys.executable], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        pid, started = child.stdout.read().split()
    assert child.wait(30) == 0
    assert int(pid) == child.pid
    assert int(started) > 0


def test_files_of_sidecars_of_dead_jvms_are_removed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(30)
    dead, live = f"sidecar-{child.pid}-1", f"sidecar-{os.getpid()}-1"
    for name in (dead, live):
        (tmp_path / f"{name}.log").write_text("words")
        (tmp_path / f"{name}.d").mkdir()
        (tmp_path / f"{name}.d" / "0.arrow").write_text("rows")
    sweep(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"{live}.d", f"{live}.log"]


def test_messages_pass_the_socket_and_oversized_ones_do_not() -> None:
    file = io.BytesIO()
    send(file, Read("", [LogLine(20, "epochal", "hello")]))
    file.seek(0)
    assert receive(file, Read) == Read("", [LogLine(20, "epochal", "hello")])
    assert receive(file, Read) is None
    with pytest.raises(PubSubReaderError, match="the most is"):
        receive(io.BytesIO((MAX_BYTES + 1).to_bytes(4, "big")), Read)
    assert receive(io.BytesIO(b"\x00\x00\x00\x09abc"), Read) is None


def test_the_log_is_kept_until_it_is_taken_and_bounded() -> None:
    import logging

    kept = KeptLog()
    for number in range(1000):
        kept.emit(logging.LogRecord("epochal.x", 20, "", 0, "line %d", (number,), None))
    lines = kept.take()
    assert (len(lines), lines[-1]) == (500, LogLine(20, "epochal.x", "line 999"))
    assert kept.take() == []
