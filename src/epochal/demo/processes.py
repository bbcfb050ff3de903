"""Finds the Python workers that run this process's tasks, so that the demo can kill one.

It works only on Linux with local Spark, like the demo. A worker is a fork of Spark's daemon or of
ours.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DAEMONS = (b"pyspark.daemon", b"epochal.warm_daemon")


def workers_below(root: int) -> list[int]:
    """The pids of the workers among the descendants of a process."""
    parents = _parents()
    family, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - family
        family |= fresh
    daemons = {pid for pid in family if _is_daemon(pid)}
    return sorted(pid for pid in daemons if parents.get(pid) in daemons)


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # the process may have ended meanwhile
                stat = Path("/proc", name, "stat").read_text()
                found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def _is_daemon(pid: int) -> bool:
    with suppress(OSError):
        command = Path("/proc", str(pid), "cmdline").read_bytes()
        return any(b"-m\0" + each in command for each in DAEMONS)
    return False
