"""How numbers, times and sizes are worded for people. Pure; programs get plain numbers as JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_BATCH = re.compile(r"(?<![-\w/.\"'])(?:([Aa]) )?([Bb])atch(es)?\b(?![=:]\S)")
"""Our own word: not in an option or a path, and not a name in quotes or before its value."""


def counted(number: int, noun: str) -> str:
    """`1 batch`, `2 batches`, `12,000 entries`."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular English noun."""
    if noun.endswith(("ch", "sh", "s", "x")) and not noun.endswith("epoch"):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def span(first: int, last: int, noun: str) -> str:
    """`batch 7`, `batches 7 to 9`."""
    return f"{noun} {first}" if first == last else f"{plural(noun)} {first} to {last}"


def of_epochs(text: str) -> str:
    """A text about batches, said of a continuous query: `epoch 5`, `an epoch`. Commands stay."""
    spans = text.split("`")
    spans[::2] = [_BATCH.sub(_epoch, span) for span in spans[::2]]
    return "`".join(spans)


def _epoch(match: re.Match[str]) -> str:
    article, first, more = match.groups()
    noun = ("E" if first == "B" else "e") + ("pochs" if more else "poch")
    return f"{article}n {noun}" if article else noun


def time_text(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; 0, which Spark writes for "none", as `-`."""
    if ms == 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(ms: int) -> str:
    """`250 ms`, `7.5 s`, `7 min 32 s`, `3 h 5 min`, `2 d 4 h`; two units at most."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    left = round(ms / 1000)
    for unit, seconds, smaller, size in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if left >= seconds:
            rest = left % seconds // size
            return f"{left // seconds:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{left} s"


def size_text(count: int) -> str:
    """`512 B`, `1.5 KiB`, `2.0 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
