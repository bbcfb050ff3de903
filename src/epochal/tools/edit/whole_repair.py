"""Plans a repair as a whole: each plan is tried in memory before anybody sees it. Never writes.

The repairs of single findings can contradict each other, and one can bring to light what another
finding has hidden. So a plan is applied to a view of the files, the view is verified, and what is
left is planned on it, until nothing changes any more. The plan that is shown is all of that.

A plan that drops committed batches must end healthy. If it does not, plans that begin with the
rewind that `verify` names are tried, and then one that drops nothing. A plan after which there is
an error that was not there before is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from epochal.errors import EditError
from epochal.files import Files
from epochal.tools.edit.edit_file_log import SinkSurvey, survey_sink
from epochal.tools.edit.edit_plan import SINK, FileRef, Plan, crc_of
from epochal.tools.edit.repair import Left, Repair, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import Survey, survey
from epochal.tools.inspect.epoch_overlay import OverlaidFiles
from epochal.tools.verify.findings import Finding, Severity
from epochal.wording import counted

ROUNDS = 6
_REWIND = re.compile(r"checkpoint rewind CHECKPOINT --to-batch (\d+)")

Verify = Callable[[Files, Files | None], Sequence[Finding]]
"""Verifies a checkpoint together with the output of its file sink."""


@dataclass(frozen=True, slots=True)
class Wanted:
    options: RepairOptions
    is_asked_for: Callable[[Finding], bool]
    other: str
    """What to do about a finding that is not asked for."""
    command: str


def plan_whole_repair(
    surveyed: Survey, sink: SinkSurvey | None, verify: Verify, wanted: Wanted
) -> Repair:
    """Plan the repair of as many findings as possible that goes well as a whole."""
    output = None if sink is None else sink.files
    found = verify(surveyed.files, output)
    start = _View(surveyed, sink, found)
    if not wanted.options.may_go_back:
        return _acceptable(start, _repaired(start, verify, wanted), wanted)
    for begun in _beginnings(start, verify):
        repair = _repaired(begun, verify, wanted)
        if repair is not None and not repair.left:
            return _completed(start, repair)
    stays = replace(wanted, options=replace(wanted.options, may_go_back=False))
    return _acceptable(start, _repaired(start, verify, stays), stays)


@dataclass(frozen=True, slots=True)
class _View:
    """A checkpoint and its output as a plan would leave them, and what is wrong with them then."""

    surveyed: Survey
    sink: SinkSurvey | None
    findings: Sequence[Finding]
    plan: Plan | None = None

    def after(self, start: _View, plan: Plan, verify: Verify) -> _View:
        """The files of `start` after the plan of this view, and then `plan`."""
        whole = plan if self.plan is None else self.plan.then(plan)
        files = _planned(start.surveyed.files, whole, "")
        output = None if start.sink is None else _planned(start.sink.files, whole, SINK)
        sink = None if output is None else survey_sink(output, start.surveyed.url)
        return _View(survey(files), sink, verify(files, output), whole)


def _beginnings(start: _View, verify: Verify) -> Iterator[_View]:
    """As it is, and after each rewind that `verify` names, the shortest way first."""
    yield start
    named = {int(n) for each in start.findings for n in _REWIND.findall(each.remedy)}
    for batch_id in sorted(named, reverse=True):
        try:
            rewind = plan_rewind(start.surveyed, batch_id, sink=start.sink)
            yield start.after(start, rewind, verify)
        except EditError:
            continue


def _repaired(view: _View, verify: Verify, wanted: Wanted) -> Repair | None:
    """Repair until nothing changes any more; None if that has no end."""
    start = replace(view, plan=None)
    for _ in range(ROUNDS):
        asked = [each for each in view.findings if wanted.is_asked_for(each)]
        repair = plan_repair(
            view.surveyed,
            asked,
            wanted.options,
            sink=view.sink,
            command=wanted.command,
            emptied=() if view.plan is None else view.plan.emptied,
        )
        if repair.plan.is_empty:
            others = (one for one in view.findings if one not in asked and is_problem(one))
            left = [*repair.left, *(Left(finding, wanted.other) for finding in others)]
            return Repair(view.plan or repair.plan, (), tuple(left))
        try:
            view = view.after(start, repair.plan, verify)
        except EditError:
            return None
    return None


def _acceptable(start: _View, repair: Repair | None, wanted: Wanted) -> Repair:
    """The repair, unless something else is broken after it."""
    before = {(each.code, each.path) for each in start.findings}
    if repair is not None:
        after = (each.finding for each in repair.left if each.finding.severity is Severity.ERROR)
        if all((each.code, each.path) in before for each in after):
            return _completed(start, repair)
    nothing = plan_repair(start.surveyed, (), wanted.options, sink=start.sink)
    left = tuple(Left(each, each.remedy) for each in start.findings if is_problem(each))
    return _completed(start, Repair(nothing.plan, (), left))


def _completed(start: _View, repair: Repair) -> Repair:
    """The repair with what it mends, and a plan that says how many findings those are."""
    left = {(each.finding.code, each.finding.path) for each in repair.left}
    mended = [
        each
        for each in start.findings
        if (each.code, each.path) not in left and is_problem(each) and not repair.plan.is_empty
    ]
    total = counted(len(mended) + len(repair.left), "finding")
    plan = replace(
        repair.plan,
        summary=f"repair {len(mended)} of {total}" if mended or repair.left else "no findings",
        arguments={
            **repair.plan.arguments,
            "codes": ",".join(sorted({each.code for each in mended})),
        },
        roots={} if start.sink is None else {SINK: start.sink.files},
    )
    return Repair(plan, tuple(mended), repair.left)


def is_problem(found: Finding) -> bool:
    """Whether a finding is worse than worth knowing."""
    return found.severity is not Severity.INFO


def _planned(files: Files, plan: Plan, root: str) -> Files:
    """The files of one root as the plan would leave them."""
    contents: dict[str, bytes] = {}
    hidden: set[str] = set(plan.emptied) if not root else set()
    for change in plan.changes:
        if change.root != root:
            continue
        hidden |= {change.path, crc_of(change.path)}
        if isinstance(change.after, FileRef):
            source = files if change.after.root == root else plan.roots[change.after.root]
            contents[change.path] = source.read(change.after.path, large=True)
        elif change.after is not None:
            contents[change.path] = change.after
    return OverlaidFiles(files, contents, hidden.__contains__)
