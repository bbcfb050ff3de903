"""Describes an edit of a checkpoint as data. Pure, except for `read_tree`.

An edit is planned completely before any file is changed. A `Plan` lists every file to create,
replace or delete, with the size and time that the file had when the plan was made.
`edit_journal.py` executes plans.

Note: the order of `changes` is part of the plan. If Spark starts on a checkpoint whose edit was
interrupted, it must either continue correctly or refuse to start. It must never continue wrongly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from epochal.checkpoint.layout import ATTEMPTS, CLAIMS, EPOCHAL, STOPS
from epochal.errors import EditError
from epochal.files import FileInfo, Files
from epochal.tools.inspect.edit_status import JOURNAL_DIRECTORY

CHECKPOINT = ""
"""The root that every plan has."""
SINK = "sink"
"""The name of the output directory of a file sink among a plan's roots."""
ORIGIN = "origin"
"""The name of another checkpoint among a plan's roots: the one that is copied or closed."""

_STAGE = f"{EPOCHAL}/stage"  # earlier releases kept contents of an edit there
_STAYING = tuple(f"{each}/" for each in (ATTEMPTS, CLAIMS, STOPS, JOURNAL_DIRECTORY, _STAGE))

Action: TypeAlias = Literal["create", "replace", "delete"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size and time of a file when the plan was made."""

    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class FileRef:
    """The content of another file. It may be large, so it is read only when it is needed."""

    root: str
    path: str
    size: int


Content: TypeAlias = bytes | FileRef


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one file from `before` (None: absent) to `after` (None: deleted)."""

    path: str
    before: Stamp | None
    after: Content | None
    why: str = ""
    root: str = CHECKPOINT

    @property
    def place(self) -> tuple[str, str]:
        return self.root, self.path

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
            case FileRef(size=size):
                return size
            case bytes():
                return len(self.after)


@dataclass(frozen=True, slots=True)
class Watch:
    """A directory in which only the plan itself may add or remove files.

    The digests in the journal protect the files that a plan changes. A watch detects a query that
    has continued and written other files: then neither an edit nor its undo is safe.
    """

    directory: str
    names: tuple[str, ...]
    root: str = CHECKPOINT


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of an edit, in order. Nothing has been changed yet."""

    command: str
    summary: str
    changes: tuple[Change, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """What the changes do to single rows, for the caller to see; not kept in the journal."""
    watches: tuple[Watch, ...] = ()
    roots: Mapping[str, Files] = field(default_factory=dict)
    """The other places whose files the plan reads or changes, by name."""
    emptied: tuple[str, ...] = ()
    """Directories of the checkpoint to remove once the changes have emptied them."""

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.emptied

    @property
    def counts(self) -> str:
        """What was done to files: `3 created, 2 replaced, 40 deleted`."""
        return self._counted("{} {}d")

    @property
    def counts_to_do(self) -> str:
        """What is still to be done: `3 to create, 2 to replace, 40 to delete`."""
        return self._counted("{} to {}")

    def then(self, other: Plan) -> Plan:
        """This plan and one that was made for the files as this one leaves them."""
        changes = {change.place: change for change in self.changes}
        for change in other.changes:
            first = changes.get(change.place)
            before = change.before if first is None else first.before
            changes[change.place] = replace(change, before=before)
            if before is None and change.after is None:
                del changes[change.place]
        return replace(
            self,
            changes=tuple(changes.values()),
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            emptied=(*self.emptied, *(each for each in other.emptied if each not in self.emptied)),
        )

    def _counted(self, form: str) -> str:
        actions = [change.action for change in self.changes]
        words = [
            form.format(actions.count(action), action)
            for action in ("create", "replace", "delete")
            if action in actions
        ]
        return ", ".join(words) or "nothing to change"


class Tree:
    """The files below a root at one moment, except Epochal's own; builds changes of them."""

    def __init__(self, infos: Mapping[str, FileInfo], root: str = CHECKPOINT) -> None:
        self.infos = infos
        self.root = root
        self._paths = sorted(infos)

    def __contains__(self, path: str) -> bool:
        return path in self.infos

    def under(self, directory: str) -> Iterator[str]:
        """Yield every path below `directory`, sorted, hidden files included."""
        start = f"{directory}/" if directory else ""
        for path in self._paths[bisect_left(self._paths, start) :]:
            if not path.startswith(start):
                return
            yield path

    def names(self, directory: str) -> list[str]:
        """Return the visible names of files and directories directly in `directory`, sorted."""
        skip = len(directory) + 1 if directory else 0
        found = {path[skip:].partition("/")[0] for path in self.under(directory)}
        return sorted(name for name in found if not name.startswith("."))

    def delete(self, path: str, why: str) -> Change:
        """Delete the existing file `path`, and with it its hidden crc."""
        return Change(path, self._stamp(path), None, why, self.root)

    def write(self, path: str, content: Content, why: str) -> Change:
        """Create `path`, or replace it if it exists."""
        before = self._stamp(path) if path in self.infos else None
        return Change(path, before, content, why, self.root)

    def watch(self, directory: str) -> Watch:
        """Make the plan fail if `directory` no longer contains the same names."""
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


def stays(path: str) -> bool:
    """Whether a file belongs to a run or an edit of one checkpoint: no plan writes or copies it."""
    return path.startswith(_STAYING)


def crc_of(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def is_crc(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".crc") and len(name) > len("..crc")


def is_temporary(path: str) -> bool:
    """Whether `path` is named like a file still being written, or its checksum."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.removesuffix(".crc").endswith(".tmp")


def check_plan(plan: Plan) -> None:
    """Assert the rules that every plan must keep. A violation is a bug in a tool.

    EditError if a name cannot be written to the journal.
    """
    names = chain(
        (change.path for change in plan.changes),
        (f"{watch.directory}/{name}" for watch in plan.watches for name in watch.names),
    )
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise EditError(
                name,
                "the name of this file is not UTF-8, so the journal of an edit cannot contain it. "
                "No query writes such a file: remove it.",
            ) from None
    seen: set[tuple[str, str]] = set()
    for change in plan.changes:
        assert change.place not in seen, f"{plan.command} changes {change.path} twice"
        assert not stays(change.path), f"{plan.command} changes {change.path}"
        assert not change.root or change.root in plan.roots, change.root
        seen.add(change.place)
    for root, path in seen:
        assert (root, crc_of(path)) not in seen, f"changing {path} removes its crc already"
