"""What all commands that change a checkpoint share.

They plan first and show the plan; they change files only with `--execute`. The plan and the outcome
are printed as tables or as JSON.
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from epochal.cli.arguments import EvenIfBusy, Execute, Json, SettleSeconds
from epochal.cli.output import print_json, print_line, print_table, progress
from epochal.errors import OptionError
from epochal.files import Files
from epochal.tools.edit.apply_edit import DEFAULT_SETTLE_SECONDS, Applied, Conditions, apply
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.inspect.listing import PARTS, gather

ROWS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of the four options that every command of this kind has."""

    execute: bool
    as_json: bool
    settle_seconds: float
    even_if_busy: bool

    def conditions(self) -> Conditions:
        """The conditions under which this run applies edits."""
        return Conditions(
            run_id=f"tool-{uuid.uuid4()}",
            settle_seconds=self.settle_seconds,
            even_if_busy=self.even_if_busy,
        )


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the four options of `Flags` in place of its parameter `flags`."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "flags"]

    @wraps(command)
    def run(
        *, execute: bool, as_json: bool, settle_seconds: float, even_if_busy: bool, **given: Any
    ) -> None:
        command(**given, flags=Flags(execute, as_json, settle_seconds, even_if_busy))

    run.__signature__ = signature.replace(parameters=[*own, *_FLAGS])  # type: ignore[attr-defined]
    return run


_FLAGS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
    for name, kind, default in (
        ("execute", Execute, False),
        ("as_json", Json, False),
        ("settle_seconds", SettleSeconds, DEFAULT_SETTLE_SECONDS),
        ("even_if_busy", EvenIfBusy, False),
    )
]


def run_edit(
    files: Files,
    command: str,
    make_plan: Callable[[], Plan],
    flags: Flags,
    more: Callable[[], dict[str, object]] = dict,
) -> Applied | None:
    """Show a command's plan, or apply it with `--execute`; return None after a dry run.

    `more` returns further fields for the JSON that the command learned while planning.
    """
    _require_checkpoint(files, command)
    unfinished = Journal(files).unfinished()
    as_json = flags.as_json
    if not flags.execute and unfinished is not None:
        if as_json:
            print_json({"command": command, "executed": False, "unfinished": unfinished.id})
        else:
            print_line(
                f"{unfinished.id} was interrupted and is {unfinished.state}. Run the same command "
                f"with --execute to finish it, or undo it."
            )
        return None
    if not flags.execute:
        _show_plan(make_plan(), more, as_json=as_json)
        return None
    planned: list[Plan] = []

    def plan() -> Plan:
        planned.append(make_plan())
        return planned[-1]

    with progress(command) as advance:
        applied = apply(files, command, plan, flags.conditions(), advance)
    _show_outcome(command, applied, planned, more, as_json=as_json)
    return applied


def _require_checkpoint(files: Files, command: str) -> None:
    """Fail before anything is written to a directory that is not a checkpoint."""
    if command in ("copy", "clone", "switch"):
        return  # they may write to an empty directory
    if not {info.name for info in files.list()}.intersection(PARTS):
        gather(files)  # raises an error that names the directory


def _show_plan(plan: Plan, more: Callable[[], dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(plan, None) | more())
        return
    print_line(f"{plan.summary}: {plan.counts}")
    _show_changes(plan.changes)
    for line in plan.details:
        print_line(line)
    for warning in plan.warnings:
        print_line(f"note: {warning}")
    for directory in plan.emptied:
        print_line(f"and the directory {directory} is removed")
    if not plan.is_empty:
        print_line("Nothing was changed. Run again with --execute to do it.")


def _show_outcome(
    command: str,
    applied: Applied,
    planned: list[Plan],
    more: Callable[[], dict[str, object]],
    *,
    as_json: bool,
) -> None:
    entry = applied.entry
    if as_json:
        plan = planned[-1] if planned else Plan(command, "", ())
        done = _as_json(plan, entry.id if entry else None, applied.finished_earlier)
        print_json(done | more())
        return
    if entry is None:
        print_line(f"{planned[-1].summary}: nothing to change")
    elif applied.finished_earlier:
        print_line(
            f"Finished the interrupted {command}: {entry.summary} ({entry.id}). Nothing else was "
            f"done. Run the command again to make further changes."
        )
    else:
        print_line(f"{planned[-1].summary}: {planned[-1].counts}")
        for warning in planned[-1].warnings:
            print_line(f"note: {warning}")
        print_line(f"Done. To undo {entry.id}, run `epochal checkpoint undo`.")


def _show_changes(changes: tuple[Change, ...]) -> None:
    shown = changes[:ROWS_SHOWN] if sys.stdout.isatty() else changes
    if shown:
        print_table(
            ("action", "path", "bytes", "why"),
            [(each.action, _full_path(each), str(each.size), each.why) for each in shown],
        )
    if len(shown) < len(changes):
        print_line(f"... and {len(changes) - len(shown)} more; --json lists them all.")


def _full_path(change: Change) -> str:
    return f"{change.root}:{change.path}" if change.root else change.path


def _as_json(plan: Plan, entry_id: str | None, finished_earlier: bool = False) -> dict[str, object]:
    return {
        "command": plan.command,
        "summary": plan.summary,
        "executed": entry_id is not None,
        "finished_earlier": finished_earlier,
        "journal": entry_id,
        "warnings": list(plan.warnings),
        "details": list(plan.details),
        "roots": dict(plan.roots),
        "changes": [
            {
                "action": change.action,
                "root": change.root,
                "path": change.path,
                "bytes": change.size,
                "why": change.why,
            }
            for change in plan.changes
        ],
    }


def parse_moment(text: str) -> int:
    """Convert ISO-8601 to milliseconds since 1970; a time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{text!r} is not a time. Write it as ISO-8601, such as 2026-01-31T18:30:00Z; without "
            f"a zone it is UTC."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
