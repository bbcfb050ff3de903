"""The commands that a check prints: each can be pasted into a shell. Pure.

Where a query writes is not in its checkpoint, so commands that add a batch ask for it: `OUTPUT`
stands for the directory of its file sink.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

ASKS_FOR_SINK = "--sink OUTPUT"


def evolve_command(url: str, operator: int, store: str, words: Sequence[str]) -> str:
    """The command that rewrites a store for another schema."""
    place = ["--operator", str(operator)]
    if store != "default":
        place += ["--store", store]
    return _edit("evolve", url, *place, *words)


def rename_words(was: Sequence[str], wants: Sequence[str]) -> list[str] | None:
    """The options that rename columns; None if the command cannot express it."""
    pairs = [(one, other) for one, other in zip(was, wants, strict=True) if one != other]
    names = [name for pair in pairs for name in pair]
    if len(set(was)) < len(was) or any("=" in name or not name for name in names):
        return None
    return [word for one, other in pairs for word in ("--rename", f"{one}={other}")]


def migrate_command(url: str, names: Mapping[int, str]) -> str:
    """The command that gives names to the sources of a checkpoint."""
    words = [word for index in sorted(names) for word in ("--name", f"{index}={names[index]}")]
    return _shell("checkpoint", "migrate-offsets", url, *words, "--execute")


def publish_command(url: str) -> str:
    """The command that writes the newest state under Spark's names."""
    return _shell("checkpoint", "publish", url, "--execute")


def repartition_command(url: str, partitions: str) -> str:
    """The command that gives state another number of partitions."""
    return _edit("repartition", url, "--partitions", partitions)


def convert_command(url: str, provider: str) -> str:
    """The command that gives state the files of another provider."""
    return _edit("convert", url, "--to", provider)


def _edit(*words: str) -> str:
    return _shell("state", *words, *ASKS_FOR_SINK.split(), "--execute")


def _shell(*words: str) -> str:
    return shlex.join(("epochal", *words))
