"""Runs independent checks in parallel: in processes on a local disk, in threads elsewhere.

On a local disk the checks are bound by the CPU. Each share runs in a fork of this process, which
sends its findings back through a pipe and exits. If a fork fails, this process checks its share
again, so that the original error surfaces. On other storage the checks mostly wait, for which
threads suffice, and the clients of object stores do not survive a fork.

Note: a process that has threads must not fork. Only the command line asks for more than one worker.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epochal.tools.inspect.listing import WAITING_THREADS
from epochal.tools.verify.findings import Finding, Severity

T = TypeVar("T")

Work = Callable[[Sequence[T], bool], list[Finding]]
"""Checks a share of the items. The flag tells whether this share reports progress."""

READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Child:
    process: int
    pipe: int


def check_in_processes(items: Sequence[T], work: Work[T], workers: int) -> list[Finding]:
    """Return the findings of `work` for all items, in no particular order."""
    workers = min(workers, len(items))
    if workers <= 1:
        return work(items, True)
    shares = [items[start::workers] for start in range(workers)]
    children: list[_Child] = []
    try:
        children += (_start(share, work) for share in shares[1:])
        found = work(shares[0], True)
        for share in shares[1:]:
            answer = _collect(children[0])
            del children[0]
            found.extend(work(share, False) if answer is None else answer)
    finally:
        for child in children:  # only after an error, or after Ctrl-C
            os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
    return found


def check_in_threads(items: Sequence[T], work: Work[T]) -> list[Finding]:
    """Do the same as `check_in_processes`, for work that mostly waits."""
    from concurrent.futures import ThreadPoolExecutor

    threads = min(WAITING_THREADS, len(items))
    if threads <= 1:
        return work(items, True)
    shares = [items[start::threads] for start in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        answers = pool.map(work, shares, [True] + [False] * (threads - 1))
        return [each for answer in answers for each in answer]


def _start(share: Sequence[T], work: Work[T]) -> _Child:
    receive, send = os.pipe()
    process = os.fork()
    if process:
        os.close(send)
        return _Child(process, receive)
    status = 1
    try:
        os.close(receive)
        answer = json.dumps([each.as_json() for each in work(share, False)]).encode()
        while answer:
            answer = answer[os.write(send, answer) :]
        status = 0
    finally:
        # Exit without cleanup: buffers and exit handlers belong to the parent.
        os._exit(status)


def _collect(child: _Child) -> list[Finding] | None:
    """Return a child's findings; None if it failed.

    The pipe is read to its end before waiting: a child blocks once the pipe is full.
    """
    parts = []
    while part := os.read(child.pipe, READ_BYTES):
        parts.append(part)
    os.close(child.pipe)
    _, status = os.waitpid(child.process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        return None
    return [
        Finding(
            each["code"], Severity(each["severity"]), each["path"], each["message"], each["remedy"]
        )
        for each in json.loads(b"".join(parts))
    ]
