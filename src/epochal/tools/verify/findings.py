"""Defines everything that `verify` can find: each code with its severity, meaning and remedy. Pure.

`repair` chooses its steps by these codes, and the documentation is generated from this table. A
checkpoint is healthy if no finding is worse than `info`.

Note: programs match on the codes. Never rename one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

Progress = Callable[[int, int], None]
"""Called with the number of state files checked so far, and the total."""


class Depth(StrEnum):
    """How much `verify` reads.

    `QUICK` reads the logs and the names of the state files. `NORMAL` also reads every state file
    and checks every row; of RocksDB's data files it checks the blocks, not the rows in them.
    `DEEP` also opens the databases of RocksDB and checks their keys, replays the deltas before
    every snapshot, not only of those that may be copies, and checks Hadoop's checksums of files
    that contain checksums themselves.
    """

    QUICK = "quick"
    NORMAL = "normal"
    DEEP = "deep"


class Severity(StrEnum):
    """How bad a finding is.

    An `error` prevents a restart or means wrong data. A `warning` may lead to that. An `info` is
    worth knowing, for example that a rewind cannot go far. So a finding for which nothing needs to
    be done is always an `info`.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: where it is, what is wrong, and what to do about it."""

    code: str
    severity: Severity
    path: str
    message: str
    remedy: str
    version: int | None = None
    """The first version of the state that needs the file, if its name does not tell."""

    def as_json(self) -> dict[str, str]:
        names = ("code", "severity", "path", "message", "remedy")
        return {name: str(getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True)
class Rule:
    severity: Severity
    meaning: str
    remedy: str


CANNOT = "Epochal cannot repair this"
"""Begins the remedy of a problem that no command mends."""
NOTHING = "Nothing needs to be done"
"""Begins the remedy of a finding that a restart survives, and that no command removes."""

_error = partial(Rule, Severity.ERROR)
_warning = partial(Rule, Severity.WARNING)
_info = partial(Rule, Severity.INFO)

START_OVER = "start over with an empty checkpoint directory and a new output"
REPAIR = "`epochal checkpoint repair CHECKPOINT --sink OUTPUT`"
_PUBLISH = "`epochal checkpoint publish CHECKPOINT`"
_REWIND = (
    "`epochal checkpoint rewind CHECKPOINT --to-batch N --sink OUTPUT` to the batch that `verify` "
    "names"
)


def _trusting(code: str) -> str:
    return f"`epochal checkpoint repair CHECKPOINT --code {code} --sink OUTPUT`"


RULES: dict[str, Rule] = {
    "FILE_UNREADABLE": _error(
        "A file or directory cannot be read from its storage.",
        f"{CANNOT}. Give this user permission to read it, or check the storage; then verify again.",
    ),
    "NOT_A_DIRECTORY": _error(
        "A file has the name of one of a checkpoint's directories.",
        f"{CANNOT}. Move the file away and restore the directory from a backup.",
    ),
    "PATH_ESCAPED": _error(
        "Spark before 3.0 escaped special characters in the path and stored the files under that "
        "name. Later releases refuse to start if that directory exists.",
        f"{CANNOT}. Stop the query and rename the directory with the escaped name to the right "
        f"name. If both have content, keep the one whose batches are newer.",
    ),
    "METADATA_MISSING": _error(
        "The logs have entries, but the file `metadata` with the query's id is missing: Spark 4.2 "
        "and later refuse to start, earlier releases start with a new id.",
        f"Use {REPAIR}, which writes a new query id, or restore the file from a backup.",
    ),
    "METADATA_UNREADABLE": _error(
        "The file `metadata` contains no valid query id.",
        f"Use {REPAIR}, which writes a new query id, or restore the file from a backup.",
    ),
    "CHECKPOINT_SWITCHED": _info(
        "The query was switched to another checkpoint, so no query starts on this one.",
        f"{NOTHING}. Start the query on the checkpoint that the message names. The command switch "
        f"with --back and that checkpoint returns to this one.",
    ),
    "OFFSETS_MISSING": _error(
        "`commits` or `state` is not empty, but `offsets` is: Spark 4.1 and later refuse to "
        "start, earlier releases start at batch 0 on top of the old state.",
        f"{CANNOT}. Restore `offsets` from a backup, or {START_OVER}.",
    ),
    "LOG_ENTRY_UNREADABLE": _error(
        "A file of a log does not have the log's format.",
        f"Restore the file from a backup, or use {REPAIR} if other entries have its content. "
        f"Otherwise use {_REWIND}. A restart does not need entries of old batches.",
    ),
    "LOG_VERSION_UNKNOWN": _error(
        "A file of a log has a newer format version than this release of Epochal knows.",
        f"{CANNOT}. Read it with the release of Spark that wrote it, or upgrade Epochal.",
    ),
    "LOG_NAME_NOT_CANONICAL": _error(
        "A file's name parses as a batch id, but Spark would spell it differently (`007`, `+9`): "
        "Spark lists the batch and then does not find its file.",
        f"Use {REPAIR}: it moves the file out of the log.",
    ),
    "LOG_NAME_TAKEN": _error(
        "A directory has the name of a batch: Spark ignores it when it reads, and fails when it "
        "writes that batch.",
        f"Use {REPAIR}: it moves the directory out of the log.",
    ),
    "OFFSETS_GAP": _error(
        "Batches are missing from `offsets`. A restart needs the newest batch and the one before "
        "it.",
        f"Use {REPAIR}, which goes back to the last batch that can be restarted. (If the query "
        f"is stateless and runs with asyncProgressTrackingEnabled, such gaps are legal.)",
    ),
    "OFFSETS_GAP_ASYNC": _info(
        "The same batches are missing from `offsets` and `commits`. Asynchronous progress "
        "tracking leaves such gaps, but not with a file sink: with `--sink` this is an "
        "`OFFSETS_GAP`.",
        f"{NOTHING}, as long as the query runs with asyncProgressTrackingEnabled: without it the "
        "newest batch and the one before it must both be in the log.",
    ),
    "COMMITS_GAP": _warning(
        "Batches have offsets but no commit, although a later batch is committed.",
        f"A restart does not need them. Use {REPAIR} to write them again.",
    ),
    "COMMITS_BEHIND": _warning(
        "Several batches are not committed: Spark runs only the newest one again, so the output "
        "of the others is lost.",
        f"Use {_REWIND}, the newest committed one, so that everything after it is run again.",
    ),
    "COMMIT_WITHOUT_OFFSETS": _error(
        "A batch is committed but has no offsets. Spark never leaves a checkpoint like this.",
        f"Restore the offsets from a backup, or use {_REWIND}, the newest one with offsets; for a "
        f"commit of an old batch use {REPAIR}, which removes it.",
    ),
    "SOURCE_COUNT_CHANGED": _error(
        "Two consecutive batches have offsets for different numbers of sources.",
        f"Use {_REWIND}, and restart a query that has as many sources as that batch.",
    ),
    "CONF_KEY_LOST": _error(
        "A batch lacks a setting that the batch before it pins: a restart uses a legacy default "
        "instead, or cannot read the state at all.",
        f"Use {REPAIR}: it copies the setting from the batch before.",
    ),
    "CONF_INCOMPLETE": _info(
        "The batches of a stateful query do not pin the number of partitions or the state store "
        "provider. Early releases of Spark left this out; the `statestore` reader rejects it.",
        f"{NOTHING}: a restart uses the session's values. Always start the query with the same "
        "values.",
    ),
    "CONF_INVALID": _error(
        "A setting that a batch pins has a value that Spark cannot use.",
        f"Use {REPAIR}: it restores the value of another batch, if one has a value that Spark can "
        f"use.",
    ),
    "CONF_CHANGED": _error(
        "A setting that decides how state is read differs between consecutive batches: older "
        "state files can no longer be read.",
        f"Use {REPAIR}: it restores the value of the batch before.",
    ),
    "PARTITIONS_CHANGED": _error(
        "The number of state partitions changes in a batch that is not a repartition.",
        f"Use {REPAIR}: it restores the number of the batch before.",
    ),
    "REPARTITION_UNFINISHED": _error(
        "The newest batch changes the number of partitions and is not committed: Spark refuses "
        "to start (STREAMING_UNFINISHED_REPARTITION_DETECTED).",
        f"Use {REPAIR}, which goes back to the batch before, or run the same repartition again "
        f"to finish it.",
    ),
    "WATERMARK_BACKWARDS": _warning(
        "The watermark moves backwards from one batch to the next: rows that were already "
        "dropped as late are accepted, and windows that were already closed open again.",
        f"If this was not set on purpose, use {_REWIND}.",
    ),
    "TIMESTAMP_BACKWARDS": _info(
        "A batch has an earlier timestamp than the batch before it.",
        f"{NOTHING}: later batches have later timestamps. Check the clocks of the machines that "
        f"the driver runs on, because processing-time timers depend on the timestamp.",
    ),
    "OFFSETS_BACKWARDS": _error(
        "The newest offsets of a file source are behind those of the batch before, as those of an "
        "older batch that was copied: a restart fails with `assertion failed`.",
        f"Use {REPAIR}: it removes a batch that is not committed, and Spark plans it again. "
        f"Otherwise use {_REWIND}.",
    ),
    "SOURCE_LOG_BEHIND": _error(
        "The offsets name entries that a file source's log does not have: a restart fails, or "
        "files are lost.",
        f"Restore `sources` from a backup, or use {_REWIND}.",
    ),
    "FILE_LOG_HOLE": _error(
        "A file log lacks batches that its readers or its next compaction need: their files are "
        "missing, or those that are there are torn, or copies of others. An edit that adds a batch "
        "to the checkpoint alone leaves such a hole in the log of a file sink.",
        f"Use {REPAIR}: it writes the batch again, if it was added by an edit or if the other "
        f"entries still list its files, and removes copies that no batch needs. Otherwise use "
        f"{_REWIND}.",
    ),
    "FILE_LOG_COMPACT_NAME": _error(
        "A batch of a file log is named `N` although the compaction interval requires "
        "`N.compact`, or the reverse: Spark does not find it. Or both are there.",
        f"Use {REPAIR}: it renames or rewrites the file.",
    ),
    "FILE_LOG_BATCH_MISMATCH": _error(
        "An entry of a file source's log names a batch other than the one it is in: the file is "
        "read in the wrong batch, or never.",
        f"{CANNOT}: no other file tells which batch is right. Restore the file from a backup.",
    ),
    "SINK_FILE_MISSING": _error(
        "A file that the sink's log lists is not in the output directory: readers fail.",
        f"{CANNOT}: the rows are nowhere else. Restore the file from a backup.",
    ),
    "SINK_AHEAD": _warning(
        "The sink's log has batches that the checkpoint's offsets do not have yet: the sink will "
        "skip them, and their rows are lost unless they are the same as before. It is an error if "
        "the sink has a batch that is not committed and whose state is missing: the batch is "
        "skipped, its state is never written, and the next batch fails.",
        f"Use {_REWIND}, so that the sink goes back with it.",
    ),
    "SINK_OF_ANOTHER_QUERY": _error(
        "The output has batches of before this query planned them: its checkpoint is new, or went "
        "back without it. Spark skips them silently, so rows are lost; a rewind may help.",
        f"{CANNOT}: the skipped rows are nowhere. Stop the query, and {START_OVER}.",
    ),
    "CRC_ORPHAN": _error(
        "A hidden Hadoop checksum file exists without its file: when Spark writes that file, it "
        "fails with a misleading concurrency error.",
        f"Use {REPAIR}: it removes the checksum file.",
    ),
    "CRC_STALE": _warning(
        "A file does not match its hidden Hadoop checksum: a person or a disk fault changed it. "
        "Spark does not check this file.",
        f"If the content is right, use {REPAIR}, which removes the checksum file. Otherwise "
        f"restore the file from a backup.",
    ),
    "CRC_REFUSED": _error(
        "A file does not match its hidden Hadoop checksum, and Spark checks this file: loading "
        "the state fails.",
        f"If the file is right, use {_trusting('CRC_REFUSED')}, which removes the checksum file. "
        f"Otherwise restore the file from a backup, or use {_REWIND}.",
    ),
    "CHECKSUM_MISMATCH": _error(
        "A state file does not match its checksum file: Spark 4.1 refuses to load it.",
        f"If the file is right, use {_trusting('CHECKSUM_MISMATCH')}, which removes the checksum "
        f"file. Otherwise restore the file from a backup, or use {_REWIND}.",
    ),
    "CHECKSUM_UNREADABLE": _error(
        "The checksum file of a state file cannot be read: Spark 4.1 refuses to load the state "
        "file.",
        f"Use {REPAIR}: it removes the checksum file.",
    ),
    "CHECKSUM_ORPHAN": _info(
        "A checksum file exists without its state file.",
        f"{NOTHING}: Spark's next cleanup removes it.",
    ),
    "STATE_BEHIND": _error(
        "The newest version of a store is older than the version that a restart needs.",
        f"Restore its files from a backup, or use {_REWIND}.",
    ),
    "STATE_CHAIN_BROKEN": _error(
        "A store lacks a file of the version that a restart loads.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_UNPUBLISHED": _info(
        "The newest state of a continuous query is in its epoch files, where Spark does not look.",
        f"{NOTHING}, unless Spark is to run the query: then use {_PUBLISH}, or start and stop the "
        f"query.",
    ),
    "EPOCH_FILE_BROKEN": _error(
        "An epoch file that the newest batch of a continuous query needs is missing or damaged.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_HOLE": _info(
        "A store lacks a file of an older version that is still retained.",
        f"{NOTHING}: a restart does not need this file. Only a rewind to that version is "
        f"impossible.",
    ),
    "STATE_AHEAD": _warning(
        "A store has deltas of batches that are not in the logs. An incomplete rewind leaves such "
        "files.",
        f"Use {REPAIR}: it removes them.",
    ),
    "STATE_SNAPSHOT_AHEAD": _error(
        "A store has a snapshot of a batch that is not in the logs: once Spark reaches that "
        "version, it loads this snapshot instead of the state that it has computed.",
        f"Use {REPAIR}: it removes the snapshot.",
    ),
    "STATE_OPERATOR_MISSING": _error(
        "An operator has no directory, although a later operator has one or a commit names its "
        "state.",
        f"{CANNOT}. Restore it from a backup. Without it, a restart fails or begins with empty "
        f"state.",
    ),
    "STATE_PARTITION_MISSING": _error(
        "A partition has no directory, although other partitions of its operator have one.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_STORE_MISSING": _error(
        "A partition lacks a store that the other partitions of its operator have.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_FILE_UNREADABLE": _error(
        "A delta, snapshot or changelog is damaged.",
        f"Restore it from a backup, or use {REPAIR}, which removes a broken snapshot that its "
        f"deltas can replace, and state of a batch that runs again, or use {_REWIND}.",
    ),
    "STATE_ROW_INVALID": _error(
        "A key or value in a state file does not fit the schema: Spark would read garbage from it.",
        f"Restore the file from a backup, or use {_REWIND}.",
    ),
    "STATE_ROW_CHECKSUM": _error(
        "A row in a state file does not match the checksum that was stored with it.",
        f"Restore the file from a backup, or use {_REWIND}.",
    ),
    "STATE_KEY_WRONG_PARTITION": _error(
        "A key is in a partition where Spark does not look for it: Spark treats the key as new.",
        f"The file was copied from another partition, or written by another program. Restore it "
        f"from a backup, or use {_REWIND}. A repartition would keep the foreign rows.",
    ),
    "STATE_SNAPSHOT_DISAGREES": _error(
        "A snapshot's content differs from the previous snapshot plus the deltas since then.",
        f"If the deltas are right, use {_trusting('STATE_SNAPSHOT_DISAGREES')}, which removes the "
        f"snapshot. Otherwise use {_REWIND}.",
    ),
    "STATE_STRAY_SNAPSHOT": _error(
        "A file's name ends in `.snapshot` but does not begin with a version: Spark 4.2 and later "
        "fail to load the store.",
        f"Use {REPAIR}: it moves the file away.",
    ),
    "STATE_STRAY_FILE": _warning(
        "A file in a store's directory is named `X.Y`, and X is not a version: Spark's maintenance "
        "fails on it, so that snapshots and cleanup stop.",
        f"Use {REPAIR}: it moves the file away.",
    ),
    "STATE_SCHEMA_UNREADABLE": _error(
        "A state schema file is damaged: a restart fails.",
        f"{CANNOT}. Restore it from a backup; without it the rows of the state cannot be checked.",
    ),
    "STATE_SCHEMA_MISSING": _error(
        "A state store has no schema file, so its rows cannot be read or checked. If the "
        "operator's metadata names the file, a restart fails. Otherwise Spark writes it again when "
        "the query starts.",
        f"{CANNOT}. Restore it from a backup. If the operator's metadata names the file, nothing "
        f"else helps.",
    ),
    "OPERATOR_METADATA_MISSING": _error(
        "A stateful operator has no metadata. If its schemas are in `_stateSchema`, a restart "
        "fails, and so do Spark's state readers. Otherwise Spark writes it again when the query "
        "starts.",
        f"{CANNOT}. Restore it from a backup. If the operator's schemas are in `_stateSchema`, "
        f"nothing else helps.",
    ),
    "OPERATOR_METADATA_UNREADABLE": _error(
        "The metadata of a stateful operator is damaged: a restart fails, and so do Spark's state "
        "readers.",
        f"Use {REPAIR} for a single metadata file: it removes it, and Spark writes it on the next "
        f"start. {CANNOT} for a log of metadata: restore it from a backup.",
    ),
    "OPERATOR_METADATA_MOVED": _warning(
        "The metadata of a stateful operator points at schema files outside this checkpoint, as "
        "it does after a plain copy of the directory.",
        f"Use {REPAIR}: it rewrites the paths. Next time, copy the checkpoint with Epochal, which "
        f"does the same.",
    ),
    "ROCKSDB_ZIP_UNREADABLE": _error(
        "A RocksDB snapshot cannot be opened, or its MANIFEST is damaged or names other files.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "ROCKSDB_FILE_MISSING": _error(
        "A RocksDB snapshot names a data file that is missing.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "ROCKSDB_FILE_SIZE": _error(
        "A data file of a RocksDB snapshot does not have the size that the snapshot records.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "ROCKSDB_FILE_BROKEN": _error(
        "A block of a RocksDB data file does not match its checksum, or the file is not the one "
        "that the snapshot's MANIFEST names: Spark fails when it reads it.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "ROCKSDB_UNCHECKED": _warning(
        "The content of RocksDB state was not checked, so it is unknown whether it is sound.",
        f"{CANNOT}: it does not know what is there. If the message names a package, install it and "
        f"verify again. Otherwise read the state with Spark.",
    ),
    "ROCKSDB_ID_MISSING": _error(
        "The commit log names state files that are missing.",
        f"Restore them from a backup, or use {_REWIND}.",
    ),
    "EDIT_UNFINISHED": _error(
        "An edit was interrupted: the checkpoint is between two states.",
        "Run the same command again to finish it, or `epochal checkpoint undo CHECKPOINT` to "
        "revert it.",
    ),
}


def finding(
    code: str, path: str, message: str, *, severity: Severity | None = None, remedy: str = ""
) -> Finding:
    """Return a finding with a code's usual severity and remedy, unless others are given."""
    rule = RULES[code]
    return Finding(code, severity or rule.severity, path, message, remedy or rule.remedy)


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether no finding is worse than `info`."""
    return all(each.severity is Severity.INFO for each in findings)


_ONLY_DEEP = frozenset({"CRC_REFUSED", "STATE_SNAPSHOT_DISAGREES"})


def depth_to_find(codes: Collection[str]) -> Depth:
    """The depth at which `verify` finds everything that has one of these codes."""
    return Depth.DEEP if _ONLY_DEEP & set(codes) else Depth.NORMAL


_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: the worst first, then by path, then by code."""
    return sorted(findings, key=lambda each: (_RANK[each.severity], each.path, each.code))
