"""Names the exact commands that mend a finding, where they depend on the checkpoint. Pure.

The table in `findings` has a remedy for each code. For many codes the right one depends on what
else is there: whether a restart needs the file at all, whether `repair` can write it again, and
which batch a rewind can go back to. A remedy must not lead nowhere, so it is one of three:

- commands that leave a healthy checkpoint if they are run as they are printed;
- `NOTHING`: a restart is safe as it is, and why;
- `CANNOT`: no command helps, and what does.

Note: a rewind helps only if the batch is whole, that is, if both logs and all files of its state
are there and undamaged. So this module needs all findings before it can word one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.file_log import (
    DEFAULT_COMPACT_INTERVAL,
    batch_id_of_file_name,
    derive_compact_interval,
    live_batches,
)
from epochal.checkpoint.layout import (
    COMMITS,
    COMPACT_SUFFIX,
    OFFSETS,
    SINK_LOG,
    SOURCES,
    STAND_IN_KEY,
)
from epochal.tools.inspect.listing import CheckpointListing, LogListing
from epochal.tools.inspect.pinned_settings import unusable_settings, usable_settings
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing
from epochal.tools.verify.check_files import compact_ids, log_offset, own_batches
from epochal.tools.verify.check_logs import added_by_edit, tracks_asynchronously
from epochal.tools.verify.findings import (
    CANNOT,
    NOTHING,
    REPAIR,
    RULES,
    START_OVER,
    Finding,
    Severity,
)

LOST = frozenset({"STATE_OPERATOR_MISSING", "STATE_PARTITION_MISSING", "STATE_STORE_MISSING"})
"""Findings that affect every version of the state, so that no batch is whole."""
REPLAYED = frozenset(
    {"ROCKSDB_FILE_BROKEN", "ROCKSDB_FILE_MISSING", "ROCKSDB_FILE_SIZE", "ROCKSDB_ZIP_UNREADABLE"}
)
"""Findings about snapshots of RocksDB, which changelogs may replace."""
DAMAGED = REPLAYED | frozenset(
    {
        "CHECKSUM_MISMATCH",
        "CRC_REFUSED",
        "FILE_UNREADABLE",
        "STATE_FILE_UNREADABLE",
        "STATE_KEY_WRONG_PARTITION",
        "STATE_ROW_CHECKSUM",
        "STATE_ROW_INVALID",
        "STATE_SNAPSHOT_DISAGREES",
    }
)
"""Findings about the content of a state file: no version may depend on it."""
_OF_STATE = DAMAGED - {"FILE_UNREADABLE"} | {
    "ROCKSDB_ID_MISSING",
    "STATE_BEHIND",
    "STATE_CHAIN_BROKEN",
}
_TRUSTED = {
    "CHECKSUM_MISMATCH": "the file is right, use {}, which removes its checksum",
    "CRC_REFUSED": "the file is right, use {}, which removes its checksum",
    "STATE_SNAPSHOT_DISAGREES": "the deltas are right, use {}, which removes the snapshot",
}
_REMOVABLE = ("STATE_FILE_UNREADABLE", "STATE_ROW_CHECKSUM")
"""`repair` removes a snapshot with such a finding if its deltas are there."""
_REPARTITION = (
    "A repartition does not help: it keeps the rows that came with the file.",
    "If all keys are this query's own, and only their partitions are wrong, a repartition helps.",
)
_OLD = f"{NOTHING}: a restart does not need this file. Only a rewind to a version that does fails."
_OLD_LOG = (
    f"{NOTHING}: a restart does not need this batch, and Spark will remove it. Only a rewind to it "
    f"is impossible."
)
_LAST = 1 << 63
_BACKUP = f"Restore the files from a backup, or {START_OVER}."


def with_exact_remedies(
    findings: Sequence[Finding],
    listing: CheckpointListing,
    operators: Sequence[OperatorListing],
    *,
    sink_log: LogListing[Any] | None = None,
) -> Iterator[Finding]:
    """Yield the findings, each with the remedy that fits this checkpoint.

    A finding that a restart survives is only worth knowing. `sink_log`: of the file sink, if it was
    verified too.
    """
    advisor = _Advisor(findings, listing, operators, sink_log)
    for each in findings:
        remedy = advisor.remedy(each) or each.remedy
        severity = Severity.INFO if remedy.startswith(NOTHING) else each.severity
        yield replace(each, severity=severity, remedy=remedy)


def _batch_of(found: Finding) -> int | None:
    return batch_id_of_file_name(found.path.rpartition("/")[2])


def needs(store: StoreListing, version: int, found: Finding) -> bool:
    """Whether loading a version of a store reads the file of a finding."""
    if found.version is not None:  # a data file, which snapshots from that version on share
        return store.chain(version).snapshot >= found.version
    return store.needs(version, found.path.rpartition("/")[2])


def batch_to_run_again(
    listing: CheckpointListing, store: StoreListing, found: Finding
) -> int | None:
    """The newest batch, if it is not committed, and only the state after it needs a damaged file.

    No crash of Spark leaves such a file. A sink that has the batch already, as Delta's may, lets
    Spark skip it, and then the file is never written again. Only the sink knows whether it has it.
    """
    batch_id = listing.offsets.latest
    if batch_id is None or batch_id in listing.commits.entries or listing.is_continuous:
        return None
    is_its_state = needs(store, batch_id + 1, found) and not needs(store, batch_id, found)
    return batch_id if is_its_state and found.code in DAMAGED else None


class _Advisor:
    def __init__(
        self,
        findings: Sequence[Finding],
        listing: CheckpointListing,
        operators: Sequence[OperatorListing],
        sink_log: LogListing[Any] | None,
    ) -> None:
        self._findings, self._listing, self._sink_log = findings, listing, sink_log
        self._stores = {store.path: store for each in operators for store in each.stores}

    def remedy(self, found: Finding) -> str | None:
        """The remedy of one finding; None for the one in the table."""
        if found.code in LOST:
            return f"{CANNOT}: no version of the state is whole without it. {_BACKUP}"
        if found.code in _OF_STATE:
            return self._state(found)
        match found.code:
            case "LOG_ENTRY_UNREADABLE":
                return self._entry(found)
            case "LOG_NAME_TAKEN" if found.path.startswith(f"{SINK_LOG}/"):
                return f"{CANNOT}: it is in the output directory. Move it away by hand."
            case "OFFSETS_GAP":
                return self._gap()
            case "COMMITS_GAP":
                ids = self._listing.commits.ids
                lost = [n for n in self._offsets if ids and ids[0] < n < ids[-1] and n not in ids]
                can_be = bool(lost) and all(map(self._can_be_written, lost))
                return None if can_be else _OLD_LOG
            case "REPARTITION_UNFINISHED":
                then = ", or run the same repartition again to finish it"
                return self._before_batch(found, then)
            case "COMMITS_BEHIND":
                latest = self._listing.commits.latest
                return self._back_to(self._newest_whole(-1 if latest is None else latest))
            case "SOURCE_COUNT_CHANGED":
                then = ", and restart a query that has as many sources as that batch"
                return self._before_batch(found, then)
            case "WATERMARK_BACKWARDS":
                return self._before_batch(found, " if this was not set on purpose")
            case "CONF_INVALID":
                if self._can_restore_settings():
                    return f"Use {REPAIR}: it restores the value of another batch."
                return (
                    f"{CANNOT}: no batch has another value. Write the right value into the second "
                    f"line of the newest files in `offsets`, or restore them from a backup."
                )
            case "OFFSETS_BACKWARDS":
                newest, back = self._listing.offsets.latest, self._before_batch(found, "")
                if newest in self._listing.commits.ids or back.startswith(CANNOT):
                    return back
                return f"Use {REPAIR}: it removes the batch, and Spark plans it again."
            case "SOURCE_LOG_BEHIND":
                return self._source_behind(found)
            case "FILE_LOG_HOLE" if found.remedy != RULES[found.code].remedy:
                return None  # of a file that is there
            case "FILE_LOG_HOLE" if found.path.startswith(f"{SOURCES}/"):
                return (
                    f"{CANNOT}: the files of the batch are recorded nowhere else. "
                    f"Restore `sources` from a backup, or {START_OVER}."
                )
            case "FILE_LOG_HOLE":
                return self._sink_hole(found)
            case "FILE_LOG_COMPACT_NAME" if found.path.startswith(f"{SINK_LOG}/"):
                return self._sink_name()
            case "COMMIT_WITHOUT_OFFSETS":
                batch_id, newest = _batch_of(found), max(self._listing.offsets.ids, default=-1)
                if batch_id is not None and batch_id > newest:
                    return self._back_to(self._newest_whole(_LAST), files="the offsets")
                return f"Restore the offsets from a backup, or use {REPAIR}: it removes the commit."
            case "EPOCH_FILE_BROKEN":
                latest = self._listing.offsets.latest
                return self._back_to(self._newest_whole(0 if latest is None else latest - 1))
            case "SINK_OF_ANOTHER_QUERY":
                return self._before_skipped(found)
            case "SINK_AHEAD":
                return self._back_to(self._newest_whole(_LAST))
            case "OPERATOR_METADATA_UNREADABLE" if found.path.endswith("/_metadata/metadata"):
                return f"Use {REPAIR}: it removes the file, and Spark writes it on the next start."
        return None

    def _can_restore_settings(self) -> bool:
        confs = [entry.conf for entry in self._offsets.values()]
        usable = {key for conf in confs for key in usable_settings(conf)}
        return all(usable >= unusable_settings(conf).keys() for conf in confs)

    def _state(self, found: Finding) -> str:
        store, version = self._store_of(found.path), self._version_of(found)
        restart = self._listing.restart_version
        needed = store is None or version is None or found.code not in DAMAGED
        needed = needed or (store is not None and needs(store, restart, found))
        target = None if version is None else self._newest_whole(version - 2)
        back = self._back_to(target, files="the file")
        trusts_deltas = found.code == "STATE_SNAPSHOT_DISAGREES"
        can_trust = not trusts_deltas or (store is not None and self._has_deltas(store))
        again = self._writes_again(store, found, back)
        if found.code in _TRUSTED and can_trust:
            command = REPAIR.replace(" --sink", f" --code {found.code} --sink")
            trusted = f"If {_TRUSTED[found.code].format(command)}."
            return (
                f"{trusted} Otherwise: {back if needed else again}" if needed or again else trusted
            )
        removable = found.code in _REMOVABLE and found.path.endswith(".snapshot")
        if removable and store is not None and self._has_deltas(store):
            return f"Use {REPAIR}: it removes the snapshot, which its deltas can replace."
        if found.code in REPLAYED and needed and store is not None and self._has_changelogs(store):
            return f"Use {REPAIR}: it removes the snapshot, which changelogs can replace."
        if found.code == "STATE_KEY_WRONG_PARTITION" and needed:
            return f"{back} {_REPARTITION[target is None]}"
        return back if needed else again or _OLD

    def _writes_again(self, store: StoreListing | None, found: Finding, back: str) -> str:
        """The remedy if only the state after a batch that runs again needs the file; or nothing."""
        batch_id = None if store is None else batch_to_run_again(self._listing, store, found)
        if batch_id is None:
            return ""
        if batch_id > 0 and not self._is_whole(batch_id - 1):
            return back
        return (
            f"Use {REPAIR}: it removes the file, which batch {batch_id} writes when it runs again."
        )

    def _store_of(self, path: str) -> StoreListing | None:
        if path in self._stores:
            return self._stores[path]
        folder = path.rpartition("/")[0]
        return self._stores.get(folder) or self._stores.get(folder.rpartition("/")[0])

    def _version_of(self, found: Finding) -> int | None:
        """The first version of the state that the finding affects."""
        if found.version is not None:
            return found.version
        if found.path in self._stores:
            return max(self._stores[found.path].versions, default=0) + 1
        number = found.path.rpartition("/")[2].partition(".")[0].partition("_")[0]
        return int(number) if number.isascii() and number.isdigit() else None

    def _has_deltas(self, store: StoreListing) -> bool:
        """Whether the newest version can be loaded without the damaged snapshots."""
        if store.format.is_database:
            return self._has_changelogs(store)
        good = store.without({each.path for each in self._findings if each.code in DAMAGED})
        return not good.chain(self._listing.restart_version).missing

    def _has_changelogs(self, store: StoreListing) -> bool:
        """Whether the newest version can be replayed without the broken snapshots, all attempts."""
        damaged = [each for each in self._findings if each.code in DAMAGED]
        bad = {each.path for each in damaged if self._store_of(each.path) is store}
        shared = (each.version for each in damaged if each.path.startswith(f"{store.path}/SSTs/"))
        first = min((version for version in shared if version is not None), default=_LAST)
        good = replace(
            store,
            zips={
                version: names
                for version, names in store.zips.items()
                if version < first and not bad & {f"{store.path}/{name}" for name in names}
            },
        )
        chain = good.chain(self._listing.restart_version)
        replayed = [good.changelogs.get(version, []) for version in chain.deltas]
        return not chain.missing and all(
            len(names) == 1 and f"{store.path}/{names[0]}" not in bad for names in replayed
        )

    def _entry(self, found: Finding) -> str | None:
        folder, batch_id = found.path.rpartition("/")[0], _batch_of(found)
        if batch_id is None:
            return None
        newest = self._listing.offsets.latest
        offsets, commits = self._listing.offsets, self._listing.commits
        if folder == OFFSETS and newest is not None:
            if batch_id < newest - 1:
                return _OLD_LOG
            stand_in = batch_id == newest - 1 and newest in commits.entries
            if (stand_in and newest in offsets.entries) or newest not in commits.ids:
                return f"Use {REPAIR}, or restore the file from a backup."
            return self._back_to(self._newest_whole(batch_id - 1))
        if folder == COMMITS:
            if batch_id == newest and (batch_id == 0 or self._is_whole(batch_id - 1)):
                return f"Use {REPAIR}: it removes the commit, so that the batch runs again."
            if batch_id != newest and self._can_be_written(batch_id):
                return f"Use {REPAIR}: it writes the commit again."
            return _OLD_LOG if batch_id != newest else self._back_to(None)
        if folder.startswith(f"{SOURCES}/") and self._source_batch_is_known(folder, batch_id):
            return f"Use {REPAIR}: it writes the batch again, or removes it if no batch needs it."
        if folder == SINK_LOG and self._sink_log is not None:
            if batch_id < max(compact_ids(self._sink_log), default=0):
                return f"{NOTHING}: a later compact file replaces this one."
            return self._back_to(self._newest_whole(batch_id - 1), files="the file")
        return (
            f"{CANNOT}: the batch's files are recorded nowhere else. Restore `sources` from a "
            f"backup."
        )

    def _sink_name(self) -> str | None:
        """Files are renamed only if nothing else is wrong with the log: it may be their names."""
        first = self._first_damage
        target = None if first is None else self._newest_whole(first - 1)
        return None if first is None else self._back_to(target, files="`_spark_metadata`")

    @cached_property
    def _first_damage(self) -> int | None:
        """The first batch of the sink's log that is unreadable, torn or a copy, and is needed."""
        if self._sink_log is None:
            return None
        codes = ("FILE_LOG_HOLE", "LOG_ENTRY_UNREADABLE")
        of_sink = (each for each in self._findings if each.path.startswith(f"{SINK_LOG}/"))
        first, there = max(compact_ids(self._sink_log), default=0), set(self._sink_log.ids)
        damaged = (_batch_of(each) for each in of_sink if each.code in codes)
        needed = (n for n in damaged if n is not None and n in there and n >= first)
        return min(needed, default=None)

    def _sink_hole(self, found: Finding) -> str:
        """A batch that an edit added wrote nothing, so its entry is known; others write again."""
        assert self._sink_log is not None
        ids = set(self._sink_log.ids)
        if (batch_id := _batch_of(found)) in ids:
            return self._back_to(self._newest_whole(batch_id - 1), files="the file")
        first = max(compact_ids(self._sink_log), default=0)
        committed = max(self._listing.commits.ids, default=-1)
        # Names of files may claim any number, but edits add only batches that have offsets.
        lost = (n for n in range(first, max(ids | {committed}) + 1) if n not in ids)
        if all(added_by_edit(self._offsets, batch_id) for batch_id in lost):
            return f"Use {REPAIR}: it writes the batch again, which an edit added."
        return self._back_to(self._newest_whole(_LAST), files="`_spark_metadata`")

    def _before_skipped(self, found: Finding) -> str | None:
        """A rewind with the sink runs again what it skipped, unless it skipped everything."""
        skipped = _batch_of(found)
        if skipped is None or self._sink_log is None:
            return None
        own = [n for n in own_batches(self._sink_log, self._listing) if n < skipped]
        target = self._newest_whole(max(own, default=-1))
        then = ", so that the skipped batches run again"
        return None if target is None else self._back_to(target, then)

    def _source_batch_is_known(self, folder: str, batch_id: int) -> bool:
        names = self._listing.directories[folder].files
        ids = {name: batch_id_of_file_name(name) for name in names if not name.startswith(".")}
        later = (n for name, n in ids.items() if n is not None and name.endswith(COMPACT_SUFFIX))
        if any(each > batch_id for each in later):
            return True
        source = folder.rpartition("/")[2]
        reached = (log_offset(e.by_source.get(source)) for e in self._offsets.values())
        is_last = batch_id == max((n for n in ids.values() if n is not None), default=-1)
        return is_last and all(each is None or each < batch_id for each in reached)

    def _gap(self) -> str | None:
        newest = self._listing.offsets.latest
        if newest is None or newest == 0 or newest - 1 in self._listing.offsets.ids:
            return _OLD_LOG
        if newest in self._listing.commits.entries or self._newest_whole(newest) is not None:
            return None
        return f"{CANNOT}: no batch is left from which a restart could continue. {_BACKUP}"

    def _can_be_written(self, batch_id: int) -> bool:
        """Whether the content of a commit follows from the offsets of the next batch."""
        versions = {entry.version for entry in self._listing.commits.entries.values()}
        return versions == {1} and {batch_id, batch_id + 1} <= self._offsets.keys()

    def _before_batch(self, found: Finding, then: str) -> str:
        batch_id = _batch_of(found)
        target = None if batch_id is None else self._newest_whole(batch_id - 1)
        return self._back_to(target, then)

    def _source_behind(self, found: Finding) -> str:
        source = found.path.rpartition("/")[2]
        names = self._listing.directories[found.path].files
        known = (batch_id_of_file_name(n) for n in names if not n.startswith("."))
        latest = max((n for n in known if n is not None), default=-1)
        behind = [
            batch_id
            for batch_id in self._whole
            if (log_offset(self._offsets[batch_id].by_source.get(source)) or 0) <= latest
        ]
        return self._back_to(max(behind, default=None), files="`sources`")

    @property
    def _offsets(self) -> dict[int, OffsetEntry]:
        return self._listing.offsets.entries

    def _newest_whole(self, at_most: int) -> int | None:
        return max((each for each in self._whole if each <= at_most), default=None)

    @cached_property
    def _whole(self) -> list[int]:
        both = self._offsets.keys() & self._listing.commits.entries.keys()
        return sorted(batch_id for batch_id in both if self._is_whole(batch_id))

    def _is_whole(self, batch_id: int) -> bool:
        """Whether a query could restart right after a batch."""
        if batch_id not in self._offsets or batch_id not in self._listing.commits.entries:
            return False
        if STAND_IN_KEY in self._offsets[batch_id].extra:
            return False
        has_before = batch_id == 0 or batch_id - 1 in self._offsets
        if not has_before and (self._stores or not tracks_asynchronously(self._offsets)):
            return False
        if any(each.code in LOST for each in self._findings):
            return False
        if self._sink_log is not None and not self._sink_has(self._sink_log, batch_id):
            return False
        count = self._listing.partitions_at(batch_id)
        return all(
            self._loads(store, batch_id)
            for store in self._stores.values()
            if count is None or store.partition < count
        )

    def _sink_has(self, log: LogListing[Any], batch_id: int) -> bool:
        """Whether the sink's log has all that it needs if the batch is its last."""
        # Spark derives the interval from the names that a rewind to the batch leaves.
        left = [each for each in compact_ids(log) if each <= batch_id]
        interval = derive_compact_interval(DEFAULT_COMPACT_INTERVAL, left)
        damaged = {
            _batch_of(each)
            for each in self._findings
            if each.code == "FILE_LOG_HOLE" and each.path.startswith(f"{SINK_LOG}/")
        }
        whole = log.entries.keys() - log.broken.keys() - damaged
        return all(each in whole for each in live_batches(batch_id, interval))

    def _loads(self, store: StoreListing, batch_id: int) -> bool:
        return not store.chain(batch_id + 1).missing and not any(
            needs(store, batch_id + 1, each)
            for each in self._findings
            if each.code in DAMAGED and self._store_of(each.path) is store
        )

    def _back_to(self, batch_id: int | None, then: str = "", *, files: str = "") -> str:
        """Advise a rewind to a batch, or say that there is none; `files` could be restored."""
        if batch_id is None:
            return f"{CANNOT}: no earlier batch is whole. {_BACKUP}"
        command = f"`epochal checkpoint rewind CHECKPOINT --to-batch {batch_id} --sink OUTPUT`"
        first = f"Restore {files} from a backup, or use {command}" if files else f"Use {command}"
        return f"{first}{then}: batch {batch_id} is the newest whole one before the problem."
