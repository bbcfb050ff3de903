"""Verifies a checkpoint: lists it once, applies every rule and returns the findings.

It never writes. Damaged content never raises: a file that cannot be read becomes a finding. An
error means that there is no checkpoint to verify.

Spark before 3.0 escaped special characters in paths as if they were URLs, in every component. It
stored the checkpoint `chk %@#chk` in `chk%252520…` (escaped three times), and the log of a file
sink's output `out put` below `out%20put` (escaped once). Later releases use the right name. They
refuse to start if the escaped name exists too, because the query would begin from scratch beside
its own history.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import unquote

from epochal.checkpoint.layout import EPOCHAL, EPOCHS, METADATA, SINK_LOG, SOURCES, STATE
from epochal.errors import CheckpointError, CheckpointSwitchedError, EpochalError
from epochal.files import Files, open_files
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.inspect.listing import (
    CheckpointListing,
    Directories,
    LogListing,
    gather,
    list_all,
    require_directory,
)
from epochal.tools.inspect.state_listing import OperatorListing, operators_of
from epochal.tools.verify.check_logs import log_file_rules, log_rules
from epochal.tools.verify.findings import (
    Depth,
    Finding,
    Progress,
    Severity,
    by_weight,
    finding,
    is_healthy,
)
from epochal.wording import of_epochs

if TYPE_CHECKING:
    from epochal.tools.verify.check_state import StateFacts

CHECKPOINT_ESCAPES = 3
SINK_ESCAPES = 1
_ILLEGAL = re.compile(r"""[\x00-\x20\x7f"#%<>?\[\\\]^`{|}]""")
"""The characters that Java's URI escapes in a path. It leaves letters beyond ASCII alone."""


