"""What `verify` can find: every code with its severity, its meaning and its remedy. Pure.

The codes are a contract: programs match on them, `repair` works from them, the documentation lists
them from this table. `healthy` means that nothing here is above `info`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is: `error` stops a restart or means wrong data, `warning` limits what can be
    done, `info` is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, where, and what to do about it."""

    code: str
    severity: Severity
    path: str
    message: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """The form that `verify --json` promises."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "path": self.path,
            "message": self.message,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """A code of the table: its usual severity, what it means, what to do."""

    severity: Severity
    meaning: str
    remedy: str


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

_REPAIR = "`epochal checkpoint repair`"
_REWIND = "`epochal checkpoint rewind` to a batch before it"

RULES: dict[str, Rule] = {
    "FILE_UNREADABLE": Rule(
        _E,
        "A file or directory cannot be read from its storage.",
        "Let this user read it, or check the storage below it; then verify again.",
    ),
    "NOT_A_DIRECTORY": Rule(
        _E,
        "A file has the name of one of a checkpoint's directories.",
        "Move the file away and restore the directory from a backup.",
    ),
    "PATH_ESCAPED": Rule(
        _E,
        "Spark before 3.0 escaped special characters in the path and kept the files under that "
        "name; later releases stop where they find it.",
        "Stop the query and move the directory with the escaped name to the right one; if both "
        "have content, keep the one whose batches are newer.",
    ),
    "METADATA_MISSING": Rule(
        _E,
        "The logs have entries, but there is no `metadata` with the query's id: Spark 4.2 and "
        "later refuse to start, earlier ones start under a new id.",
        f"Use {_REPAIR}: it writes a new query id; or restore the file from a backup.",
    ),
    "METADATA_UNREADABLE": Rule(
        _E,
        "`metadata` holds no query id.",
        f"Use {_REPAIR}: it writes a new query id; or restore the file from a backup.",
    ),
    "OFFSETS_MISSING": Rule(
        _E,
        "`commits` or `state` have content, `offsets` has none: Spark 4.1 and later refuse to "
        "start, earlier ones start at batch 0 beside the state of another life.",
        "Restore `offsets` from a backup, or start over with an empty checkpoint directory.",
    ),
    "LOG_ENTRY_UNREADABLE": Rule(
        _E,
        "A file of a log breaks the log's format.",
        f"Restore the file from a backup, or use {_REPAIR}, which goes back "
        f"to the last batch whose files can be read.",
    ),
    "LOG_VERSION_UNKNOWN": Rule(
        _E,
        "A file of a log was written in a format newer than the formats known here.",
        "Read it with the release of Spark that wrote it, or upgrade Epochal.",
    ),
    "LOG_NAME_NOT_CANONICAL": Rule(
        _E,
        "A file's name stands for a batch id, but is not how Spark writes it (`007`, `+9`): Spark "
        "lists the batch and then does not find its file.",
        f"Use {_REPAIR}: it moves the file out of the log.",
    ),
    "LOG_NAME_TAKEN": Rule(
        _E,
        "A directory has the name of a batch: Spark passes over it when it reads and stops when "
        "it must write that batch.",
        f"Use {_REPAIR}: it moves the directory out of the log.",
    ),
    "OFFSETS_GAP": Rule(
        _E,
        "Batches are missing from `offsets`. A restart needs the newest one and the one before.",
        f"Use {_REPAIR}, which goes back to the last batch that can be restarted. (If the query "
        f"is stateless and runs with asyncProgressTrackingEnabled, such gaps are legal.)",
    ),
    "OFFSETS_GAP_ASYNC": Rule(
        _I,
        "Batches are missing from `offsets` and `commits` alike, as asynchronous progress "
        "tracking leaves them.",
        "Nothing, as long as the query runs with asyncProgressTrackingEnabled: without it the "
        "newest batch and the one before must both be in the log.",
    ),
    "COMMITS_GAP": Rule(
        _W,
        "Batches that have offsets, and later commits, have no commit of their own.",
        f"A restart does not need them. Use {_REPAIR} to write them again.",
    ),
    "COMMITS_BEHIND": Rule(
        _W,
        "More than the newest batch is not committed: Spark runs only the newest one again, the "
        "output of the others is never made up for.",
        f"Use {_REWIND}, so that everything after the newest commit is run again.",
    ),
    "COMMIT_WITHOUT_OFFSETS": Rule(
        _E,
        "A batch is committed but has no offsets, which Spark never does.",
        f"Restore the offsets from a backup, or use {_REPAIR}, which removes the commit.",
    ),
    "SOURCE_COUNT_CHANGED": Rule(
        _E,
        "Neighbouring batches have offsets of a different number of sources.",
        f"Use {_REWIND}, with the plan that has as many sources.",
    ),
    "CONF_KEY_LOST": Rule(
        _E,
        "A batch lacks a setting that the batch before it had pinned: a restart takes a legacy "
        "default instead, or cannot read its state at all.",
        f"Use {_REPAIR}: it copies the setting from the batch before.",
    ),
    "CONF_INCOMPLETE": Rule(
        _I,
        "A stateful query's batches do not pin the number of partitions or the state store "
        "provider, as early releases left it; Spark's `statestore` reader refuses them.",
        "Nothing: a restart uses the session's values. Start it with the values it always had.",
    ),
    "CONF_INVALID": Rule(
        _E,
        "A setting that a batch pins has a value that Spark cannot use.",
        f"Use {_REPAIR}: it restores the value of the batch before.",
    ),
    "CONF_CHANGED": Rule(
        _E,
        "A setting that decides how state is read differs between neighbouring batches: older "
        "state files can no longer be read.",
        f"Use {_REPAIR}: it restores the value of the batch before.",
    ),
    "PARTITIONS_CHANGED": Rule(
        _E,
        "The number of state partitions changes between batches that are not a repartition.",
        f"Use {_REPAIR}: it restores the number of the batch before.",
    ),
    "REPARTITION_UNFINISHED": Rule(
        _E,
        "The newest batch changes the number of partitions and is not committed: Spark refuses "
        "to start (STREAMING_UNFINISHED_REPARTITION_DETECTED).",
        "Run the same repartition again to finish it, or rewind to the batch before.",
    ),
    "WATERMARK_BACKWARDS": Rule(
        _W,
        "The watermark goes back from one batch to the next, so rows already dropped as late "
        "would be accepted and windows already closed would open again.",
        "If nobody set it on purpose, rewind to the batch before and let Spark go on from there.",
    ),
    "TIMESTAMP_BACKWARDS": Rule(
        _W,
        "A batch has an earlier timestamp than the batch before it.",
        "Check the clocks of the machines the driver runs on; processing-time timers depend on it.",
    ),
    "SOURCE_LOG_BEHIND": Rule(
        _E,
        "The offsets name entries of a file source's log that are not there: a restart fails, or "
        "files are lost.",
        f"Restore `sources` from a backup, or use {_REWIND}.",
    ),
    "FILE_LOG_HOLE": Rule(
        _E,
        "A file log lacks batches that its entries, or its next compaction, are made of.",
        f"Use {_REPAIR}, which writes the batch again from what is known of it.",
    ),
    "FILE_LOG_COMPACT_NAME": Rule(
        _E,
        "A batch of a file log is `N` where the interval demands `N.compact`, or the reverse: "
        "Spark does not find it.",
        f"Use {_REPAIR}: it renames or rewrites the file.",
    ),
    "FILE_LOG_BATCH_MISMATCH": Rule(
        _E,
        "An entry of a file source's log names another batch than the one it is in: the file is "
        "read in the wrong batch, or never.",
        "Restore the file from a backup.",
    ),
    "SINK_FILE_MISSING": Rule(
        _E,
        "A file that the sink's log lists is not in the output directory: readers fail.",
        "Restore the file from a backup, or rewind to the batch that wrote it.",
    ),
    "SINK_AHEAD": Rule(
        _W,
        "The sink's log has batches that the checkpoint has not decided: the sink will skip them, "
        "and their rows are lost unless they are the same as before.",
        "Rewind the sink together with the checkpoint.",
    ),
    "CRC_ORPHAN": Rule(
        _E,
        "A hidden Hadoop checksum is there without its file: when Spark writes that file it stops "
        "with a misleading concurrency error.",
        f"Use {_REPAIR}: it removes the checksum file.",
    ),
    "CRC_STALE": Rule(
        _W,
        "A file is not what its hidden Hadoop checksum was written for: somebody changed it, or "
        "the disk did. Spark does not check this file.",
        f"If the content is wanted, use {_REPAIR}, which removes the "
        f"checksum. Otherwise restore the file.",
    ),
    "CRC_REFUSED": Rule(
        _E,
        "A file is not what its hidden Hadoop checksum was written for, and Spark checks this "
        "one: loading the state fails.",
        "Restore the file from a backup, or rewind to an older version of the state.",
    ),
    "CHECKSUM_MISMATCH": Rule(
        _E,
        "A state file is not what the checksum file beside it says: Spark 4.1 refuses it.",
        "Restore the file from a backup, or rewind to an older version of the state.",
    ),
    "CHECKSUM_UNREADABLE": Rule(
        _E,
        "The checksum file beside a state file cannot be read: Spark 4.1 refuses the state file.",
        f"Use {_REPAIR}: it removes the checksum file.",
    ),
    "CHECKSUM_ORPHAN": Rule(
        _I,
        "A checksum file is there without its state file.",
        "Nothing: Spark sweeps it in its next cleanup.",
    ),
    "STATE_BEHIND": Rule(
        _E,
        "A store ends before the version that a restart needs.",
        f"Restore its files from a backup, or use {_REWIND}.",
    ),
    "STATE_CHAIN_BROKEN": Rule(
        _E,
        "A file that the restart's version of a store is made of is missing.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_HOLE": Rule(
        _W,
        "A file that an older, retained version of a store is made of is missing.",
        "A restart does not need it, but the query cannot be rewound to that version.",
    ),
    "STATE_AHEAD": Rule(
        _W,
        "A store has deltas of batches that the logs have not decided, as an incomplete rewind "
        "leaves them.",
        f"Use {_REPAIR}: it removes them.",
    ),
    "STATE_SNAPSHOT_AHEAD": Rule(
        _E,
        "A store has a snapshot of a batch that the logs have not decided: once Spark reaches "
        "that version it loads this instead of what it has just computed.",
        f"Use {_REPAIR}: it removes the snapshot.",
    ),
    "STATE_OPERATOR_MISSING": Rule(
        _E,
        "An operator has no directory although a later one does, or a commit names its state.",
        "Restore it from a backup. Without it a restart is refused, or begins with empty state.",
    ),
    "STATE_PARTITION_MISSING": Rule(
        _E,
        "A partition has no directory although others of its operator do.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_STORE_MISSING": Rule(
        _E,
        "A partition lacks a store that the other partitions of its operator have.",
        f"Restore it from a backup, or use {_REWIND}.",
    ),
    "STATE_FILE_UNREADABLE": Rule(
        _E,
        "A delta, snapshot or changelog breaks its format.",
        f"Restore it from a backup, or use {_REPAIR}, which removes a broken "
        f"snapshot that its deltas can replace, and otherwise goes back to a version that loads.",
    ),
    "STATE_ROW_INVALID": Rule(
        _E,
        "A key or value in a state file does not fit the schema: Spark would read garbage.",
        "Rewind to a version before it, or replace the row with `epochal state put`.",
    ),
    "STATE_ROW_CHECKSUM": Rule(
        _E,
        "A row in a state file does not have the checksum written with it.",
        "Restore the file from a backup, or rewind to a version before it.",
    ),
    "STATE_KEY_WRONG_PARTITION": Rule(
        _E,
        "A key lies in a partition where Spark will not look for it: it would be counted anew.",
        "Run `epochal state repartition` to put every key in its place.",
    ),
    "STATE_SNAPSHOT_DISAGREES": Rule(
        _E,
        "A snapshot holds something else than the snapshot before it and the deltas since.",
        f"If the deltas are right, use {_REPAIR}, which removes the snapshot.",
    ),
    "STATE_STRAY_SNAPSHOT": Rule(
        _E,
        "A file ends in `.snapshot` but its name is no version: Spark 4.2 and later fail to load "
        "the store.",
        f"Use {_REPAIR}: it moves the file away.",
    ),
    "STATE_STRAY_FILE": Rule(
        _W,
        "A file in a store's directory is named `X.Y`, and X is no version: Spark's maintenance "
        "fails on it, so that snapshots and cleanup stop.",
        f"Use {_REPAIR}: it moves the file away.",
    ),
    "STATE_SCHEMA_UNREADABLE": Rule(
        _E,
        "A state schema file breaks its format: a restart stops at it.",
        "Restore it from a backup; without it the rows of the state cannot be checked.",
    ),
    "OPERATOR_METADATA_UNREADABLE": Rule(
        _E,
        "The metadata of a stateful operator breaks its format: a restart stops at it, and "
        "Spark's state readers too.",
        "Restore it from a backup. Without any, Spark writes it again on the next start.",
    ),
    "OPERATOR_METADATA_MOVED": Rule(
        _W,
        "The metadata of a stateful operator points at schema files outside this checkpoint, as "
        "it does after a plain copy.",
        "Run `epochal checkpoint copy` instead of a plain copy: it rewrites the paths.",
    ),
    "ROCKSDB_ZIP_UNREADABLE": Rule(
        _E,
        "A RocksDB snapshot cannot be opened.",
        "Restore it from a backup, or rewind to a version that loads without it.",
    ),
    "ROCKSDB_FILE_MISSING": Rule(
        _E,
        "A RocksDB snapshot names a data file that is not there.",
        "Restore it from a backup, or rewind to a version that loads without it.",
    ),
    "ROCKSDB_FILE_SIZE": Rule(
        _E,
        "A data file of a RocksDB snapshot does not have the size the snapshot says.",
        "Restore it from a backup, or rewind to a version that loads without it.",
    ),
    "ROCKSDB_ID_MISSING": Rule(
        _E,
        "The commit log names state files that are not there.",
        f"Restore them from a backup, or use {_REWIND}.",
    ),
    "EDIT_UNFINISHED": Rule(
        _E,
        "A writing command was interrupted here: the checkpoint is between two states.",
        "Run the same command again to finish it, or `epochal checkpoint undo` to take it back.",
    ),
}


def finding(
    code: str, path: str, message: str, *, severity: Severity | None = None, remedy: str = ""
) -> Finding:
    """A finding of a known code; severity and remedy are the table's unless this case differs."""
    rule = RULES[code]
    return Finding(code, severity or rule.severity, path, message, remedy or rule.remedy)


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing was found that is worse than `info`."""
    return all(each.severity is Severity.INFO for each in findings)


_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; among equals by path, then by code."""
    return sorted(findings, key=lambda each: (_RANK[each.severity], each.path, each.code))
