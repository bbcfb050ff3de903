"""Lists the edits in a checkpoint's journal, and finds one that was interrupted.

`tools.edit` writes the journal. This module reads only the part that read-only tools show, so that
they do not depend on the tools that change a checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from epochal.checkpoint.layout import EPOCHAL
from epochal.errors import MalformedFileError, UnsupportedVersionError
from epochal.files import Files, join_url

JOURNAL_DIRECTORY: Final = f"{EPOCHAL}/journal"
PLAN_FILE: Final = "plan.json"
FORMAT_VERSION: Final = 1

T = TypeVar("T")

_ENTRY_NAME = re.compile(r"\d+-[a-z-]+")


class JournalState(StrEnum):
    """The progress of an edit or of its undo."""

    UNFINISHED = "unfinished"
    DONE = "done"
    HALF_UNDONE = "half undone"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One edit in the journal, as `undo --list` shows it."""

    id: str
    command: str
    arguments: Mapping[str, str]
    summary: str
    started_ms: int
    changes: int
    state: JournalState


class _PlanHeader(msgspec.Struct):
    """The part of `plan.json` that a `JournalEntry` shows."""

    command: str
    arguments: dict[str, str]
    summary: str
    started_ms: int
    changes: list[msgspec.Raw]


class _Versioned(msgspec.Struct):
    version: int


def entry_path(entry_id: str) -> str:
    """The directory of one edit, relative to the checkpoint."""
    return f"{JOURNAL_DIRECTORY}/{entry_id}"


def entry_ids(files: Files) -> list[str]:
    """List the journal's directories, oldest first. Some may not contain a plan yet."""
    return [
        info.name
        for info in files.list(JOURNAL_DIRECTORY)
        if info.is_dir and _ENTRY_NAME.fullmatch(info.name)
    ]


def entry_state(files: Files, entry_id: str) -> JournalState:
    marks = {info.name for info in files.list(entry_path(entry_id))}
    if "undone" in marks:
        return JournalState.UNDONE
    if "undoing" in marks:
        return JournalState.HALF_UNDONE
    return JournalState.DONE if "done" in marks else JournalState.UNFINISHED


def journal_entries(files: Files) -> list[JournalEntry]:
    """List the edits that have a plan, oldest first.

    A directory without a plan belongs to an edit that crashed before it changed anything.
    """
    entries = []
    for entry_id in entry_ids(files):
        path = f"{entry_path(entry_id)}/{PLAN_FILE}"
        try:
            raw = files.read(path)
        except FileNotFoundError:
            continue
        header = decode_plan(raw, _PlanHeader, join_url(files.url, path))
        shown = {**msgspec.structs.asdict(header), "changes": len(header.changes)}
        entries.append(JournalEntry(id=entry_id, state=entry_state(files, entry_id), **shown))
    return entries


def unfinished_edit(files: Files) -> JournalEntry | None:
    """Return the newest edit or undo that was interrupted, if any."""
    states = (JournalState.UNFINISHED, JournalState.HALF_UNDONE)
    interrupted = [entry for entry in journal_entries(files) if entry.state in states]
    return interrupted[-1] if interrupted else None


def undo_of(url: str, entry: JournalEntry) -> str:
    """The command that undoes an edit; the user fills in other places than the checkpoint's."""
    return f"`epochal checkpoint undo {shlex.quote(url)}{undo_options(entry)} --execute`"


def undo_options(entry: JournalEntry) -> str:
    """The options that an undo of the edit needs: the user fills in the places."""
    sink = " --sink OUTPUT" if "sink" in entry.arguments else ""
    return f"{sink} --other OTHER" if entry.command == "switch" else sink


def decode_plan(raw: bytes, kind: type[T], url: str) -> T:
    """Decode the content of `plan.json` as a `kind`. Errors name `url`."""
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
        if version > FORMAT_VERSION:
            raise UnsupportedVersionError(url, version, FORMAT_VERSION)
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedFileError(url, str(error)) from None