class SinkCheck(StrEnum):
    """Whether the log of the query's file sink was checked, too."""

    CHECKED = "checked"
    ABSENT = "absent"
    """The caller says that the query writes to no file sink."""
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings, worst first, and how many files and batches were checked."""

    url: str
    findings: tuple[Finding, ...]
    files: int
    batches: int
    depth: Depth
    continuous: bool = False
    """Whether the batches are the epochs of a continuous query; the findings say so."""
    sink: SinkCheck = SinkCheck.NOT_CHECKED

    @property
    def healthy(self) -> bool:
        return is_healthy(self.findings)

    def as_json(self) -> dict[str, object]:
        return {
            "healthy": self.healthy,
            "sink": self.sink.value,
            "findings": [each.as_json() for each in self.findings],
        }


def verify(
    files: Files,
    *,
    depth: Depth = Depth.NORMAL,
    sink: Files | None = None,
    no_file_sink: bool = False,
    progress: Progress | None = None,
    workers: int = 1,
) -> Report:
    """Verify a checkpoint and, with `sink`, the output directory of its file sink.

    With `no_file_sink` the query has none. A report without either of them says so. `files` may
    also be such an output directory itself. With `workers` above one, this process
    forks if there are many files to read. A process that has threads must not ask for that.
    """
    checked = SinkCheck.CHECKED if sink is not None else SinkCheck.NOT_CHECKED
    if no_file_sink:
        checked = SinkCheck.ABSENT
    twin = list(checkpoint_path_rules(files.url))
    if twin and files.info("") is None:
        return Report(files.url, tuple(twin), 0, 0, depth, sink=checked)
    require_directory(files)
    directories = list_all(files)
    if SINK_LOG in directories[""].folders:
        return _verify_sink(files, directories, depth)
    view = view_with_epochs(files)
    if view.files is not files:
        files, directories = view.files, list_all(view.files)
    listing = gather(files, directories)
    found = list(twin)
    if view.broken is not None:
        found.append(finding("EPOCH_FILE_BROKEN", EPOCHS, str(view.broken)))
    elif view.unpublished is not None:
        message = f"Spark's files do not have the state after batch {view.unpublished}"
        found.append(finding("STATE_UNPUBLISHED", STATE, message))
    found += _checkpoint_rules(listing, has_file_sink=sink is not None)
    operators = operators_of(directories)
    if listing.is_stateful and view.broken is None:
        from epochal.tools.verify.check_operators import state_rules

        facts = state_facts(listing)
        found.extend(state_rules(listing, operators, facts, depth, progress, workers))
    sink_log, hidden = None, set(directories.unreadable)
    if sink is not None:
        from epochal.tools.inspect.source_listing import read_sink_log

        require_directory(sink)
        in_sink = list_all(sink)
        hidden.update(in_sink.unreadable)
        of_sink = _sink_rules(sink, in_sink, listing, operators)
        if isinstance(listing.metadata, CheckpointSwitchedError):
            # The batches that only the sink has are those of the checkpoint that took over.
            others = ("SINK_AHEAD", "SINK_OF_ANOTHER_QUERY")
            of_sink = (each for each in of_sink if each.code not in others)
        found.extend(of_sink)
        sink_log = read_sink_log(sink, in_sink)
    found = list(_without_repeats(found, hidden))
    if found:
        from epochal.tools.verify.remedies import with_exact_remedies

        found = list(with_exact_remedies(found, listing, operators, sink_log=sink_log))
    if listing.is_continuous:
        found = [
            replace(each, message=of_epochs(each.message), remedy=of_epochs(each.remedy))
            for each in found
        ]
    ordered = tuple(by_weight(found))
    counts = directories.file_count, len(listing.offsets.ids)
    return Report(files.url, ordered, *counts, depth, listing.is_continuous, checked)


def _verify_sink(files: Files, directories: Directories, depth: Depth) -> Report:
    of_sink = list(_sink_rules(files, directories, None))
    found = tuple(by_weight(_without_repeats(of_sink, directories.unreadable)))
    batches = sum(not name.startswith(".") for name in directories[SINK_LOG].files)
    total = directories.file_count
    return Report(files.url, found, total, batches, depth, sink=SinkCheck.CHECKED)


def state_facts(listing: CheckpointListing) -> StateFacts:
    from epochal.tools.verify.check_state import StateFacts

    newest = listing.offsets.latest
    version = listing.restart_version
    decided = listing.commits.entries.get(version - 1)
    return StateFacts(
        restart_version=version,
        newest_version=None if newest is None else newest + 1,
        from_the_start=0 in listing.offsets.entries,
        partitions=listing.partitions_at(version - 1) or listing.partitions_at(version),
        counts=listing.partition_counts,
        has_epoch_files=EPOCHS in listing.directories[""].folders,
        unique_ids=None if decided is None else decided.state_unique_ids,
    )


def _checkpoint_rules(listing: CheckpointListing, *, has_file_sink: bool) -> Iterator[Finding]:
    from epochal.tools.verify.check_files import crc_rules, source_rules

    yield from _directory_rules(listing.directories)
    for part in listing.misplaced:
        yield finding("NOT_A_DIRECTORY", part, "it is a file")
    yield from log_rules(listing, has_file_sink=has_file_sink)
    raw = {METADATA: listing.metadata_raw} if listing.metadata_raw else {}
    yield from crc_rules(listing.files, "", listing.directories[""], raw)
    for log in (listing.offsets, listing.commits):
        yield from crc_rules(listing.files, log.path, log.directory, log.raw, log.latest)
    if listing.directories[SOURCES].folders:
        from epochal.tools.inspect.source_listing import read_sources

        sources = read_sources(listing.files, listing.directories)
        for source in sources.values():
            yield from _log_with_crc_rules(listing.files, source.log)
        yield from source_rules(listing, sources)
    if EPOCHAL in listing.directories[""].folders:
        yield from _journal_rules(listing)


def _directory_rules(directories: Directories) -> Iterator[Finding]:
    for path, error in sorted(directories.unreadable.items()):
        yield finding("FILE_UNREADABLE", path or ".", error.reason)


def _log_with_crc_rules(files: Files, log: LogListing[object]) -> Iterator[Finding]:
    from epochal.tools.verify.check_files import crc_rules

    yield from log_file_rules(log)
    yield from crc_rules(files, log.path, log.directory, log.raw, log.latest)


def _sink_rules(
    output: Files,
    directories: Directories,
    listing: CheckpointListing | None,
    operators: Sequence[OperatorListing] = (),
) -> Iterator[Finding]:
    """Check a sink's output directory, and compare it with the checkpoint in `listing`."""
    from epochal.tools.inspect.source_listing import read_sink_log
    from epochal.tools.verify.check_files import (
        file_log_rules,
        foreign_rules,
        sink_rules,
        skipped_rules,
    )

    twin = list(sink_path_rules(output.url))
    yield from twin
    if SINK_LOG not in directories[""].folders:
        if twin:
            return
        raise CheckpointError(
            f"{output.url} has no {SINK_LOG} directory, so it is not the output of a streaming "
            f"file sink. Pass the directory that the query uses as its output path. If this is it, "
            f"the log was deleted: restore it from a backup, or start over with an empty "
            f"checkpoint directory and a new output directory."
        )
    yield from _directory_rules(directories)
    log = read_sink_log(output, directories)
    yield from _log_with_crc_rules(output, log)
    yield from file_log_rules(log)
    names = (name for directory in directories.by_path.values() for name in directory.files)
    if listing is None:
        yield from sink_rules(log, names, None)
    elif foreign := list(foreign_rules(log, listing)):
        yield from foreign
    else:
        yield from sink_rules(log, names, listing.offsets.latest, listing.commits.latest)
        yield from skipped_rules(log, listing, operators)


