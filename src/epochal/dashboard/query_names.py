"""Gives each query a name, a place and one status, for the list of queries. Pure.

Spark does not write the name of a query into its checkpoint. A query without a run that reports its
name is therefore called after its directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from epochal.dashboard.query_runs import FAILED, LOST, RUNNING, STOPPED

ACTIVE = "active"
"""The state of a query without a run whose checkpoint was written to a moment ago."""
CHECKPOINT = "checkpoint"
"""The state of any other query without a run."""
HEALTHY, UNHEALTHY, UNREADABLE, UNKNOWN = "healthy", "unhealthy", "unreadable", "unknown"
MISSING = "missing"
"""There is no such directory."""

ATTENTION, AT_WORK, AT_REST, UNCHECKED = "attention", "running", "idle", "unchecked"
"""The groups of statuses, in the order in which the page lists them."""

_GENERIC = frozenset(
    f"{prefix}{name}{suffix}"
    for prefix in ("", "_")
    for name in ("checkpoint", "ckpt", "chk", "cp")
    for suffix in ("", "s")
)
"""Directory names that do not tell one query from another."""


def status_of(state: str, health: str) -> str:
    """The one word to show first: what needs attention, then what the query does.

    Of a query that has ended and whose checkpoint was removed there is nothing to rescue.
    """
    if state in (STOPPED, LOST) and health == MISSING:
        return MISSING
    if state in (FAILED, LOST):
        return state
    if health in (UNHEALTHY, UNREADABLE, MISSING):
        return UNREADABLE if health == MISSING else health
    if state in (RUNNING, ACTIVE):
        return state
    return HEALTHY if health == HEALTHY else UNKNOWN


def group_of(status: str) -> str:
    """The group of a status."""
    if status in (FAILED, LOST, UNHEALTHY, UNREADABLE):
        return ATTENTION
    if status in (RUNNING, ACTIVE):
        return AT_WORK
    return AT_REST if status in (HEALTHY, MISSING) else UNCHECKED


def place_of(url: str) -> str:
    """The directory that contains a checkpoint, for grouping.

    If the checkpoint's own directory has a general name such as `checkpoint`, the directory around
    it belongs to the query as well.
    """
    parts = _parts(url)
    around = parts[: -len(_own(parts))]
    return "/".join(around) or "/"


def names_of(urls: Sequence[str]) -> dict[str, str]:
    """A short name for each checkpoint: its directory, with parents where two are the same."""
    parts = {url: _parts(url) for url in urls}
    own = {url: len(_own(path)) for url, path in parts.items()}
    depth = dict.fromkeys(urls, 0)
    while True:
        names = {url: _name(parts[url], own[url], depth[url]) for url in depth}
        counted = Counter(names.values())
        same = [url for url, name in names.items() if counted[name] > 1]
        longer = [url for url in same if own[url] + depth[url] < len(parts[url])]
        if not longer:
            return names
        for url in longer:
            depth[url] += 1


def _name(parts: list[str], own: int, more: int) -> str:
    """The directory's name; a general last part is shown only if parents must tell."""
    first = max(0, len(parts) - own - more)
    last = len(parts) - 1 if own > 1 else len(parts)
    return "/".join(part for part in parts[first:last] if part) or "/".join(parts)


def _own(parts: list[str]) -> list[str]:
    """The last parts of a path that belong to one query."""
    generic = len(parts) > 1 and parts[-1].lower() in _GENERIC and parts[-2] != ""
    return parts[-2:] if generic else parts[-1:]


def _parts(url: str) -> list[str]:
    return url.rstrip("/").split("/")
