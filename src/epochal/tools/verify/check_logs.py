"""Checks the logs of a query: `metadata`, `offsets` and `commits`. Pure.

Note: a gap in the batch ids is not always an error. Spark writes every id, unless the query is
stateless and tracks its progress asynchronously. Then the same ids are missing from both logs, and
only a query with asynchronous progress tracking can restart from them. A checkpoint does not record
which kind of query it belongs to. So a gap counts as legal if asynchronous progress explains all of
it: there is no state, no id is missing from one log only, and the query is not known to write to a
file sink, for which Spark refuses to track progress so. In one case a lost file is the more likely
explanation: the log is dense except for a gap right before its newest, uncommitted batch. That case
is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.layout import (
    COMMITS,
    METADATA,
    OFFSETS,
    OWN_KEY,
    STAND_IN_KEY,
    STATE,
    operator_path,
    parse_partition,
)
from epochal.checkpoint.metadata_log import listed, missing_runs, runs_of
from epochal.checkpoint.restart import CODEC, LEGACY_DEFAULTS, PROVIDER, SHUFFLE_PARTITIONS
from epochal.errors import (
    CheckpointSwitchedError,
    EpochalError,
    StorageError,
    UnsupportedVersionError,
)
from epochal.tools.inspect.listing import CheckpointListing, LogListing
from epochal.tools.inspect.pinned_settings import PINNED_KEYS, STATE_SHAPE_KEYS, unusable_settings
from epochal.tools.verify.findings import CANNOT, Finding, Severity, finding
from epochal.wording import counted, time_text

EDITABLE_KEYS = (SHUFFLE_PARTITIONS, PROVIDER)
"""Settings that a repartition or a conversion of the state changes, in a batch of its own."""


def log_rules(listing: CheckpointListing, *, has_file_sink: bool = False) -> Iterator[Finding]:
    """Check everything that can be seen in the logs alone."""
    yield from _metadata(listing)
    yield from log_file_rules(listing.offsets)
    yield from log_file_rules(listing.commits)
    yield from _fresh_start(listing)
    yield from _gaps(listing, has_file_sink)
    yield from _commits(listing)
    yield from _neighbours(listing)
    yield from _repartition(listing)
    yield from _newest_conf(listing)
    newest = listing.commits.entries.get(max(listing.commits.entries, default=-1))
    if newest is not None:
        yield from operator_gap_rules(listing, newest)


def log_file_rules(log: LogListing[Any]) -> Iterator[Finding]:
    for name in log.taken:
        yield finding("LOG_NAME_TAKEN", f"{log.path}/{name}", "it is a directory, not a file")
    for name, batch_id in log.odd_names.items():
        yield finding(
            "LOG_NAME_NOT_CANONICAL",
            f"{log.path}/{name}",
            f"Spark takes the name for batch {batch_id}, but looks for a file named {batch_id}",
        )
    for name, error in log.unreadable.items():
        yield broken_entry(f"{log.path}/{name}" if log.path else name, error)


def broken_entry(path: str, error: EpochalError) -> Finding:
    if isinstance(error, UnsupportedVersionError):
        reason = f"it has version v{error.version}; Epochal knows versions up to v{error.newest}"
        return finding("LOG_VERSION_UNKNOWN", path, reason)
    code = "FILE_UNREADABLE" if isinstance(error, StorageError) else "LOG_ENTRY_UNREADABLE"
    return finding(code, path, getattr(error, "reason", None) or str(error))


def _metadata(listing: CheckpointListing) -> Iterator[Finding]:
    if listing.metadata is None:
        if listing.offsets.ids or listing.commits.ids:
            yield finding(
                "METADATA_MISSING",
                METADATA,
                f"the logs have {len(listing.offsets.ids)} offsets and "
                f"{len(listing.commits.ids)} commits, but the query's id is missing",
            )
    elif isinstance(listing.metadata, StorageError):
        yield finding("FILE_UNREADABLE", METADATA, listing.metadata.reason)
    elif isinstance(listing.metadata, CheckpointSwitchedError):
        yield finding("CHECKPOINT_SWITCHED", METADATA, listing.metadata.reason)
    elif isinstance(listing.metadata, EpochalError):
        reason = getattr(listing.metadata, "reason", str(listing.metadata))
        is_directory = METADATA in listing.directories[""].folders
        remedy = f"{CANNOT}. Move the directory away, then verify again." if is_directory else ""
        yield finding("METADATA_UNREADABLE", METADATA, reason, remedy=remedy)


def _fresh_start(listing: CheckpointListing) -> Iterator[Finding]:
    if listing.offsets.ids or OFFSETS in listing.directories.unreadable:
        return
    for part in (COMMITS, STATE):
        directory = listing.directories[part]
        if any(not name.startswith(".") for name in directory.folders + directory.files):
            yield finding("OFFSETS_MISSING", OFFSETS, f"{part} is not empty, but offsets is")
            return


def _gaps(listing: CheckpointListing, has_file_sink: bool) -> Iterator[Finding]:
    offsets, commits = listing.offsets.ids, listing.commits.ids
    if not offsets:
        return
    newest = offsets[-1]
    previous_lost = newest != 0 and newest - 1 not in offsets
    missing = missing_runs(offsets, min(offsets[0], max(newest - 1, 0)), newest)
    if not missing:
        return
    older = offsets[:-1]
    is_dense = len(older) > 1 and older[-1] - older[0] == len(older) - 1
    text = f"batch {listed(missing)} is missing; the newest is {newest}"
    where = f"{OFFSETS}/{missing[-1].stop - 1}"
    if has_file_sink or not _asynchronous(listing):
        severity = Severity.ERROR if previous_lost else Severity.WARNING
        why = f"; a restart fails: batch {newest - 1} doesn't exist" if previous_lost else ""
        yield finding("OFFSETS_GAP", where, text + why, severity=severity)
    elif previous_lost and newest not in commits and is_dense:
        yield finding(
            "OFFSETS_GAP",
            where,
            f"{text}; a restart without asynchronous progress tracking fails: batch "
            f"{newest - 1} doesn't exist",
            severity=Severity.WARNING,
        )
    else:
        yield finding("OFFSETS_GAP_ASYNC", OFFSETS, text)


def _asynchronous(listing: CheckpointListing) -> bool:
    """Whether asynchronous progress tracking explains every missing id."""
    offsets, commits = listing.offsets.ids, set(listing.commits.ids)
    if listing.is_stateful or any(each > offsets[0] for each in commits.difference(offsets)):
        return False
    first = min(commits, default=offsets[-1])
    return all(each in commits for each in offsets[:-1] if each >= first)


def tracks_asynchronously(offsets: Iterable[int]) -> bool:
    """Whether most batches have no offsets, as with asynchronous progress tracking.

    All other queries need the offsets of the batch before the one that they go on from.
    """
    steps = [after - before for before, after in pairwise(sorted(offsets))]
    return 2 * sum(step > 1 for step in steps) > len(steps)


def _commits(listing: CheckpointListing) -> Iterator[Finding]:
    offsets, commits = listing.offsets.ids, listing.commits.ids
    if not offsets:
        return
    known = set(offsets)
    for batch_id in commits:
        # Spark purges offsets before commits, so the oldest commits may have no offsets.
        if batch_id > offsets[0] and batch_id not in known:
            ahead = batch_id > offsets[-1]
            yield finding(
                "COMMIT_WITHOUT_OFFSETS",
                f"{COMMITS}/{batch_id}",
                f"batch {batch_id} is committed, but "
                + (f"the newest offsets are of batch {offsets[-1]}" if ahead else "has no offsets"),
            )
    if not commits:
        # Spark 2.1 had no commit log. Its offsets can be recognized: they pin no settings.
        newest = listing.offsets.entries.get(offsets[-1])
        had_commits = COMMITS in listing.directories[""].folders or (newest and newest.conf)
        if offsets[-1] > offsets[0] and had_commits:
            yield _behind(offsets, -1)
        return
    done = set(commits)
    lost = [each for each in offsets if commits[0] < each < commits[-1] and each not in done]
    if lost:
        yield finding(
            "COMMITS_GAP",
            f"{COMMITS}/{lost[-1]}",
            f"batch {listed(runs_of(lost))} has offsets but no commit, although the later batch "
            f"{commits[-1]} is committed",
        )
    if sum(each > commits[-1] for each in offsets) > 1:
        yield _behind(offsets, commits[-1])


def _behind(offsets: list[int], committed: int) -> Finding:
    skipped = [each for each in offsets if committed < each < offsets[-1]]
    return finding(
        "COMMITS_BEHIND",
        COMMITS,
        f"the newest offsets are of batch {offsets[-1]}, "
        + (f"the newest commit is of batch {committed}" if committed >= 0 else "there is no commit")
        + f": a restart runs only batch {offsets[-1]} again, not {listed(runs_of(skipped))}",
    )


def _neighbours(listing: CheckpointListing) -> Iterator[Finding]:
    entries = sorted(listing.offsets.entries.items())
    for (before_id, before), (batch_id, entry) in pairwise(entries):
        path = f"{OFFSETS}/{batch_id}"
        if before.version == entry.version == 1 and len(before.offsets) != len(entry.offsets):
            yield finding(
                "SOURCE_COUNT_CHANGED",
                path,
                f"it has {counted(len(entry.offsets), 'source')}, batch {before_id} has "
                f"{len(before.offsets)}",
            )
        if listing.is_stateful:
            yield from _conf_rules(path, before_id, before, entry)
        for code, noun, now, then in (
            ("WATERMARK_BACKWARDS", "watermark", entry.watermark_ms, before.watermark_ms),
            ("TIMESTAMP_BACKWARDS", "timestamp", entry.timestamp_ms, before.timestamp_ms),
        ):
            if now < then:
                yield finding(
                    code,
                    path,
                    f"its {noun} is {time_text(now)}; the {noun} of batch {before_id} is "
                    f"{time_text(then)}",
                )
    for batch_id, commit in sorted(listing.commits.entries.items()):
        offsets = listing.offsets.entries.get(batch_id)
        if offsets is not None and 0 < commit.next_watermark_ms < offsets.watermark_ms:
            yield finding(
                "WATERMARK_BACKWARDS",
                f"{COMMITS}/{batch_id}",
                f"the watermark after the batch is {time_text(commit.next_watermark_ms)}; the "
                f"watermark during the batch is {time_text(offsets.watermark_ms)}",
            )


def _conf_rules(
    path: str, before_id: int, before: OffsetEntry, entry: OffsetEntry
) -> Iterator[Finding]:
    for key in PINNED_KEYS:
        old = before.conf.get(key)
        # An older release leaves out the keys that it does not know. This does no harm if the key
        # had the value that Spark assumes when it is missing.
        if old is not None and key not in entry.conf and old != LEGACY_DEFAULTS.get(key):
            yield finding(
                "CONF_KEY_LOST", path, f"it lacks {key}, which batch {before_id} sets to {old!r}"
            )
    for key in STATE_SHAPE_KEYS:
        old, new = before.conf.get(key), entry.conf.get(key)
        is_converted = key in EDITABLE_KEYS and repeats(before, entry)
        if old is not None and new is not None and old != new and not is_converted:
            yield finding(
                "CONF_CHANGED", path, f"{key} is {new!r}; in batch {before_id} it is {old!r}"
            )
    if _repartitions(before, entry) and not repeats(before, entry):
        yield finding(
            "PARTITIONS_CHANGED",
            path,
            f"{SHUFFLE_PARTITIONS} is {entry.conf[SHUFFLE_PARTITIONS]}; in batch {before_id} it is "
            f"{before.conf[SHUFFLE_PARTITIONS]}. The batch is not a repartition, because it also "
            f"reads data",
        )


def repeats(before: OffsetEntry, entry: OffsetEntry) -> bool:
    """Whether a batch repeats the one before it, as a repartition or a conversion does.

    A batch without new data has the same offsets too, but a later timestamp.
    """
    return (entry.by_source, entry.watermark_ms, entry.timestamp_ms) == (
        before.by_source,
        before.watermark_ms,
        before.timestamp_ms,
    )


def added_by_edit(offsets: Mapping[int, OffsetEntry], batch_id: int) -> bool:
    """Whether a batch was added by an edit, of Epochal or of Spark, and so wrote nothing."""
    entry, before = offsets.get(batch_id), offsets.get(batch_id - 1)
    if entry is None or before is None or not entry.has_metadata:
        return False
    if STAND_IN_KEY in {*entry.extra, *before.extra}:  # its timestamp is that of another batch
        return False
    if entry.timestamp_ms != before.timestamp_ms:
        return False
    manifest = entry.extra.get(OWN_KEY)
    return not isinstance(manifest, dict) or manifest.get("epoch") != batch_id


def _repartitions(before: OffsetEntry, entry: OffsetEntry) -> bool:
    old, new = before.conf.get(SHUFFLE_PARTITIONS), entry.conf.get(SHUFFLE_PARTITIONS)
    return old is not None and new is not None and old != new


def _repartition(listing: CheckpointListing) -> Iterator[Finding]:
    newest, committed = listing.offsets.latest, listing.commits.latest
    if newest is None or committed is None or newest <= committed or not listing.is_stateful:
        return
    entry, before = (listing.offsets.entries.get(each) for each in (newest, newest - 1))
    if entry is not None and before is not None and _repartitions(before, entry):
        yield finding(
            "REPARTITION_UNFINISHED",
            f"{OFFSETS}/{newest}",
            f"the batch changes {before.conf[SHUFFLE_PARTITIONS]} partitions to "
            f"{entry.conf[SHUFFLE_PARTITIONS]} and is not committed",
        )


def _newest_conf(listing: CheckpointListing) -> Iterator[Finding]:
    newest = listing.offsets.latest
    entry = None if newest is None else listing.offsets.entries.get(newest)
    if entry is None:
        return
    for key, value in unusable_settings(entry.conf).items():
        if key != CODEC:  # that is found where state is read
            yield finding("CONF_INVALID", f"{OFFSETS}/{newest}", f"{key} is {value!r}")
    if not listing.is_stateful:
        return
    pinned = {key for each in listing.offsets.entries.values() for key in each.conf}
    lacking = [key for key in (SHUFFLE_PARTITIONS, PROVIDER) if key not in pinned]
    if lacking:
        yield finding(
            "CONF_INCOMPLETE", f"{OFFSETS}/{newest}", f"no batch pins {' or '.join(lacking)}"
        )


def operator_gap_rules(listing: CheckpointListing, commit: CommitEntry) -> Iterator[Finding]:
    """Check that no operator's directory is missing.

    Operators are numbered from 0. Commits of versions 2 and 3 name the operators that have state.
    """
    numbers = (parse_partition(name) for name in listing.directories[STATE].folders)
    there = {number for number in numbers if number is not None}
    last = max(there | (commit.state_unique_ids or {}).keys(), default=-1)
    for run in missing_runs(there, 0, last):
        yield finding(
            "STATE_OPERATOR_MISSING",
            operator_path(run.start),
            f"operator {listed([run])} of 0 to {last} has no directory",
        )
