"""What all commands that change a checkpoint share.

They plan first and show the plan; they change files only with `--execute`. The plan and the outcome
are printed as tables or as JSON.
"""

from __future__ import annotations

import re
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.checkpoint.layout import STATE
from epochal.cli.command_line import (
    NOTHING_CHANGED,
    Directory,
    Json,
    SinkFlags,
    flag,
    open_place,
    option,
    says_when_interrupted,
)
from epochal.cli.printing.output import (
    EXIT_FINDINGS,
    GREEN,
    YELLOW,
    paint,
    print_json,
    print_line,
    print_table,
    print_text,
    progress,
)
from epochal.errors import OptionError
from epochal.files import Files
from epochal.tools.edit.apply_edit import DEFAULT_SETTLE_SECONDS, Applied, Conditions, apply
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import SINK, Change, Plan
from epochal.tools.inspect.edit_status import JournalEntry, JournalState, undo_of
from epochal.tools.inspect.listing import is_continuous, require_checkpoint
from epochal.tools.reporting import reporting
from epochal.wording import of_epochs, size_text

if TYPE_CHECKING:
    from epochal.tools.edit.repair import Left
    from epochal.tools.edit.repair_draft import RepairOptions
    from epochal.tools.verify.findings import Finding

OF_TWO_CHECKPOINTS = ("copy", "clone", "switch")

Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the changes. Without it, only show the plan.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List every file of the plan, not only directories.")
]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The options that every command of this kind has."""

    execute: Execute = False
    verbose: Verbose = False
    as_json: Json = False
    settle_seconds: float = option(
        "S",
        "How long to watch for a running query before changing anything, in seconds.",
        default=DEFAULT_SETTLE_SECONDS,
        min=0,
    )
    even_if_busy: bool = flag(
        "--even-if-busy", "Continue even if something seems to write to the checkpoint."
    )
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Do not ask before what cannot be undone; for scripts."
    )

    def conditions(self, places: Sequence[Files | None] = ()) -> Conditions:
        return Conditions(
            run_id=f"tool-{uuid.uuid4()}",
            settle_seconds=self.settle_seconds,
            even_if_busy=self.even_if_busy,
            places=[place for place in places if place is not None],
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointEdit(Flags, SinkFlags):
    """What commands take that change a checkpoint together with its file sink."""

    directory: Directory

    def run(
        self, command: str, make_plan: Callable[..., Plan], *, of_published: bool = True
    ) -> None:
        """Show or apply what `make_plan` returns for a survey, and for the file sink as `sink=`."""
        from epochal.tools.edit.edit_file_log import find_sink
        from epochal.tools.edit.rewind import require_published
        from epochal.tools.edit.survey import survey

        files, named = open_place(self.directory), self.open()

        def plan() -> Plan:
            surveyed = survey(files)
            if of_published:
                require_published(surveyed)
            return make_plan(surveyed, sink=find_sink(surveyed, named))

        run_edit(files, command, plan, self, places=[named.place])


def run_edit(
    files: Files,
    command: str,
    plan_batches: Callable[[], Plan],
    flags: Flags,
    more: Callable[[], dict[str, object]] = dict,
    *,
    places: Sequence[Files | None] = (),
) -> Applied | None:
    """Show a command's plan, or apply it with `--execute`; return None after a dry run.

    `places` are those outside the checkpoint that the command line names.

    `more` returns further fields for the JSON that the command learned while planning.
    """
    says_epochs = False
    if command not in OF_TWO_CHECKPOINTS:  # they may write to an empty directory
        require_checkpoint(files)
        says_epochs = is_continuous(files)

    def make_plan() -> Plan:
        plan = plan_batches()
        return word_for_epochs(plan) if says_epochs else plan

    if not flags.execute:
        if (unfinished := Journal(files).unfinished()) is not None:
            left = unfinished.id
            if flags.as_json:
                print_json({"command": command, "executed": False, "unfinished": left})
            else:
                print_text(
                    f"{left} was interrupted and is {unfinished.state}. Run the same command with "
                    f"--execute to finish it, or {undo_of(files.url, unfinished)} to revert it.",
                    "",
                )
        else:
            with progress("planning") as advance, reporting(advance):
                plan = make_plan()
            _show_plan(plan, more, flags)
        return None
    if flags.even_if_busy:
        confirm(
            "--even-if-busy changes the checkpoint even while a query writes to it. Such a query "
            "can lose or repeat rows. Is the query stopped?",
            flags,
        )
    planned: list[Plan] = []

    def plan_once() -> Plan:
        with reporting(advance):
            planned.append(make_plan())
        return planned[-1]

    with interruptible(files, command), progress(command) as advance:
        applied = apply(files, command, plan_once, flags.conditions(places), advance)
    _show_outcome(files, command, applied, planned, more, as_json=flags.as_json)
    return applied


def confirm(question: str, flags: Flags) -> None:
    """Ask before what no `undo` can take back; without a terminal and with --yes do not ask."""
    if flags.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, which Typer would report otherwise than elsewhere
        raise KeyboardInterrupt from None
    if not agreed:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(EXIT_FINDINGS)


@contextmanager
def interruptible(files: Files, command: str) -> Iterator[None]:
    """Run an edit or an undo; on Ctrl-C say how far it came, and how to go on or back."""
    before = {(entry.id, entry.state) for entry in Journal(files).entries()}

    def what_is_left() -> str:
        new = [entry for entry in Journal(files).entries() if (entry.id, entry.state) not in before]
        if not new:
            return NOTHING_CHANGED
        undo = f"`{undo_command(files, new[-1])}`"
        match new[-1].state:
            case JournalState.UNFINISHED:
                return (
                    f"Interrupted: {new[-1].id} is half done, and no query starts on the "
                    f"checkpoint meanwhile. Run the same command again to finish it, or {undo} to "
                    f"revert it."
                )
            case JournalState.HALF_UNDONE:
                return f"Interrupted: {new[-1].id} is half undone. Run {undo} to finish that."
        return f"Interrupted, but {new[-1].id} is {new[-1].state} already."

    with says_when_interrupted(what_is_left):
        yield


def undo_command(files: Files, entry: JournalEntry) -> str:
    """The command that undoes an edit, with the other places that the edit has changed."""
    words = ["epochal", "checkpoint", "undo", files.url]
    if SINK in entry.arguments:
        words += ["--sink", entry.arguments[SINK]]
    if entry.command == "switch":
        words += ["--other", entry.arguments.get("from", "")]
    return shlex.join([*words, "--execute"])


def _show_plan(plan: Plan, more: Callable[[], dict[str, object]], flags: Flags) -> None:
    if flags.as_json:
        print_json(_as_json(plan, None) | more())
        return
    print_text(f"{plan.summary}: {plan.counts_to_do}")
    for name in sorted({change.root for change in plan.changes if change.root}):
        print_line(f"also changes files in {plan.roots[name].url}")
    if plan.changes and flags.verbose:
        rows = [
            (change.action, _name_path(change, change.path), size_text(change.size), change.why)
            for change in plan.changes
        ]
        print_table(FILE_COLUMNS, rows)
    elif plan.changes:
        print_table(DIRECTORY_COLUMNS, directory_rows(plan.changes))
    for line in plan.details:
        print_text(line)
    _show_warnings(plan)
    for directory in plan.emptied:
        print_line(f"and the directory {directory} is removed")
    if not plan.is_empty:
        files = "" if flags.verbose else ", with --verbose to see every file"
        print_text(f"Nothing was changed. Run again with --execute to do it{files}.")


def _show_warnings(plan: Plan) -> None:
    for warning in plan.warnings:
        print_text(f": {warning}", head="note", style=YELLOW)


def _show_outcome(
    files: Files,
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
        print_text(f"{planned[-1].summary}: nothing to change")
    elif applied.finished_earlier:
        print_text(
            f"Finished the interrupted {command}: {entry.summary} ({entry.id}). Nothing else was "
            f"done. Run the command again to make further changes.",
            "",
        )
    else:
        print_text(f"{planned[-1].summary}: {planned[-1].counts}")
        _show_warnings(planned[-1])
        print_line(f"{paint('Done.', GREEN)} To undo {entry.id}, run")
        print_line(f"  {undo_command(files, entry)}")


def _as_json(plan: Plan, entry_id: str | None, finished_earlier: bool = False) -> dict[str, object]:
    return {
        "command": plan.command,
        "summary": plan.summary,
        "executed": entry_id is not None,
        "finished_earlier": finished_earlier,
        "journal": entry_id,
        "warnings": list(plan.warnings),
        "details": list(plan.details),
        "roots": {name: place.url for name, place in plan.roots.items()},
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


def run_repair(
    edit: CheckpointEdit,
    command: str,
    options: RepairOptions,
    is_asked_for: Callable[[Finding], bool],
    other: str = "",
) -> None:
    """Repair the findings for which `is_asked_for` is true; `other` is the remedy of the rest.

    After the changes the checkpoint is verified again. The exit status is 0 only if it is healthy.
    """
    from epochal.tools.edit.edit_file_log import find_sink
    from epochal.tools.edit.repair import Left
    from epochal.tools.edit.rewind import refuse_unpublished
    from epochal.tools.edit.survey import survey
    from epochal.tools.edit.whole_repair import Wanted, is_problem, plan_whole_repair
    from epochal.tools.verify.findings import depth_to_find
    from epochal.tools.verify.remedy_commands import with_places
    from epochal.tools.verify.verify import verify

    files, named = open_place(edit.directory), edit.open()
    planned: list[Left] = []
    depth = depth_to_find(options.codes)
    sink = named.place

    def findings_of(checkpoint: Files, output: Files | None) -> Sequence[Finding]:
        return verify(checkpoint, sink=output, depth=depth).findings

    def plan() -> Plan:
        surveyed = survey(files)
        refuse_unpublished(surveyed)
        output = find_sink(surveyed, named)
        wanted = Wanted(options, is_asked_for, other, command)
        repair = plan_whole_repair(surveyed, output, findings_of, wanted)
        planned[:] = repair.left
        return repair.plan

    def left() -> list[Left]:
        """What is left of the findings: of the plan's in a dry run, otherwise as verified."""
        if not edit.execute:
            return planned
        reasons = {(item.finding.code, item.finding.path): item.reason for item in planned}
        return [
            Left(finding, reasons.get((finding.code, finding.path), finding.remedy))
            for finding in findings_of(files, sink)
            if is_problem(finding)
        ]

    left_over: list[Left] = []

    def more() -> dict[str, object]:
        left_over[:] = left()
        return {"left": [{**item.finding.as_json(), "reason": item.reason} for item in left_over]}

    run_edit(files, command, plan, edit, more=more, places=[sink])
    if not edit.as_json:
        done = "Interrupted while the result was verified; the repair itself is done."
        told = done if edit.execute else NOTHING_CHANGED
        with says_when_interrupted(lambda: told), progress("verifying"):
            left_over[:] = left()
        for item in left_over:
            code = f"left: {item.finding.code}"
            output = None if sink is None else sink.url
            reason = with_places(item.reason, files.url, output, no_file_sink=named.is_absent)
            print_text(f" {item.finding.path}: {reason}", head=code, style=YELLOW)
    if left_over:
        raise typer.Exit(EXIT_FINDINGS)


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
