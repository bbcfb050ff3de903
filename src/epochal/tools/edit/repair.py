"""Decides how to mend what `verify` finds, finding by finding. Pure but for the files it re-reads.

Every change is the smallest after which Spark starts and reads what it read before. Three rules:
what is moved out of the way stays in the journal; nothing is invented that a query would take for
data; and a batch that is committed is dropped only when the caller allows going back. What cannot
be mended is said, with the rewind that would help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    QueryMetadata,
)
from epochal.checkpoint.layout import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    StateFileKind,
    parse_state_file,
)
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import EditError, EpochalError, OptionError
from epochal.files import join_url
from epochal.tools.edit.edit_plan import Change, Plan, crc_of
from epochal.tools.edit.rewind import possible_batches, state_after
from epochal.tools.edit.survey import Survey, missing_file, newest_first
from epochal.tools.inspect.state_listing import StorePicture
from epochal.tools.verify.check_logs import STATE_SHAPE_KEYS
from epochal.tools.verify.findings import Finding, Severity

_TRUST = "the file may be damaged; name this code to trust it and drop its checksum"

ONLY_IF_NAMED = {
    "CHECKSUM_MISMATCH": _TRUST,
    "CRC_REFUSED": _TRUST,
    "STATE_SNAPSHOT_DISAGREES": "name this code to trust the deltas and drop the snapshot",
}


@dataclass(frozen=True, slots=True)
class Left:
    """A finding that stays, and why."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class Repair:
    """What would be changed, what that mends, and what it does not."""

    plan: Plan
    mended: tuple[Finding, ...]
    left: tuple[Left, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """What the caller allows."""

    query_id: str
    """The id to write if the checkpoint has lost its own."""
    codes: Collection[str] = ()
    """Mend only these; empty mends whatever is safe."""
    may_go_back: bool = False
    """Whether committed batches may be dropped where nothing else helps."""


class Mender:
    """Collects the changes for one finding after the other."""

    def __init__(
        self, surveyed: Survey, findings: Iterable[Finding], options: RepairOptions
    ) -> None:
        self.surveyed, self.options = surveyed, options
        self.findings = list(findings)
        self.warnings: list[str] = []
        self.emptied: list[str] = []
        self._changes: dict[str, Change] = {}

    def add(self, *changes: Change) -> None:
        """Take changes in; where two concern one file, its deletion wins."""
        for change in changes:
            held = self._changes.get(change.path)
            if held is None or change.after is None:
                self._changes[change.path] = change

    def remove(self, path: str, why: str) -> None:
        """Delete a file if it is there."""
        if path in self.surveyed.tree:
            self.add(self.surveyed.tree.delete(path, why))

    def changes(self) -> tuple[Change, ...]:
        """Everything collected; a hidden crc goes with its file."""
        own = {crc_of(path) for path in self._changes}
        return tuple(each for path, each in self._changes.items() if path not in own)

    def go_back(self, below: int | None, why: str) -> str | None:
        """Drop batches down to the last restartable one, below `below` if given."""
        surveyed = self.surveyed
        possible = [
            batch_id
            for batch_id in possible_batches(surveyed)
            if (below is None or batch_id < below) and not self._needs_broken_state(batch_id)
        ]
        if not possible:
            return "no batch is left that a restart could stand on: restore files from a backup"
        to_batch = possible[-1]
        committed = [each for each in surveyed.picture.commits.ids if each > to_batch]
        if committed and not self.options.may_go_back:
            return (
                f"batch {committed[0]} to {committed[-1]} would have to go: run `epochal "
                f"checkpoint rewind --to-batch {to_batch}`, or repair with --rewind"
            )
        self.add(*state_after(surveyed, to_batch + 1), *newest_first(surveyed.tree, to_batch, why))
        if committed:
            self.warnings.append(
                f"Batches {committed[0]} to {committed[-1]} were committed and will run again: "
                f"a sink that does not know batch ids gets their rows twice, and a file sink "
                f"must be rewound with `rewind --sink`."
            )
        else:
            self.warnings.append(
                f"What comes after batch {to_batch} was not committed and will be cut anew."
            )
        return None

    @property
    def broken_state(self) -> set[str]:
        """The state files that no version may be built on."""
        return {
            each.path
            for each in self.findings
            if each.code in ("STATE_FILE_UNREADABLE", "STATE_ROW_CHECKSUM", "STATE_ROW_INVALID")
        }

    def _needs_broken_state(self, batch_id: int) -> bool:
        broken = self.broken_state
        return any(
            needs_file(store, batch_id + 1, path.removeprefix(f"{store.path}/"))
            for store in self.surveyed.stores_at(batch_id)
            for path in broken
            if path.rpartition("/")[0] == store.path
        )


Handler = Callable[[Mender, Finding], str | None]
"""Mends one finding, or says why it does not."""


def plan_repair(surveyed: Survey, findings: Iterable[Finding], options: RepairOptions) -> Repair:
    """What to change so that as many findings as possible are gone."""
    found = list(findings)
    unknown = set(options.codes) - HANDLERS.keys()
    if unknown:
        raise OptionError(f"No repair for {', '.join(sorted(unknown))}.")
    if any(each.code == "EDIT_UNFINISHED" for each in found):
        raise EditError(
            surveyed.url,
            "an edit was interrupted here: finish it by running the same command again, or take "
            "it back with `epochal checkpoint undo`, before repairing.",
        )
    mender = Mender(surveyed, found, options)
    mended: list[Finding] = []
    left: list[Left] = []
    for each in found:
        reason = _mend(mender, each)
        if reason is None:
            mended.append(each)
        elif each.severity is not Severity.INFO:
            left.append(Left(each, reason))
    plan = Plan(
        command="repair",
        summary=f"mend {len(mended)} of {len(mended) + len(left)} findings",
        changes=mender.changes(),
        arguments={"codes": ",".join(sorted({each.code for each in mended}))},
        warnings=tuple(dict.fromkeys(mender.warnings)),
        watches=surveyed.log_watches(),
        emptied=tuple(mender.emptied),
    )
    return Repair(plan, tuple(mended), tuple(left))


def _mend(mender: Mender, found: Finding) -> str | None:
    codes = mender.options.codes
    if codes and found.code not in codes:
        return "not asked for"
    if found.code in ONLY_IF_NAMED and found.code not in codes:
        return ONLY_IF_NAMED[found.code]
    handler = HANDLERS.get(found.code)
    return handler(mender, found) if handler else found.remedy


def needs_file(store: StorePicture, version: int, name: str) -> bool:
    """Whether loading `version` reads the state file `name`; with unique ids, whether it may."""
    file, chain = parse_state_file(name), store.chain(version)
    if file is None:
        return False
    if file.kind in (StateFileKind.SNAPSHOT, StateFileKind.ZIP):
        return file.version == chain.snapshot
    return file.version in chain.deltas


def _remove(mender: Mender, found: Finding) -> str | None:
    mender.remove(found.path, found.code.lower().replace("_", " "))
    return None


def _remove_hidden_crc(mender: Mender, found: Finding) -> str | None:
    mender.remove(crc_of(found.path), "stale checksum")
    return None


def _remove_spark_checksum(mender: Mender, found: Finding) -> str | None:
    mender.remove(f"{found.path}.crc", "stale checksum")
    return None


def _write_metadata(mender: Mender, found: Finding) -> str | None:
    content = QueryMetadata(mender.options.query_id).serialize()
    mender.add(mender.surveyed.tree.write(METADATA, content, "a query id"))
    mender.warnings.append(
        f"The query id becomes {mender.options.query_id}; sinks that remember the old one take "
        f"this for another query. Give the old one with --query-id if it is known."
    )
    return None


def _rename(mender: Mender, found: Finding) -> str | None:
    folder, _, name = found.path.rpartition("/")
    batch_id = parse_batch_id(name)
    assert batch_id is not None
    if _fills_hole(mender, folder, batch_id) and (raw := _readable(mender, folder, name)):
        mender.add(mender.surveyed.tree.write(f"{folder}/{batch_id}", raw, f"was named {name}"))
    mender.remove(found.path, "a name that Spark does not write")
    return None


def _fills_hole(mender: Mender, folder: str, batch_id: int) -> bool:
    picture = mender.surveyed.picture
    ids = {OFFSETS: picture.offsets.ids, COMMITS: picture.commits.ids}.get(folder, [])
    return bool(ids) and batch_id not in ids and ids[0] < batch_id < ids[-1]


def _readable(mender: Mender, folder: str, name: str) -> bytes | None:
    raw = mender.surveyed.files.read(f"{folder}/{name}")
    try:
        (OFFSET_FORMAT if folder == OFFSETS else COMMIT_FORMAT).deserialize(raw, name)
    except EpochalError:
        return None
    return raw


def _clear_directory(mender: Mender, found: Finding) -> str | None:
    for path in mender.surveyed.tree.under(found.path):
        if not path.rpartition("/")[2].startswith("."):
            mender.remove(path, "in a directory that has the name of a batch")
    mender.emptied.append(found.path)
    return None


def _unreadable_entry(mender: Mender, found: Finding) -> str | None:
    folder, _, name = found.path.rpartition("/")
    batch_id = parse_batch_id(name.removesuffix(".compact"))
    if batch_id is None:
        return found.remedy
    if folder == COMMITS:
        return _unreadable_commit(mender, batch_id)
    if folder == OFFSETS:
        return _unreadable_offsets(mender, batch_id)
    if folder.startswith(f"{SOURCES}/"):
        from epochal.tools.edit.repair_sources import mend_source_batch

        return mend_source_batch(mender, folder, batch_id)
    return found.remedy


def _unreadable_commit(mender: Mender, batch_id: int) -> str | None:
    surveyed = mender.surveyed
    newest = surveyed.picture.offsets.latest
    if batch_id == newest and (batch_id == 0 or batch_id - 1 in surveyed.commits):
        if batch_id and (missing := surveyed.missing_state(batch_id - 1)) is not None:
            return f"the batch cannot run again: {missing} is gone"
        mender.remove(f"{COMMITS}/{batch_id}", "unreadable: the batch runs again")
        mender.warnings.append(f"Batch {batch_id} runs again, with the same offsets.")
        return None
    return _write_commit(mender, batch_id)


def _write_commit(mender: Mender, batch_id: int) -> str | None:
    """Write a commit again from what the batch after it recorded."""
    surveyed = mender.surveyed
    following = surveyed.offsets.get(batch_id + 1)
    versions = {entry.version for entry in surveyed.commits.values()}
    if following is None or batch_id not in surveyed.offsets or versions != {1}:
        return "what it said cannot be told from its neighbours; a restart does not need it"
    content = COMMIT_FORMAT.serialize(CommitEntry(1, following.watermark_ms))
    mender.add(
        surveyed.tree.write(f"{COMMITS}/{batch_id}", content, f"as batch {batch_id + 1} tells")
    )
    return None


def _write_commits(mender: Mender, found: Finding) -> str | None:
    ids = mender.surveyed.picture.commits.ids
    lost = [i for i in mender.surveyed.offsets if ids[0] < i < ids[-1] and i not in ids]
    reasons = [_write_commit(mender, batch_id) for batch_id in lost]
    return next((reason for reason in reasons if reason is not None), None)


def _unreadable_offsets(mender: Mender, batch_id: int) -> str | None:
    surveyed = mender.surveyed
    newest = surveyed.picture.offsets.latest
    assert newest is not None
    if batch_id < newest - 1:
        return "a restart does not need it, and Spark will purge it; no rewind can go there"
    if batch_id == newest - 1 and newest in surveyed.commits and newest in surveyed.offsets:
        return _stand_in(mender, batch_id, newest)
    if batch_id == newest and batch_id not in surveyed.picture.commits.ids:
        return mender.go_back(None, "unreadable and not committed: cut anew")
    return mender.go_back(batch_id, f"after the unreadable offsets of {batch_id}")


def _stand_in(mender: Mender, batch_id: int, newest: int) -> str | None:
    """Fill the place before a committed batch, which a restart only checks to be there."""
    entry: OffsetEntry = mender.surveyed.offsets[newest]
    earlier = mender.surveyed.offsets.get(batch_id - 1)
    if earlier is not None:
        entry = replace(entry, watermark_ms=earlier.watermark_ms, timestamp_ms=earlier.timestamp_ms)
    path = f"{OFFSETS}/{batch_id}"
    content = OFFSET_FORMAT.serialize(entry)
    mender.add(mender.surveyed.tree.write(path, content, f"stands in, with the end of {newest}"))
    mender.warnings.append(
        f"{path} gets the offsets of batch {newest}: good for a restart, not for a rewind to "
        f"batch {batch_id}."
    )
    return None


def _fill_gap(mender: Mender, found: Finding) -> str | None:
    surveyed = mender.surveyed
    newest = surveyed.picture.offsets.latest
    assert newest is not None
    if newest > 0 and newest - 1 not in surveyed.picture.offsets.ids:
        if newest in surveyed.commits and newest in surveyed.offsets:
            return _stand_in(mender, newest - 1, newest)
        return mender.go_back(None, "cannot be restarted: the batch before is missing")
    return "a restart does not need the missing batches; no rewind can go there"


def _drop_undecided(mender: Mender, found: Finding) -> str | None:
    return mender.go_back(None, "not committed: cut anew")


def _remove_commit(mender: Mender, found: Finding) -> str | None:
    mender.remove(found.path, "a commit without offsets")
    batch_id = parse_batch_id(found.path.rpartition("/")[2])
    newest = mender.surveyed.picture.offsets.latest
    if batch_id is not None and newest is not None and batch_id > newest:
        mender.add(*state_after(mender.surveyed, newest + 1))
        mender.warnings.append(
            f"Batch {batch_id} was committed and will be cut anew: rewind the sink too."
        )
    return None


def _restore_conf(mender: Mender, found: Finding) -> str | None:
    """Carry the pinned settings of the first batch through all later ones."""
    surveyed = mender.surveyed
    pinned: dict[str, str] = {}
    for batch_id, entry in sorted(surveyed.offsets.items()):
        keys = [SHUFFLE_PARTITIONS, *STATE_SHAPE_KEYS]
        conf = {**entry.conf, **{key: pinned[key] for key in keys if key in pinned}}
        pinned.update({key: conf[key] for key in keys if key in conf})
        if conf != dict(entry.conf):
            content = OFFSET_FORMAT.serialize(replace(entry, conf=conf))
            path = f"{OFFSETS}/{batch_id}"
            mender.add(surveyed.tree.write(path, content, "settings of the batch before"))
    return None


def _undo_repartition(mender: Mender, found: Finding) -> str | None:
    mender.warnings.append("To finish the repartition instead, run the same one again.")
    return mender.go_back(None, "an unfinished repartition")


def _remove_ahead(mender: Mender, found: Finding) -> str | None:
    newest = mender.surveyed.picture.offsets.latest
    mender.add(*state_after(mender.surveyed, 0 if newest is None else newest + 1))
    return None


def _broken_state(mender: Mender, found: Finding) -> str | None:
    store = next(
        (each for each in mender.surveyed.stores if found.path.startswith(f"{each.path}/")), None
    )
    name = found.path.rpartition("/")[2]
    if store is None:
        return found.remedy
    version = int(name.partition(".")[0].partition("_")[0])
    if name.endswith(".snapshot"):
        good = _good_files(store, mender.broken_state | {found.path})
        wanted = mender.surveyed.picture.restart_version
        if missing_file(good, max(version, wanted)) is None:
            mender.remove(found.path, "its deltas tell the same")
            mender.remove(f"{found.path}.crc", "checksum of a removed snapshot")
            return None
    elif not needs_file(store, mender.surveyed.picture.restart_version, name):
        return "a restart does not need it; versions that do cannot be rewound to"
    return mender.go_back(version - 1, f"needs {found.path}, which is broken")


def _good_files(store: StorePicture, broken: Collection[str]) -> StorePicture:
    """The store as if its broken files were gone."""

    def good(files: Mapping[int, str]) -> dict[int, str]:
        return {each: file for each, file in files.items() if f"{store.path}/{file}" not in broken}

    return replace(store, snapshots=good(store.snapshots), deltas=good(store.deltas))


def _remove_operator_metadata(mender: Mender, found: Finding) -> str | None:
    if not found.path.endswith("/_metadata/metadata"):
        return found.remedy
    mender.remove(found.path, "unreadable: Spark writes it again on the next start")
    return None


def _follow_move(mender: Mender, found: Finding) -> str | None:
    from epochal.tools.edit.copy_checkpoint import follow_schema_paths

    surveyed = mender.surveyed
    raw = surveyed.files.read(found.path)
    content = follow_schema_paths(raw, join_url(surveyed.url, found.path), surveyed.files)
    mender.add(surveyed.tree.write(found.path, content, "points at this checkpoint"))
    return None


def _mend_file_log(mender: Mender, found: Finding) -> str | None:
    from epochal.tools.edit.repair_sources import mend_file_log

    folder = found.path.rpartition("/")[0]
    return mend_file_log(mender, folder) if folder.startswith(f"{SOURCES}/") else found.remedy


HANDLERS: dict[str, Handler] = {
    "CRC_ORPHAN": _remove,
    "CRC_STALE": _remove_hidden_crc,
    "CRC_REFUSED": _remove_hidden_crc,
    "CHECKSUM_MISMATCH": _remove_spark_checksum,
    "CHECKSUM_UNREADABLE": _remove,
    "CHECKSUM_ORPHAN": _remove,
    "METADATA_MISSING": _write_metadata,
    "METADATA_UNREADABLE": _write_metadata,
    "LOG_NAME_NOT_CANONICAL": _rename,
    "LOG_NAME_TAKEN": _clear_directory,
    "LOG_ENTRY_UNREADABLE": _unreadable_entry,
    "OFFSETS_GAP": _fill_gap,
    "COMMITS_GAP": _write_commits,
    "COMMITS_BEHIND": _drop_undecided,
    "COMMIT_WITHOUT_OFFSETS": _remove_commit,
    "CONF_KEY_LOST": _restore_conf,
    "CONF_CHANGED": _restore_conf,
    "PARTITIONS_CHANGED": _restore_conf,
    "REPARTITION_UNFINISHED": _undo_repartition,
    "STATE_AHEAD": _remove_ahead,
    "STATE_SNAPSHOT_AHEAD": _remove_ahead,
    "STATE_STRAY_SNAPSHOT": _remove,
    "STATE_STRAY_FILE": _remove,
    "STATE_FILE_UNREADABLE": _broken_state,
    "STATE_SNAPSHOT_DISAGREES": _broken_state,
    "STATE_ROW_CHECKSUM": _broken_state,
    "OPERATOR_METADATA_UNREADABLE": _remove_operator_metadata,
    "OPERATOR_METADATA_MOVED": _follow_move,
    "FILE_LOG_HOLE": _mend_file_log,
    "FILE_LOG_COMPACT_NAME": _mend_file_log,
}
