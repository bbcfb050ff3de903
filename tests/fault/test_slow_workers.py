"""A task that is slow is not silent: pulses have a thread of their own. A frozen one is silent."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import pytest
from tests.waiting import eventually

from epochal.continuous.spark_job.task_hosts import TaskHosts, endpoint_of, pulsing
from epochal.rpc.envelope import RpcAddress
from epochal.rpc.server import RpcServer

SPAWN = multiprocessing.get_context("spawn")
SILENCE_SECONDS, SLOW_SECONDS = 3.0, 5.0


def compute() -> None:
    until, value = time.monotonic() + SLOW_SECONDS, 0
    while time.monotonic() < until:
        value = (value * 31 + 7) % 1_000_003


def hash_bytes() -> None:
    until, data = time.monotonic() + SLOW_SECONDS, bytes(1 << 24)
    while time.monotonic() < until:
        hashlib.sha256(data).digest()


def load_much_state() -> None:
    until, loaded = time.monotonic() + SLOW_SECONDS, []
    while time.monotonic() < until:
        loaded.append({(n,): (n, n) for n in range(100_000)})  # with all collections that it causes
        del loaded[:-3]


def wait() -> None:
    time.sleep(SLOW_SECONDS)  # as a function that calls a slow service


def run(address: RpcAddress, work: Callable[[], None]) -> None:
    with pulsing(address, "run", 1, 0, SILENCE_SECONDS):
        work()


@contextmanager
def task(work: Callable[[], None]) -> Iterator[tuple[TaskHosts, BaseProcess]]:
    """Run work in a process that sends pulses, to a driver in this process."""
    hosts = TaskHosts(SILENCE_SECONDS)
    hosts.begin(1)
    server, heard = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1"), threading.Event()

    def note(message: object, peer: bytes = b"") -> None:
        hosts.note(message, peer)  # type: ignore[arg-type]
        heard.set()

    server.register(endpoint_of("run"), note)
    server.start()
    process = SPAWN.Process(target=run, args=(server.address, work), daemon=True)
    process.start()
    try:
        assert heard.wait(60)
        yield hosts, process
    finally:
        process.kill()
        process.join(30)
        server.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("work", [compute, hash_bytes, load_much_state, wait])
def test_a_slow_task_is_never_silent(work: Callable[[], None]) -> None:
    silent: list[dict[int, float]] = []
    with task(work) as (hosts, process):
        while process.is_alive():
            silent.append(hosts.take_silent())
            process.join(0.2)
        assert process.exitcode == 0
    assert [each for each in silent if each] == []
    assert len(silent) * 0.2 > SILENCE_SECONDS


@pytest.mark.timeout(120)
def test_a_frozen_task_is_silent_after_the_timeout() -> None:
    with task(wait) as (hosts, process):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        frozen = time.monotonic()
        silent = eventually(hosts.take_silent, "the task is silent", pause=0.2)
        assert list(silent) == [0]
        assert time.monotonic() - frozen >= SILENCE_SECONDS - 1
