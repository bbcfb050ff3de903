"""Whether Spark 2.4 left this checkpoint, or this sink's log, under a wrongly escaped name.

Spark before 3.0 took paths for URLs once too often: of `chk %@#chk` it made `chk%252520…`, escaped
three times, and of a file sink's `out put` it kept the log below `out%20put`. Later releases look
under the right name and stop if the wrong one is there too, so that a query does not begin anew
beside its own history. What a reader would get wrong: every part of the path counts, not the last.
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
"""What Java's URI escapes in a path; letters beyond ASCII are none of it."""

Open = Callable[[str], Files]


def escaped(location: str, times: int) -> str:
    """The name that Spark 2.4 made of a location: its path escaped, scheme and host left alone."""
    start, path = _parts(location)
    for _ in range(times):
        path = _ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)
    return start + path


def unescaped(location: str, times: int) -> str | None:
    """The location that Spark 2.4 meant by this name; None if it never made such a name."""
    start, path = _parts(location)
    for _ in range(times):
        path = unquote(path)
    meant = start + path
    return meant if meant != location and escaped(meant, times) == location else None


def checkpoint_path_rules(url: str, open_root: Open = open_files) -> Iterator[Finding]:
    """What the checkpoint's own name shows, and whether it has a twin."""
    wrong = escaped(url, CHECKPOINT_ESCAPES)
    if wrong != url and _exists(wrong, "", open_root):
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"Spark before 3.0 kept the checkpoint of {url} in {wrong}, which is there: later "
            f"releases refuse to start",
        )
    elif (meant := unescaped(url, CHECKPOINT_ESCAPES)) is not None:
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"this is the name by which Spark before 3.0 kept the checkpoint of {meant}: later "
            f"releases do not look here",
        )


def sink_path_rules(url: str, open_root: Open = open_files) -> Iterator[Finding]:
    """Whether the log of a file sink lies below a wrongly escaped twin of its output."""
    wrong = escaped(url, SINK_ESCAPES)
    if wrong != url and _exists(wrong, SINK_LOG, open_root):
        yield finding(
            "PATH_ESCAPED",
            SINK_LOG,
            f"Spark before 3.0 kept the log of {url} in {wrong}/{SINK_LOG}, which is there: later "
            f"releases refuse to write or read",
        )


def _parts(location: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?", location)
    start = found[0] if found else ""
    return start, location[len(start) :]


def _exists(location: str, path: str, open_root: Open) -> bool:
    try:
        return open_root(location).info(path) is not None
    except (EpochalError, OSError):
        return False  # as Spark has it: what may not be looked at does not stop a query