def _journal_rules(listing: CheckpointListing) -> Iterator[Finding]:
    from epochal.tools.inspect.edit_status import JournalState, undo_options, unfinished_edit

    try:
        unfinished = unfinished_edit(listing.files)
    except (EpochalError, OSError) as error:
        yield finding("EDIT_UNFINISHED", EPOCHAL, f"the journal cannot be read: {error}")
        return
    if unfinished is not None:
        undo = f"`epochal checkpoint undo CHECKPOINT{undo_options(unfinished)}`"
        yield finding(
            "EDIT_UNFINISHED",
            f"{EPOCHAL}/journal/{unfinished.id}",
            f"{unfinished.command} is {unfinished.state}: {unfinished.summary}",
            remedy=f"Run the same command again to finish it, or {undo} to revert it."
            if unfinished.state is JournalState.UNFINISHED
            else f"Use {undo} to finish the undo.",
        )


def _without_repeats(findings: list[Finding], hidden: Collection[str]) -> Iterator[Finding]:
    """Leave out what follows from another finding about the same file.

    That is a stale checksum of a broken file, and a link or a pipe that is found in its directory
    and again by those who would read it. In `hidden` directories, which could not be listed, all
    files seem to be missing; whoever may not look there must not be told to start over.
    """
    broken = {
        each.path
        for each in findings
        if each.severity is Severity.ERROR and not each.code.startswith("CRC_")
    }
    unreadable: set[str] = set()
    for each in findings:
        if each.code in ("CRC_STALE", "CRC_REFUSED") and each.path in broken:
            continue
        if each.code != "FILE_UNREADABLE" and any(
            f"{each.path}/".startswith(f"{path}/") for path in hidden
        ):
            continue
        if each.code == "FILE_UNREADABLE":
            if each.path in unreadable:
                continue
            unreadable.add(each.path)
        yield each


def escaped(location: str, times: int) -> str:
    """Escape the path of a location as Spark 2.4 did, leaving scheme and host alone."""
    start, path = _parts(location)
    for _ in range(times):
        path = _ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)
    return start + path


def unescaped(location: str, times: int) -> str | None:
    """Return the location that Spark 2.4 escaped to this one; None if there is none."""
    start, path = _parts(location)
    for _ in range(times):
        path = unquote(path)
    meant = start + path
    return meant if meant != location and escaped(meant, times) == location else None


def checkpoint_path_rules(url: str) -> Iterator[Finding]:
    """Check whether the checkpoint's path is escaped, or has an escaped twin."""
    wrong = escaped(url, CHECKPOINT_ESCAPES)
    if wrong != url and _exists(wrong, ""):
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"Spark before 3.0 stored the checkpoint of {url} in {wrong}, which exists: later "
            f"releases refuse to start",
        )
    elif (meant := unescaped(url, CHECKPOINT_ESCAPES)) is not None:
        yield finding(
            "PATH_ESCAPED",
            ".",
            f"Spark before 3.0 stored the checkpoint of {meant} under this name: later releases "
            f"do not look here",
        )


def sink_path_rules(url: str) -> Iterator[Finding]:
    """Check whether the log of a file sink is below an escaped twin of its output directory."""
    wrong = escaped(url, SINK_ESCAPES)
    if wrong != url and _exists(wrong, SINK_LOG):
        yield finding(
            "PATH_ESCAPED",
            SINK_LOG,
            f"Spark before 3.0 stored the log of {url} in {wrong}/{SINK_LOG}, which exists: later "
            f"releases refuse to write to or read from the output directory",
        )


def _parts(location: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?://[^/]*)?", location)
    start = found[0] if found else ""
    return start, location[len(start) :]


def _exists(location: str, path: str) -> bool:
    try:
        return open_files(location).info(path) is not None
    except (EpochalError, OSError):
        return False  # like Spark, which ignores a twin that it is not allowed to look at
