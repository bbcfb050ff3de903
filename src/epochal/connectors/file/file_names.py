"""Paths as Spark's logs write them, and the directories of partition columns. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from epochal.files import scheme_of

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

# What Java's URI leaves as it is in a path: letters beyond ASCII too.
_URI_ILLEGAL = re.compile(r"""[\x00-\x20\x7f"#%<>?\[\\\]^`{|}]""")
# What Hive's path names may not hold; Spark escapes the same.
_NAME_ILLEGAL = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")


def qualified(root: str) -> str:
    """A root as `FileStatus` would show it: local ones as `file:` URLs, escaped."""
    if scheme_of(root) in ("", "file"):
        path = root if not scheme_of(root) else unquote(root.partition(":")[2])
        return "file:///" + escaped(path.lstrip("/"))
    return root.rstrip("/")


def escaped(path: str) -> str:
    """`path` as it stands in a URL."""
    return _URI_ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)


def entry_path(root: str, below: str) -> str:
    """The text a log holds for the file `below` a root."""
    return f"{qualified(root).rstrip('/')}/{escaped(below)}"


def path_below(root: str, entry: str) -> str | None:
    """The path, below `root`, of a file that a log names; None if it is not below it."""
    prefix = unquote(_bare(qualified(root))).rstrip("/") + "/"
    whole = unquote(_bare(entry))
    return whole[len(prefix) :] if whole.startswith(prefix) else None


def is_hidden(name: str) -> bool:
    """Whether Spark's readers of directories pass over a name."""
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith("._COPYING_")
    )


def partition_directory(columns: Sequence[str], values: Sequence[Any]) -> str:
    """`year=2024/name=a%2Fb`, as Spark names it."""
    return "/".join(
        f"{_name(column)}={_name(_text(value))}"
        for column, value in zip(columns, values, strict=True)
    )


def partition_values(below: str) -> Mapping[str, str | None]:
    """The columns that a file's directories carry."""
    found: dict[str, str | None] = {}
    for part in below.split("/")[:-1]:
        column, equals, value = part.partition("=")
        if equals and column:
            found[unquote(column)] = None if value == NULL_PARTITION else unquote(value)
    return found


def _name(text: str) -> str:
    return _NAME_ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _text(value: Any) -> str:
    match value:
        case None | "":
            return NULL_PARTITION
        case bool():
            return str(value).lower()
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(sep=" ")
            return text.rstrip("0") if "." in text else text
        case _:
            return str(value)


def _bare(url: str) -> str:
    """A URL with its scheme in one form: `file:/a`, `file:///a`; `s3`, `s3a` and `s3n` are one."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        return "/" + url.lstrip("/")
    if scheme.lower() == "file":
        return "/" + rest.lstrip("/")
    return f"{scheme.lower().rstrip('an') if scheme.lower() in ('s3a', 's3n') else scheme}:{rest}"
