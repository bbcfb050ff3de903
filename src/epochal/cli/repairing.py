"""What `checkpoint repair` and `state repair` share: one repair, of everything or of the state.

After the changes the checkpoint is verified again. The exit status is 0 only if it is healthy then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import typer

from epochal.cli.editing import Flags, run_edit
from epochal.cli.interruption import NOTHING_CHANGED, says_when_interrupted
from epochal.cli.printing.output import EXIT_FINDINGS, YELLOW, print_text
from epochal.cli.printing.progress_bar import progress
from epochal.files import Files

if TYPE_CHECKING:
    from epochal.tools.edit.edit_plan import Plan
    from epochal.tools.edit.find_sink import NamedSink
    from epochal.tools.edit.repair import Left
    from epochal.tools.edit.repair_draft import RepairOptions
    from epochal.tools.verify.findings import Finding


def run_repair(
    files: Files,
    command: str,
    options: RepairOptions,
    named: NamedSink,
    flags: Flags,
    is_asked_for: Callable[[Finding], bool],
    other: str = "",
) -> None:
    """Repair the findings for which `is_asked_for` is true; `other` is the remedy of the rest."""
    from epochal.tools.edit.find_sink import find_sink
    from epochal.tools.edit.publish import refuse_unpublished
    from epochal.tools.edit.repair import Left
    from epochal.tools.edit.survey import survey
    from epochal.tools.edit.whole_repair import Wanted, is_problem, plan_whole_repair
    from epochal.tools.verify.depth import depth_to_find
    from epochal.tools.verify.remedies import with_places
    from epochal.tools.verify.verify import verify

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
        if not flags.execute:
            return planned
        reasons = {(each.finding.code, each.finding.path): each.reason for each in planned}
        return [
            Left(each, reasons.get((each.code, each.path), each.remedy))
            for each in findings_of(files, sink)
            if is_problem(each)
        ]

    found: list[Left] = []

    def more() -> dict[str, object]:
        found[:] = left()
        return {"left": [{**each.finding.as_json(), "reason": each.reason} for each in found]}

    run_edit(files, command, plan, flags, more=more, places=[sink])
    if not flags.as_json:
        with _told(flags), progress("verifying"):
            found[:] = left()
        for each in found:
            code = f"left: {each.finding.code}"
            output = None if sink is None else sink.url
            reason = with_places(each.reason, files.url, output, no_file_sink=named.is_absent)
            print_text(f" {each.finding.path}: {reason}", head=code, style=YELLOW)
    if found:
        raise typer.Exit(EXIT_FINDINGS)


def _told(flags: Flags) -> AbstractContextManager[None]:
    """What Ctrl-C leaves while the result of a repair is verified, or of a dry run is listed."""
    done = "Interrupted while the result was verified; the repair itself is done."
    return says_when_interrupted(lambda: done if flags.execute else NOTHING_CHANGED)
