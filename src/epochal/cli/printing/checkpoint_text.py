"""Prints checkpoints, logs and reports of `verify` for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.layout import COMMITS, OWN_KEY
from epochal.cli.printing.output import (
    BOLD,
    GREEN,
    RED,
    YELLOW,
    paint,
    print_facts,
    print_line,
    print_table,
    print_text,
)
from epochal.wording import counted, of_epochs, plural, size_text, time_text

if TYPE_CHECKING:
    from epochal.tools.inspect.log_entries import Line, LogKind
    from epochal.tools.inspect.view_models import BatchView, CheckpointView, Gap
    from epochal.tools.verify.verify import Report


def newest(batches: tuple[BatchView, ...], limit: int) -> tuple[BatchView, ...]:
    return batches[len(batches) - min(limit, len(batches)) :]


def print_view(view: CheckpointView, limit: int) -> None:
    print_facts(_facts(view))
    noun = "epoch" if view.continuous else "batch"
    shown = newest(view.batches, limit)
    if shown:
        left_out = len(view.batches) - len(shown)
        title = f"{plural(noun)} ({left_out:,} older not shown)" if left_out else plural(noun)
        print_line()
        unreadable = {problem.path for problem in view.problems}
        rows = [_batch_row(batch, f"{COMMITS}/{batch.batch_id}" in unreadable) for batch in shown]
        columns = [noun, "committed", "time", "watermark", "offsets"]
        _print_without_empty(columns, rows, "watermark", title)
    _print_parts(view)
    _print_conf(view, noun)
    for change in view.conf_changes:
        before, after = change.before or "(none)", change.after or "(none)"
        place = f"setting changed in {noun} {change.batch_id}"
        print_text(f"{place}: {change.key}: {before} → {after}")
    for problem in view.problems:
        print_text(f": {problem.path}: {problem.message}", head="problem", style=RED)
    if view.problems:
        verify = f"epochal checkpoint verify {shlex.quote(view.url)}"
        print_text(f"Run `{verify}` for what is wrong and how to repair it.", "")


def _print_without_empty(
    columns: list[str], rows: list[tuple[str, ...]], name: str, title: str
) -> None:
    """Print a table; without the column `name` if no row has a value there."""
    at = columns.index(name)
    if all(row[at] in ("", "-") for row in rows):
        columns = [*columns[:at], *columns[at + 1 :]]
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    print_table(columns, rows, title=title)


def _facts(view: CheckpointView) -> list[tuple[str, str]]:
    from epochal.tools.inspect.checkpoint_diff import offsets_text
    from epochal.tools.inspect.view_models import offsets_json

    restart, restarted, place = view.restart, _restart_text(view), shlex.quote(view.url)
    versions = f"offsets {_v(view.offset_log_version)}, commits {_v(view.commit_log_version)}"
    facts = [
        ("checkpoint", view.url),
        ("query id", view.query_id or "-"),
        ("log versions", versions),
        ("a restart would", of_epochs(restarted) if view.continuous else restarted),
    ]
    if restart.start is not None:
        facts.append(("from", offsets_text(offsets_json(restart.start), None)))
    if restart.end is not None:
        facts.append(("to", offsets_text(offsets_json(restart.end), None)))
    facts += [("note", note) for note in restart.notes]
    facts += [("gap", _gap_text(gap)) for gap in view.gaps]
    if view.unpublished is not None:
        facts.append(
            (
                "unpublished",
                f"the state after epoch {view.unpublished}; before Spark runs the query, stop it "
                f"gracefully or run `epochal checkpoint publish {place} --execute`",
            )
        )
    if (owner := view.owner) is not None:
        alive = "holds the lease" if owner.has_lease else "has ended"
        facts.append(("last run", f"{owner.run_id} ({owner.purpose}) on {owner.host}, {alive}"))
    if view.edit is not None:
        facts.append(
            (
                "interrupted",
                f"{view.edit.command} ({view.edit.id}) is {view.edit.state}: run it "
                f"again to finish it, or `epochal checkpoint undo {place}"
                f"{view.edit.undo_options} --execute` to revert it",
            )
        )
    return facts


def _gap_text(gap: Gap) -> str:
    if gap.first == gap.last:
        return f"{gap.log}: {gap.first} is missing"
    return f"{gap.log}: {gap.first} to {gap.last} are missing"


def _v(version: int | None) -> str:
    return "-" if version is None else f"v{version}"


def _restart_text(view: CheckpointView) -> str:
    restart = view.restart
    match restart.action.value:
        case "begin":
            return "begin a new query at batch 0"
        case "re-run":
            return f"run batch {restart.batch_id} again, from the same offsets to the same offsets"
        case "continue":
            return f"continue with batch {restart.batch_id}"
    condition = f"[{restart.condition}] " if restart.condition else ""
    return f"fail: {condition}{restart.reason}"


def _batch_row(batch: BatchView, commit_is_unreadable: bool) -> tuple[str, ...]:
    from epochal.tools.inspect.checkpoint_diff import offsets_text

    origin = f" (made up: those of {batch.stand_in_for})" if batch.stand_in_for is not None else ""
    return (
        str(batch.batch_id),
        "?" if commit_is_unreadable else "yes" if batch.committed else "no",
        "?" if batch.timestamp_ms is None else time_text(batch.timestamp_ms),
        "?" if batch.watermark_ms is None else time_text(batch.watermark_ms),
        offsets_text(batch.offsets) + origin,
    )


def _print_parts(view: CheckpointView) -> None:
    rows: list[tuple[str, ...]] = [
        (s.name, s.kind, str(s.entries), "-" if s.latest is None else str(s.latest), s.detail)
        for s in view.sources
    ]
    if rows:
        print_line()
        columns = ["source", "kind", "entries", "latest", "detail"]
        _print_without_empty(columns, rows, "detail", "source logs")
    sinks = [
        (s.sink_name, s.provider_name, s.api_version, "yes" if s.is_active else "no")
        for s in view.sinks
    ]
    if sinks:
        print_line()
        print_table(("sink", "provider", "api", "in use"), sinks, title="sinks")
    states = [
        (
            str(operator.operator_id),
            operator.name or "-",
            operator.provider or "-",
            str(operator.partitions),
            name,
            _span([s.min_version for s in stores], [s.max_version for s in stores]),
            _span([s.latest_snapshot for s in stores], [s.latest_snapshot for s in stores]),
        )
        for operator in view.operators
        for name, stores in operator.stores.items()
    ]
    if states:
        print_line()
        names = ("operator", "name", "provider", "partitions", "store", "versions", "snapshots")
        print_table(names, states, title="state")


def _print_conf(view: CheckpointView, noun: str) -> None:
    """Print all pinned settings: a restart uses them instead of its session's."""
    pinned = next((batch for batch in reversed(view.batches) if batch.conf), None)
    if pinned is not None and pinned.conf:
        print_line()
        print_line(paint(f"settings pinned by {noun} {pinned.batch_id}", BOLD))
        for name, value in sorted(pinned.conf.items()):
            print_text(f"{name} = {value}")


