"""Converts paths to and from the form in Spark's logs, and names partition directories. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.files import scheme_of

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

# The characters that Java's URI escapes in a path. It leaves letters beyond ASCII as they are.
_URI_ILLEGAL = re.compile(r"""[\x00-\x20\x7f"#%<>?\[\\\]^`{|}]""")
# The characters that Hive escapes in partition directories. Spark escapes the same ones.
_NAME_ILLEGAL = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
# The characters that make a path a pattern for Hadoop.
_PATTERN = re.compile(r"[\\*?\[\]{}]")


def qualified(root: str) -> str:
    """A root as Hadoop's `FileStatus` shows it: local paths become escaped `file:` URLs."""
    if scheme_of(root) in ("", "file"):
        path = root if not scheme_of(root) else unquote(root.partition(":")[2])
        return "file:///" + escaped(path.lstrip("/"))
    return root.rstrip("/")


def escaped(path: str) -> str:
    """Escape a path for use in a URL."""
    return _URI_ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)


def entry_path(root: str, below: str) -> str:
    """The path that a log records for the file at `below`, relative to `root`."""
    return f"{qualified(root).rstrip('/')}/{escaped(below)}"


def spark_pattern(path: str) -> str:
    """The pattern by which Spark's readers, which take every path for one, find just this path.

    Their option `__globPaths__` is no way out: without globs Spark reads n such paths n times.
    """
    return _PATTERN.sub(r"\\\g<0>", path)


def path_below(root: str, entry: str) -> str | None:
    """The path of a log's file relative to `root`; None if the file is not below `root`."""
    prefix = unquote(_bare(qualified(root))).rstrip("/") + "/"
    whole = unquote(_bare(entry))
    return whole[len(prefix) :] if whole.startswith(prefix) else None


def is_hidden(name: str) -> bool:
    """Whether Spark skips this name when it lists a directory."""
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith("._COPYING_")
    )


def partition_directory(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The directory of partition values as Spark names it, such as `year=2024/name=a%2Fb`."""
    return "/".join(
        f"{_name(column)}={_name(_text(value))}"
        for column, value in zip(columns, values, strict=True)
    )


def partition_values(below: str) -> Mapping[str, str | None]:
    """The partition columns and values in the directory names of a file's path."""
    return {
        column: None if text == NULL_PARTITION else unquote(text)
        for column, text in partition_texts(below)
    }


def partition_texts(below: str) -> Iterator[tuple[str, str]]:
    """The partition columns in the directory names of a file's path, and their escaped values."""
    for part in below.split("/")[:-1]:
        column, equals, text = part.partition("=")
        if equals and column:
            yield unquote(column), text


def split(table: pa.Table, columns: Sequence[str]) -> list[tuple[str, pa.Table]]:
    """The rows of each partition directory, without the columns in the directory's name."""
    if not columns or not table.num_rows:
        return [("", table)]
    groups, first = np.zeros(table.num_rows, np.int64), np.zeros(1, np.int64)
    for name in columns:
        values: Any = pc.dictionary_encode(table.column(name).combine_chunks(), "encode")
        pairs = groups * len(values.dictionary) + values.indices.to_numpy()
        _, first, groups = np.unique(pairs, return_index=True, return_inverse=True)
    keys = zip(*(table.column(name).take(first).to_pylist() for name in columns), strict=True)
    directories = [partition_directory(columns, key) for key in keys]
    # In the order of their first rows. Several keys may have one directory: null and empty text.
    numbers = {directories[at]: 0 for at in np.argsort(first)}
    numbers = {directory: number for number, directory in enumerate(numbers)}
    places = np.array([numbers[directory] for directory in directories])[groups]
    ends = np.cumsum(np.bincount(places))[:-1]
    rows = np.split(np.argsort(places, kind="stable"), ends)
    rest = table.drop_columns(list(columns))
    return [(name, rest.take(part)) for name, part in zip(numbers, rows, strict=True)]


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
    """Normalize the scheme: `file:/a` equals `file:///a`; `s3`, `s3a` and `s3n` are the same."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        return "/" + url.lstrip("/")
    if scheme.lower() == "file":
        return "/" + rest.lstrip("/")
    return f"{scheme.lower().rstrip('an') if scheme.lower() in ('s3a', 's3n') else scheme}:{rest}"
