"""The paths and file names inside a checkpoint: builds and parses them. Pure.

Paths are relative to the checkpoint's root. The state store named `default` has no directory of its
own; its files are in the directory of the partition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
SOURCES = "sources"
STATE = "state"
EPOCHS = "epochs"
"""What each epoch of a continuous query changed in its state. Spark does not look there."""
SINK_LOG = "_spark_metadata"
"""The log of the file sink. It is in the output directory, not in the checkpoint."""

EPOCHAL = ".epochal"
"""Epochal's own directory. Spark ignores hidden names."""
ATTEMPTS = f"{EPOCHAL}/attempts"
PLANNED = f"{EPOCHAL}/planned"
"""A log of at most one entry: the batch that Spark planned in `offsets` and did not commit."""
PLAN = f"{EPOCHAL}/plan"
"""The stateful operators of a continuous query, which may not change."""
CLAIMS = f"{EPOCHAL}/lease"
"""One file per run, which the owner of the checkpoint rewrites to renew its claim."""
STOPS = f"{EPOCHAL}/stop"
"""One file per run that was asked to stop."""

OWN_KEY = "epochal"
"""What a continuous query adds to offset and commit entries is under this key."""
STAND_IN_KEY = "epochalStandIn"
"""In offsets that a repair made up: the batch whose offsets they are."""

DEFAULT_STORE = "default"
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
"""The stores of a stream-stream join, in the order in which the commit log lists their ids."""
COMPACT_SUFFIX = ".compact"

_OPERATOR_METADATA = "_metadata"
_STATE_SCHEMA = "_stateSchema"


def source_log_path(source: int | str) -> str:
    """The private directory of a source, by its position in the plan or its name."""
    return f"{SOURCES}/{source}"


def operator_path(operator: int) -> str:
    return f"{STATE}/{operator}"


def operator_metadata_path(operator: int) -> str:
    """The file of operator metadata of version 1."""
    return f"{operator_path(operator)}/{_OPERATOR_METADATA}/metadata"


def operator_metadata_log_path(operator: int) -> str:
    """The log of operator metadata of version 2, with one file per batch that changed it."""
    return f"{operator_path(operator)}/{_OPERATOR_METADATA}/v2"


def state_store_path(operator: int, partition: int, store: str = DEFAULT_STORE) -> str:
    """The directory with the state files of one store of one partition."""
    path = f"{operator_path(operator)}/{partition}"
    return path if store == DEFAULT_STORE else f"{path}/{store}"


class StoreKey(NamedTuple):
    """Which store of a checkpoint: its operator, its partition and its name."""

    operator: int
    partition: int
    store: str = DEFAULT_STORE

    @property
    def path(self) -> str:
        return state_store_path(self.operator, self.partition, self.store)


def state_schema_path(operator: int, store: str = DEFAULT_STORE) -> str:
    """The schema file of versions 1 and 2; only partition 0 has one."""
    return f"{state_store_path(operator, 0, store)}/{_OPERATOR_METADATA}/schema"


def state_schema_log_path(operator: int, store: str = DEFAULT_STORE) -> str:
    """The directory of the schema files of version 3, each named `BATCH_UUID`."""
    return f"{operator_path(operator)}/{_STATE_SCHEMA}/{store}"


class StateFileKind(StrEnum):
    """The kind of a file in a store's directory, by its suffix."""

    DELTA = "delta"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"
    ZIP = "zip"


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file in a store's directory: `5.delta`, `5_UUID.changelog`, `.5.delta.crc`, …"""

    version: int
    kind: StateFileKind
    unique_id: str | None = None
    is_checksum: bool = False
    """Of Hadoop (`.NAME.crc`), of Spark (`NAME.crc`), or Hadoop's of Spark's (`.NAME.crc.crc`)."""


_STATE_FILE = re.compile(
    r"(?P<hidden>\.?)(?P<version>\d+)(?:_(?P<unique>[^./]+))?"
    r"\.(?P<kind>delta|snapshot|changelog|zip)(?P<crc>(?:\.crc){0,2})",
    re.ASCII,
)
_CHECKSUM_MARKS = frozenset({("", ""), (".", ".crc"), ("", ".crc"), (".", ".crc.crc")})


def parse_state_file(name: str) -> StateFile | None:
    """Parse a name in a store's directory; None if it is not a state file."""
    match = _STATE_FILE.fullmatch(name)
    if match is None or len(match["version"]) > 19:
        return None
    if (match["hidden"], match["crc"]) not in _CHECKSUM_MARKS:
        return None
    kind = StateFileKind(match["kind"])
    return StateFile(int(match["version"]), kind, match["unique"], bool(match["crc"]))


def parse_partition(name: str) -> int | None:
    """Parse a partition or operator number; None for other directories such as `_metadata`."""
    return int(name) if re.fullmatch(r"\d{1,9}", name, re.ASCII) else None


def is_temp_file(name: str) -> bool:
    """Whether a name is that of an unfinished file, or of its crc."""
    return name.startswith(".") and name.endswith((".tmp", ".tmp.crc"))


def crc_target(name: str) -> str | None:
    """The name of the file that a hidden crc belongs to; None if `name` is not a hidden crc."""
    if name.startswith(".") and name.endswith(".crc") and len(name) > 5:
        return name[1:-4]
    return None
