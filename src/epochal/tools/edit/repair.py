"""Plans the repair of what `verify` has found, one finding at a time. It reads, but never writes.

Each repair is the smallest change after which Spark starts and reads the same data as before. Three
rules limit it. Removed files stay in the journal. Nothing is invented that a query would take for
data. A committed batch is dropped only if the caller allows going back. A finding that cannot be
repaired is reported with the reason, and with a rewind that would help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    QueryMetadata,
)
from epochal.checkpoint.layout import COMMITS, METADATA, OFFSETS, SINK_LOG, SOURCES, STAND_IN_KEY
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import EditError, EpochalError, OptionError
from epochal.files import join_url
from epochal.tools.edit.edit_file_log import SinkSurvey, with_sink
from epochal.tools.edit.edit_plan import Plan, crc_of
from epochal.tools.edit.repair_draft import RepairDraft, RepairOptions
from epochal.tools.edit.repair_file_logs import mend_file_log, mend_sink_log, mend_source_batch
from epochal.tools.edit.rewind import delete_state_after, obstacle_to
from epochal.tools.edit.survey import Survey, missing_file
from epochal.tools.inspect.pinned_settings import PINNED_KEYS, unusable_settings, usable_settings
from epochal.tools.verify.check_logs import EDITABLE_KEYS, repeats
from epochal.tools.verify.findings import Finding, Severity
from epochal.tools.verify.remedies import REPLAYED
from epochal.wording import counted

_TRUST = "name this code to trust the file and remove its checksum"

ONLY_IF_NAMED = {
    "CHECKSUM_MISMATCH": _TRUST,
    "CRC_REFUSED": _TRUST,
    "STATE_SNAPSHOT_DISAGREES": "name this code to trust the deltas and remove the snapshot",
}
"""Codes whose handler relies on a guess, so that the caller must name them. Otherwise the file
counts as damaged."""


@dataclass(frozen=True, slots=True)
class Left:
    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class Repair:
    """The plan of a repair, the findings that it repairs, and those that it does not."""

    plan: Plan
    mended: tuple[Finding, ...]
    left: tuple[Left, ...]


Handler = Callable[[RepairDraft, Finding], str | None]
"""Adds the repair of one finding to the draft; returns why it cannot be repaired, or None."""


def plan_repair(
    surveyed: Survey,
    findings: Iterable[Finding],
    options: RepairOptions,
    *,
    sink: SinkSurvey | None = None,
    command: str = "repair",
    emptied: Collection[str] = (),
) -> Repair:
    """Plan the changes that repair as many findings as possible.

    `emptied` are directories that an earlier part of the plan removes.
    """
    found = list(findings)
    unknown = set(options.codes) - HANDLERS.keys()
    if unknown:
        raise OptionError(
            f"No repair for {', '.join(sorted(unknown))}. Name codes that `epochal checkpoint "
            f"verify` has printed."
        )
    for each in found:
        if each.code == "EDIT_UNFINISHED":
            raise EditError(surveyed.url, f"an edit was interrupted here. {each.remedy}")
    draft = RepairDraft(surveyed, found, options, sink, emptied)
    mended: list[Finding] = []
    left: list[Left] = []
    for each in found:
        reason = _mend(draft, each)
        if reason is None:
            mended.append(each)
        elif each.severity is not Severity.INFO:
            left.append(Left(each, reason))
    plan = Plan(
        command=command,
        summary=f"repair {len(mended)} of {counted(len(mended) + len(left), 'finding')}"
        if mended or left
        else "no findings",
        changes=draft.changes(),
        arguments={"codes": ",".join(sorted({found.code for found in mended}))},
        warnings=tuple(dict.fromkeys(draft.warnings)),
        watches=surveyed.log_watches(),
        emptied=tuple(draft.emptied),
    )
    return Repair(with_sink(plan, sink), tuple(mended), tuple(left))


def _mend(draft: RepairDraft, found: Finding) -> str | None:
    codes = draft.options.codes
    if codes and found.code not in codes:
        return "not asked for"
    if found.code in ONLY_IF_NAMED and found.code not in codes:
        reason = _distrust(draft, found)
        return reason and f"{reason}; or {ONLY_IF_NAMED[found.code]}"
    handler = HANDLERS.get(found.code)
    reason = handler(draft, found) if handler else found.remedy
    if draft.take_hindered():
        return "a directory has the name of the file: repair again when it is out of the way"
    return reason


def _remove(draft: RepairDraft, found: Finding) -> str | None:
    draft.remove(found.path, found.code.lower().replace("_", " "))
    return None


def _remove_hidden_crc(draft: RepairDraft, found: Finding) -> str | None:
    draft.remove(crc_of(found.path), "stale checksum")
    return None


def _remove_spark_checksum(draft: RepairDraft, found: Finding) -> str | None:
    draft.remove(f"{found.path}.crc", "stale checksum")
    return None


def _write_metadata(draft: RepairDraft, found: Finding) -> str | None:
    if draft.surveyed.files.info(METADATA) is not None and METADATA not in draft.surveyed.tree:
        return found.remedy  # it is a directory
    content = QueryMetadata(draft.options.query_id).serialize()
    draft.add(draft.surveyed.tree.write(METADATA, content, "a new query id"))
    draft.warnings.append(
        f"The query id becomes {draft.options.query_id}. A table that knows the query by its old "
        f"id, as Delta's do, takes a batch again that it has but that is not committed here. Pass "
        f"the old id with --query-id: a Delta table has it in its log, as `appId` of `txn`."
    )
    return None


def _rename(draft: RepairDraft, found: Finding) -> str | None:
    folder, _, name = found.path.rpartition("/")
    batch_id = parse_batch_id(name)
    assert batch_id is not None
    listing = draft.surveyed.listing
    ids = {OFFSETS: listing.offsets.ids, COMMITS: listing.commits.ids}.get(folder, [])
    if ids and batch_id not in ids and ids[0] < batch_id < ids[-1]:  # it fills a hole
        raw = draft.surveyed.files.read(found.path)
        with suppress(EpochalError):
            (OFFSET_FORMAT if folder == OFFSETS else COMMIT_FORMAT).deserialize(raw, name)
            draft.add(draft.surveyed.tree.write(f"{folder}/{batch_id}", raw, f"was named {name}"))
    draft.remove(found.path, "a name in a spelling that Spark does not use")
    return None


def _clear_directory(draft: RepairDraft, found: Finding) -> str | None:
    if found.path.startswith(f"{SINK_LOG}/"):
        return "it is in the output directory: move it away by hand"
    for path in draft.surveyed.tree.under(found.path):
        draft.remove(path, "in a directory that has the name of a batch")
    draft.emptied.append(found.path)
    return None


def _unreadable_entry(draft: RepairDraft, found: Finding) -> str | None:
    folder, _, name = found.path.rpartition("/")
    batch_id = parse_batch_id(name.removesuffix(".compact"))
    if batch_id is None:
        return found.remedy
    if folder == COMMITS:
        return _unreadable_commit(draft, batch_id)
    if folder == OFFSETS:
        return _unreadable_offsets(draft, batch_id)
    if folder.startswith(f"{SOURCES}/"):
        return mend_source_batch(draft, folder, batch_id)
    return found.remedy


def _unreadable_commit(draft: RepairDraft, batch_id: int) -> str | None:
    surveyed = draft.surveyed
    newest = surveyed.listing.offsets.latest
    if batch_id == newest and (batch_id == 0 or batch_id - 1 in surveyed.commits):
        return draft.run_again(batch_id)
    return _write_commit(draft, batch_id)


def _write_commit(draft: RepairDraft, batch_id: int) -> str | None:
    """Write a commit again: its watermark is also in the offsets of the next batch."""
    surveyed = draft.surveyed
    following = surveyed.offsets.get(batch_id + 1)
    versions = {entry.version for entry in surveyed.commits.values()}
    if following is None or batch_id not in surveyed.offsets or versions != {1}:
        return "its content cannot be derived from other entries; a restart does not need it"
    content = COMMIT_FORMAT.serialize(CommitEntry(1, following.watermark_ms))
    draft.add(surveyed.tree.write(f"{COMMITS}/{batch_id}", content, f"from offsets/{batch_id + 1}"))
    return None


def _write_commits(draft: RepairDraft, found: Finding) -> str | None:
    ids = draft.surveyed.listing.commits.ids
    lost = [i for i in draft.surveyed.offsets if ids[0] < i < ids[-1] and i not in ids]
    reasons = [_write_commit(draft, batch_id) for batch_id in lost]
    return next((reason for reason in reasons if reason is not None), None)


def _unreadable_offsets(draft: RepairDraft, batch_id: int) -> str | None:
    surveyed = draft.surveyed
    newest = surveyed.listing.offsets.latest
    assert newest is not None
    if batch_id < newest - 1:
        return "a restart does not need it, and Spark will purge it; a rewind to it is impossible"
    if batch_id == newest - 1 and newest in surveyed.commits and newest in surveyed.offsets:
        return _stand_in(draft, batch_id, newest)
    if batch_id == newest and batch_id not in surveyed.listing.commits.ids:
        return draft.go_back(None, "unreadable and not committed: planned again")
    return draft.go_back(batch_id, f"after the unreadable offsets of {batch_id}")


def _stand_in(draft: RepairDraft, batch_id: int, newest: int) -> str | None:
    """Write substitute offsets before a committed batch. A restart only checks that they exist."""
    entry: OffsetEntry = draft.surveyed.offsets[newest]
    earlier = draft.surveyed.offsets.get(batch_id - 1)
    if earlier is not None:
        entry = replace(entry, watermark_ms=earlier.watermark_ms, timestamp_ms=earlier.timestamp_ms)
    entry = replace(entry, extra={**entry.extra, STAND_IN_KEY: newest}, keys=None)
    path = f"{OFFSETS}/{batch_id}"
    content = OFFSET_FORMAT.serialize(entry)
    draft.add(draft.surveyed.tree.write(path, content, f"substitute, with offsets of {newest}"))
    if draft.is_taken(path):
        return None  # nor a commit, which the next round would remove again
    versions = {each.version for each in draft.surveyed.commits.values()}
    if batch_id not in draft.surveyed.listing.commits.ids and versions == {1}:
        commit = COMMIT_FORMAT.serialize(
            CommitEntry(1, draft.surveyed.offsets[newest].watermark_ms)
        )
        lost = f"{COMMITS}/{batch_id}"
        draft.add(draft.surveyed.tree.write(lost, commit, f"from offsets/{newest}"))
    draft.warnings.append(
        f"{path} gets the offsets of batch {newest}, and is marked as made up. This suffices for a "
        f"restart, but not for a rewind to batch {batch_id}."
    )
    return None


def _fill_gap(draft: RepairDraft, found: Finding) -> str | None:
    surveyed = draft.surveyed
    newest = surveyed.listing.offsets.latest
    assert newest is not None
    if newest > 0 and newest - 1 not in surveyed.listing.offsets.ids:
        if newest in surveyed.commits and newest in surveyed.offsets:
            return _stand_in(draft, newest - 1, newest)
        return draft.go_back(None, "cannot be restarted: the batch before it is missing")
    return "a restart does not need the missing batches; a rewind to them is impossible"


def _drop_uncommitted(draft: RepairDraft, found: Finding) -> str | None:
    return draft.go_back(None, "not committed: planned again")


def _remove_commit(draft: RepairDraft, found: Finding) -> str | None:
    batch_id = parse_batch_id(found.path.rpartition("/")[2])
    newest = draft.surveyed.listing.offsets.latest
    if batch_id is not None and newest is not None and batch_id > newest:
        return draft.go_back(None, "a commit without offsets")
    draft.remove(found.path, "a commit without offsets")
    return None


def _restore_conf(draft: RepairDraft, found: Finding) -> str | None:
    """Give every batch the pinned settings of the batches before it, unless an edit set others.

    Values that Spark cannot use are replaced by those of the next batch that has others, and for
    CONF_INVALID nothing else is.
    """
    surveyed, only_unusable = draft.surveyed, found.code == "CONF_INVALID"
    entries = sorted(surveyed.offsets.items())
    oldest: dict[str, str] = {}
    for _, entry in reversed(entries):
        oldest |= usable_settings(entry.conf)
    pinned: dict[str, str] = {}
    for batch_id, entry in entries:
        before, usable = surveyed.offsets.get(batch_id - 1), usable_settings(entry.conf)
        own = usable.keys() if only_unusable else set[str]()
        if before is not None and repeats(before, entry):
            own |= usable.keys() & EDITABLE_KEYS
        pinned = {**usable, **pinned, **{key: usable[key] for key in own}}
        keys = unusable_settings(entry.conf).keys() & oldest.keys()
        if not only_unusable:
            keys |= pinned.keys() & PINNED_KEYS
        values = {**oldest, **pinned}
        conf = {**entry.conf, **{key: text for key, text in values.items() if key in keys}}
        if unusable_settings(conf):
            return found.remedy
        if conf != dict(entry.conf):
            content = OFFSET_FORMAT.serialize(replace(entry, conf=conf))
            path = f"{OFFSETS}/{batch_id}"
            draft.add(surveyed.tree.write(path, content, "settings of the batch before it"))
    return None


def _remove_backwards(draft: RepairDraft, found: Finding) -> str | None:
    batch_id = draft.surveyed.listing.offsets.latest
    return draft.go_back(batch_id, "its offsets are behind those of the batch before")


def _undo_repartition(draft: RepairDraft, found: Finding) -> str | None:
    draft.warnings.append("To finish the repartition instead, run the same repartition again.")
    return draft.go_back(None, "an unfinished repartition")


def _remove_ahead(draft: RepairDraft, found: Finding) -> str | None:
    newest = draft.surveyed.listing.offsets.latest
    draft.add(*delete_state_after(draft.surveyed, 0 if newest is None else newest + 1))
    return None


def _broken_state(draft: RepairDraft, found: Finding) -> str | None:
    store, name = draft.surveyed.store_of(found.path), found.path.rpartition("/")[2]
    if store is None:
        return found.remedy
    version = int(name.partition(".")[0].partition("_")[0])
    if name.endswith(".snapshot"):
        good = store.without(draft.broken_state | {found.path})
        wanted = draft.surveyed.listing.restart_version
        if missing_file(good, max(version, wanted)) is None:
            draft.remove(found.path, "its deltas have the same content")
            draft.remove(f"{found.path}.crc", "checksum of a removed snapshot")
            return None
    elif name.endswith(".zip") and draft.replay_instead(found.path):
        return None
    elif (batch_id := draft.state_to_write_again(found)) is not None:
        return _write_state_again(draft, batch_id)
    elif not store.needs(draft.surveyed.listing.restart_version, name):
        return "a restart does not need it; a rewind to a version that does is impossible"
    return draft.go_back(version - 1, f"needs {found.path}, which is damaged")


def _write_state_again(draft: RepairDraft, batch_id: int) -> str | None:
    surveyed = draft.surveyed
    if batch_id and batch_id - 1 not in surveyed.commits:
        return draft.go_back(None, "not committed: planned again")
    return None if draft.runs_again(batch_id) else draft.run_again(batch_id)


def _distrust(draft: RepairDraft, found: Finding) -> str | None:
    """Treat a file that does not match its checksum as damaged."""
    if found.code == "CHECKSUM_MISMATCH":
        return _broken_state(draft, found)
    if found.code == "CRC_REFUSED":
        return _unloadable_state(draft, found)
    if (batch_id := draft.state_to_write_again(found)) is not None:
        return _write_state_again(draft, batch_id)
    return found.remedy.rstrip(".")


def _unloadable_state(draft: RepairDraft, found: Finding) -> str | None:
    """Go back to the newest batch whose state is whole, if the state of the restart is not."""
    surveyed = draft.surveyed
    restart = surveyed.listing.restart_version - 1
    if (batch_id := draft.state_to_write_again(found)) is not None:
        return _write_state_again(draft, batch_id)
    if draft.runs_again(restart):
        return None  # the batch writes its state again
    if restart in surveyed.commits and obstacle_to(surveyed, restart) is None:
        return "a restart does not need it; a rewind to a version that does is impossible"
    if found.code in REPLAYED and draft.replay_instead(found.path):
        return None
    return draft.go_back(None, f"their state cannot be loaded: {found.path}")


def _remove_operator_metadata(draft: RepairDraft, found: Finding) -> str | None:
    if not found.path.endswith("/_metadata/metadata"):
        return found.remedy
    draft.remove(found.path, "unreadable: Spark writes it again on the next start")
    return None


def _follow_move(draft: RepairDraft, found: Finding) -> str | None:
    from epochal.tools.edit.copy_checkpoint import follow_schema_paths

    surveyed = draft.surveyed
    raw = surveyed.files.read(found.path)
    content = follow_schema_paths(raw, join_url(surveyed.url, found.path), surveyed.files)
    draft.add(surveyed.tree.write(found.path, content, "points at this checkpoint"))
    return None


def _mend_file_log(draft: RepairDraft, found: Finding) -> str | None:
    folder = found.path.rpartition("/")[0]
    if folder == SINK_LOG and draft.sink is not None:
        return mend_sink_log(draft, draft.sink)
    return mend_file_log(draft, folder) if folder.startswith(f"{SOURCES}/") else found.remedy


_CODES: dict[Handler, str] = {
    _remove: "CRC_ORPHAN CHECKSUM_UNREADABLE CHECKSUM_ORPHAN STATE_STRAY_SNAPSHOT STATE_STRAY_FILE",
    _remove_hidden_crc: "CRC_STALE CRC_REFUSED",
    _remove_spark_checksum: "CHECKSUM_MISMATCH",
    _write_metadata: "METADATA_MISSING METADATA_UNREADABLE",
    _rename: "LOG_NAME_NOT_CANONICAL",
    _clear_directory: "LOG_NAME_TAKEN",
    _unreadable_entry: "LOG_ENTRY_UNREADABLE",
    _fill_gap: "OFFSETS_GAP",
    _write_commits: "COMMITS_GAP",
    _drop_uncommitted: "COMMITS_BEHIND",
    _remove_backwards: "OFFSETS_BACKWARDS",
    _remove_commit: "COMMIT_WITHOUT_OFFSETS",
    _restore_conf: "CONF_KEY_LOST CONF_INVALID CONF_CHANGED PARTITIONS_CHANGED",
    _undo_repartition: "REPARTITION_UNFINISHED",
    _remove_ahead: "STATE_AHEAD STATE_SNAPSHOT_AHEAD",
    _broken_state: "STATE_FILE_UNREADABLE STATE_SNAPSHOT_DISAGREES STATE_ROW_CHECKSUM",
    _unloadable_state: (
        "STATE_ROW_INVALID STATE_KEY_WRONG_PARTITION STATE_BEHIND STATE_CHAIN_BROKEN "
        "STATE_PARTITION_MISSING STATE_STORE_MISSING STATE_OPERATOR_MISSING ROCKSDB_ID_MISSING "
        "ROCKSDB_ZIP_UNREADABLE ROCKSDB_FILE_BROKEN ROCKSDB_FILE_MISSING ROCKSDB_FILE_SIZE"
    ),
    _remove_operator_metadata: "OPERATOR_METADATA_UNREADABLE",
    _follow_move: "OPERATOR_METADATA_MOVED",
    _mend_file_log: "FILE_LOG_HOLE FILE_LOG_COMPACT_NAME",
}
HANDLERS = {code: handler for handler, codes in _CODES.items() for code in codes.split()}
