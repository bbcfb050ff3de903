"""Finds checkpoints and sink logs that Spark 2.4 stored under a wrongly escaped name.

Spark before 3.0 escaped special characters in paths as if they were URLs. It stored the checkpoint
`chk %@#chk` in `chk%252520…` (escaped three times), and the log of a file sink's output `out put`
below `out%20put` (escaped once). Later releases use the right name. They refuse to start if the
escaped name exists too, because the query would begin from scratch beside its own history.

Note: every component of the path is escaped, not only the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from epochal.checkpoint.layout import SINK_LOG
from epochal.errors import EpochalError
from epochal.files import Files, open_files
from epochal.tools.verify.findings import Finding, finding

CHECKPOINT_ESCAPES = 3
SINK_ESCAPES = 1
_ILLEGAL = re.compile(r"""[\x00-\x20\x7f"#%<>?\[\\\]^`{|}]""")
"""The characters that Java's URI escapes in a path. It leaves letters beyond ASCII alone."""

Open = Callable[[str], Files]


def escaped(location: str, times: int) -> str:
    """Escape the path of a location as Spark 2.4 did, leaving scheme and host alone."""
    start, path = _parts(location)
    for _ in range(times):
        path = _ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)
    return start + path


def unescaped(location: str, times: int) -> str | None:
    """Return the location that Spark 2.4 escaped to this one; None if there is none."""
    start, path = _parts(location)
    for _ in range(times):
        path = unquote(path)
    meant = start + path
    return meant if meant != location and escaped(meant, times) == location else None


def checkpoint_path_rules(url: str, open_root: Open = open_files) -> Iterator[Finding]:
    """Check whether the checkpoint's path is escaped, or has an escaped twin."""
    wrong = escaped(url, CHECKPOINT_ESCAPES)
    if wrong != url and _exists(wrong, "", open_root):
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"Spark before 3.0 stored the checkpoint of {url} in {wrong}, which exists: later "
            f"releases refuse to start",
        )
    elif (meant := unescaped(url, CHECKPOINT_ESCAPES)) is not None:
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"Spark before 3.0 stored the checkpoint of {meant} under this name: later releases "
            f"do not look here",
        )


def sink_path_rules(url: str, open_root: Open = open_files) -> Iterator[Finding]:
    """Check whether the log of a file sink is below an escaped twin of its output directory."""
    wrong = escaped(url, SINK_ESCAPES)
    if wrong != url and _exists(wrong, SINK_LOG, open_root):
        yield finding(
            "PATH_ESCAPED",
            SINK_LOG,
            f"Spark before 3.0 stored the log of {url} in {wrong}/{SINK_LOG}, which exists: later "
            f"releases refuse to write to or read from the output directory",
        )


def _parts(location: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?", location)
    start = found[0] if found else ""
    return start, location[len(start) :]


def _exists(location: str, path: str, open_root: Open) -> bool:
    try:
        return open_root(location).info(path) is not None
    except (EpochalError, OSError):
        return False  # like Spark, which ignores a twin that it is not allowed to look at
