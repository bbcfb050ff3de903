"""Words the plan of an edit: directory by directory, or file by file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from epochal.checkpoint.layout import STATE
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.wording import of_epochs, size_text

_NUMBER = re.compile(r"\d+")

DIRECTORY_COLUMNS = ("action", "directory", "files", "size", "why")
FILE_COLUMNS = ("action", "file", "size", "why")


def word_for_epochs(plan: Plan) -> Plan:
    """A plan that speaks of epochs, as for the checkpoint of a continuous query.

    Not its details: they quote the user's rows.
    """
    return replace(
        plan,
        summary=of_epochs(plan.summary),
        warnings=tuple(map(of_epochs, plan.warnings)),
        changes=tuple(replace(change, why=of_epochs(change.why)) for change in plan.changes),
    )


def file_rows(changes: Iterable[Change]) -> list[tuple[str, ...]]:
    """A row for each changed file."""
    return [
        (change.action, _name_path(change, change.path), size_text(change.size), change.why)
        for change in changes
    ]


def directory_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """A row for each action and directory; all partitions of an operator share one."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.action, _name_path(change, _place(change.path))), []).append(
            change
        )
    rows: list[tuple[str, ...]] = []
    for (action, place), changed in groups.items():
        folders = {_folder(change.path) for change in changed}
        if len(folders) == 1:
            place = _name_path(changed[0], folders.pop())
        size = size_text(sum(change.size for change in changed))
        rows.append((action, place, f"{len(changed):,}", size, _reasons(changed)))
    return rows


def _name_path(change: Change, path: str) -> str:
    return f"{change.root}:{path}" if change.root else path


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _place(path: str) -> str:
    """The directory of a file; `*` is the number of a state partition."""
    parts = _folder(path).split("/")
    if parts[0] == STATE and len(parts) > 2 and parts[2].isdigit():
        parts[2] = "*"
    return "/".join(parts)


def _reasons(changes: Sequence[Change]) -> str:
    """`delta of version 5 to 11, snapshot of version 8`: reasons that differ in numbers merge."""
    numbers_by_text: dict[str, list[int]] = {}
    for change in changes:
        numbers = _NUMBER.findall(change.why)
        if len(numbers) == 1:
            numbers_by_text.setdefault(_NUMBER.sub("{}", change.why), []).append(int(numbers[0]))
        else:
            numbers_by_text.setdefault(change.why.replace("{", "{{").replace("}", "}}"), [])
    words = []
    for text, numbers_of in numbers_by_text.items():
        low, high = min(numbers_of, default=0), max(numbers_of, default=0)
        words.append(text.format(low if low == high else f"{low} to {high}"))
    apart = "; " if any("," in word for word in words) else ", "
    return apart.join(word for word in words if word)