def _span(lows: list[int | None], highs: list[int | None]) -> str:
    low = [bound for bound in lows if bound is not None]
    high = [bound for bound in highs if bound is not None]
    if not low or not high:
        return "-"
    return str(min(low)) if min(low) == max(high) else f"{min(low)}..{max(high)}"


def print_entries(kind: LogKind, lines: list[Line]) -> None:
    """Print the entries of a log: of each, what has changed since the one before it."""
    from epochal.tools.inspect.checkpoint_diff import (
        change_lines,
        diff_entries,
        first_lines,
        offsets_text,
    )

    number = counted(len(lines), "entry")
    if kind.is_of_files:
        batches = len({batch for batch, _ in lines})
        number = f"{counted(len(lines), 'file')} of {counted(batches, 'batch')}"
    print_line(f"{kind} log, {number}")
    if not lines:
        return
    if kind.is_of_files:
        files = [(str(batch), *_file_cells(entry)) for batch, entry in lines]
        _print_without_empty(["batch", "modified", "size", "file"], [*files], "size", "")
        return
    before: dict[str, Any] | None = None
    rows: list[tuple[str, str, str]] = []
    for batch, entry in lines:
        if not isinstance(entry, dict) or kind.is_of_a_source:
            rows.append((str(batch), "", offsets_text([entry], None)))
            continue
        changes = (
            first_lines(entry)
            if before is None
            else change_lines(diff_entries(before, entry), brief=True)
        )
        # The time of every entry differs; it has a column of its own.
        changed = "; ".join(change for change in changes if not change.startswith("time "))
        rows.append((str(batch), time_text(entry.get("timestamp_ms") or 0), changed or "no change"))
        before = entry
    noun = "epoch" if isinstance(before, dict) and OWN_KEY in before else "batch"
    if all(moment in ("", "-") for _, moment, _ in rows):
        print_table((noun, "change"), [(batch, changed) for batch, _, changed in rows])
    else:
        print_table((noun, "time", "change"), rows)


def _file_cells(entry: Any) -> tuple[str, ...]:
    size = entry.get("size")
    action = entry.get("action", "add")
    return (
        time_text(entry.get("modificationTime", entry.get("timestamp", 0))),
        "" if size is None else size_text(size),
        entry["path"] if action == "add" else f"{action} {entry['path']}",
    )


def print_report(report: Report, checkpoint: str, output: str | None = None) -> None:
    """Print what `verify` has found at a checkpoint, and at the output of its sink."""
    colours = {"error": RED, "warning": YELLOW}
    for finding in report.findings:
        from epochal.tools.verify.remedy_commands import (
            with_places,  # a healthy checkpoint needs none
        )

        colour = colours.get(str(finding.severity), "")
        severity = paint(f"{finding.severity}: {finding.code}", colour)
        print_line(f"{severity}  {finding.path}")
        print_text(f"  {finding.message}")
        remedy = with_places(
            finding.remedy, checkpoint, output, no_file_sink=report.sink.value == "absent"
        )
        print_text(f"  remedy: {remedy}", "    ")
    verdict = paint("healthy", GREEN) if report.healthy else paint("not healthy", RED)
    unsure = ", sink not checked" if report.sink.value == "not checked" else ""
    print_line(
        f"{verdict}{paint(unsure, YELLOW)}: {counted(len(report.findings), 'finding')} in "
        f"{counted(report.files, 'file')}, "
        f"{counted(report.batches, 'epoch' if report.continuous else 'batch')}"
    )
    if unsure:
        print_text(
            "Verify again with --sink and the directory that the query writes files to, or with "
            "--no-file-sink.",
            "",
        )
