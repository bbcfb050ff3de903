"""Servers for tests: they end when they should, and report why they cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import eventually

from epochal.errors import ComponentError
from epochal.testing.server import Server, free_port

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    eventually(lambda: not is_running(pid), f"process {pid} ends")


def test_the_error_of_a_server_that_fails_to_start_contains_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no disk'); raise SystemExit(3)"]
    with (
        Server("Sleeper", command, log=tmp_path / "log") as server,
        pytest.raises(ComponentError, match=r"Sleeper ended with code 3(.|\n)*no disk"),
    ):
        server.wait_until(lambda: False, seconds=60)


def test_waiting_for_a_server_that_is_never_ready_times_out(tmp_path: Path) -> None:
    with (
        Server("Sleeper", SLEEP, log=tmp_path / "log") as server,
        pytest.raises(ComponentError, match="not ready after 0 s"),
    ):
        server.wait_until(lambda: False, seconds=0.1)
    assert not is_running(server.pid)


def test_a_server_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from epochal.testing.server import Server\n"
        "server = Server('Sleeper', sys.argv[2:], log=pathlib.Path(sys.argv[1]))\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log"), *SLEEP],
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_running(pid)
        os.kill(starter.pid, signal.SIGKILL)
    wait_until_gone(pid)


def test_a_free_port_is_none_that_a_client_could_get() -> None:
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(outgoing.read_text().split()[0]) if outgoing.exists() else 49_152
    assert all(free_port() < first for _ in range(100))


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", free_port()))
        port, other = used.getsockname()[1], free_port()
        monkeypatch.setattr("epochal.testing.server.PORTS", [port] * 9 + [other])
        assert free_port() == other
