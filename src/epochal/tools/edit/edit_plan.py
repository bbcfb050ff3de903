"""What a writing tool wants done to a checkpoint, as data. Pure, but for `read_tree`.

An edit is decided completely before anything is touched: a `Plan` lists every file that will be
created, replaced or deleted, each with what was there when it was decided. `journal.py` carries
plans out. The one thing a reader would get wrong: the order of `changes` is part of the plan.
Should somebody start Spark on a checkpoint caught half-way, it must find one that it resumes
rightly or one that it refuses, never one that it resumes wrongly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

from epochal.checkpoint.layout import EPOCHAL
from epochal.files import FileInfo, Files

CHECKPOINT = ""
"""The root that every plan has; a plan that also changes a sink names that root itself."""

"""Where the tools keep journals and marks inside a checkpoint; Spark passes over it."""

Action: TypeAlias = Literal["create", "replace", "delete"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a listing said of a file when the plan was made."""

    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Content that is read from another file only when it is needed, because it may be large."""

    root: str
    path: str
    size: int


Content: TypeAlias = bytes | Elsewhere


@dataclass(frozen=True, slots=True)
class Change:
    """One file's step from `before` (None: absent) to `after` (None: deleted)."""

    path: str
    before: Stamp | None
    after: Content | None
    why: str = ""
    root: str = CHECKPOINT

    @property
    def action(self) -> Action:
        if self.after is None:
            return "delete"
        return "create" if self.before is None else "replace"

    @property
    def size(self) -> int:
        """Bytes written, or bytes removed by a delete."""
        match self.after:
            case None:
                return self.before.size if self.before else 0
            case Elsewhere(size=size):
                return size
            case bytes():
                return len(self.after)


@dataclass(frozen=True, slots=True)
class Watch:
    """A directory in which nothing may appear or vanish but what the plan itself changes.

    Digests protect the files a plan touches; this protects against a query that has gone on and
    written beside them, for whom an undo would come too late.
    """

    directory: str
    names: tuple[str, ...]
    root: str = CHECKPOINT


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a tool would do, in order; nothing has been done yet."""

    command: str
    summary: str
    changes: tuple[Change, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    watches: tuple[Watch, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()
    """Directories of the checkpoint to remove once the changes have emptied them."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.changes and not self.emptied

    @property
    def counts(self) -> str:
        """`3 created, 2 replaced, 40 deleted`."""
        actions = [change.action for change in self.changes]
        words = [
            f"{actions.count(action)} {action}d"
            for action in ("create", "replace", "delete")
            if action in actions
        ]
        return ", ".join(words) or "nothing to change"


class Tree:
    """The files below a root at one moment, without the tools' own; makes changes to them."""

    def __init__(self, infos: Mapping[str, FileInfo], root: str = CHECKPOINT) -> None:
        self.infos = infos
        self.root = root
        self._paths = sorted(infos)

    def __contains__(self, path: str) -> bool:
        return path in self.infos

    def under(self, directory: str) -> Iterator[str]:
        """Every path below `directory`, sorted, hidden names too."""
        start = f"{directory}/" if directory else ""
        for path in self._paths[bisect_left(self._paths, start) :]:
            if not path.startswith(start):
                return
            yield path

    def names(self, directory: str) -> list[str]:
        """The visible names of files and directories directly in `directory`, sorted."""
        skip = len(directory) + 1 if directory else 0
        found = {path[skip:].partition("/")[0] for path in self.under(directory)}
        return sorted(name for name in found if not name.startswith("."))

    def delete(self, path: str, why: str) -> Change:
        """Remove `path`, which is there; its hidden crc goes with it."""
        return Change(path, self._stamp(path), None, why, self.root)

    def write(self, path: str, content: Content, why: str) -> Change:
        """Create `path`, or replace it if it is there."""
        before = self._stamp(path) if path in self.infos else None
        return Change(path, before, content, why, self.root)

    def watch(self, directory: str) -> Watch:
        """Hold the plan to what `directory` contains now."""
        return Watch(directory, tuple(self.names(directory)), self.root)

    def _stamp(self, path: str) -> Stamp:
        info = self.infos[path]
        return Stamp(info.size, info.modified_ms)


def read_tree(files: Files, *directories: str, root: str = CHECKPOINT) -> Tree:
    """List everything below the root, or only some directories of it."""
    walks = (files.walk(directory) for directory in directories or ("",))
    found = dict(chain.from_iterable(walks))
    own = f"{EPOCHAL}/"
    return Tree({path: info for path, info in found.items() if not path.startswith(own)}, root)


def crc_of(path: str) -> str:
    """The hidden Hadoop checksum file beside `path`."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def is_crc(path: str) -> bool:
    """Whether `path` is named like a hidden Hadoop checksum file."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".crc") and len(name) > len("..crc")


def is_temporary(path: str) -> bool:
    """Whether `path` is named like a file still being written, or its checksum."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.removesuffix(".crc").endswith(".tmp")


def check_plan(plan: Plan) -> None:
    """Hold a tool to the rules that make its plan executable: our own mistakes stop here."""
    seen: set[tuple[str, str]] = set()
    for change in plan.changes:
        place = (change.root, change.path)
        assert place not in seen, f"{plan.command} changes {change.path} twice"
        assert not change.path.startswith(f"{EPOCHAL}/"), change.path
        assert not change.root or change.root in plan.roots, change.root
        seen.add(place)
    for root, path in seen:
        assert (root, crc_of(path)) not in seen, f"{path} takes its crc along"


def ancestors(path: str) -> Iterator[str]:
    """The directories that `path` lies in, outermost first."""
    parts = path.split("/")
    for length in range(1, len(parts)):
        yield "/".join(parts[:length])
