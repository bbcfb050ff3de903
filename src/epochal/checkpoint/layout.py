"""Names of everything inside a checkpoint, and what a name says. Pure: paths in, values out.

Paths are relative to the checkpoint's root. The name `default` of a state store adds no directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
SOURCES = "sources"
STATE = "state"
SINK_LOG = "_spark_metadata"
"""The file sink's log. It lies in the output directory, not in the checkpoint."""

EPOCHAL = ".epochal"
"""Our own directory. Spark passes over hidden names."""
ATTEMPTS = f"{EPOCHAL}/attempts"
LEASES = f"{EPOCHAL}/lease"

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
    """The private directory of a source: by its place in the plan, or by its name."""
    return f"{SOURCES}/{source}"


def operator_path(operator: int) -> str:
    """The directory of a stateful operator."""
    return f"{STATE}/{operator}"


def operator_metadata_path(operator: int) -> str:
    """The operator metadata of version 1, one file."""
    return f"{operator_path(operator)}/{_OPERATOR_METADATA}/metadata"


def operator_metadata_log_path(operator: int) -> str:
    """The directory of operator metadata of version 2, one file per batch that changed it."""
    return f"{operator_path(operator)}/{_OPERATOR_METADATA}/v2"


def state_store_path(operator: int, partition: int, store: str = DEFAULT_STORE) -> str:
    """The directory with the state files of one store of one partition."""
    path = f"{operator_path(operator)}/{partition}"
    return path if store == DEFAULT_STORE else f"{path}/{store}"


def state_schema_path(operator: int, store: str = DEFAULT_STORE) -> str:
    """The schema file of versions 1 and 2: only partition 0 has one."""
    return f"{state_store_path(operator, 0, store)}/{_OPERATOR_METADATA}/schema"


def state_schema_log_path(operator: int, store: str = DEFAULT_STORE) -> str:
    """The directory of schema files of version 3, `BATCH_UUID` each."""
    return f"{operator_path(operator)}/{_STATE_SCHEMA}/{store}"


class StateFileKind(StrEnum):
    """What a file in a store's directory holds, by its suffix."""

    DELTA = "delta"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"
    ZIP = "zip"


class CrcKind(StrEnum):
    """Whether a name is a checksum of another, and whose."""

    NONE = ""
    HADOOP = "hadoop"
    """`.NAME.crc`, binary, on local disks."""
    SPARK = "spark"
    """`NAME.crc`, JSON, since 4.1."""
    HADOOP_OF_SPARK = "hadoop-of-spark"
    """`.NAME.crc.crc`: the first of the second."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A name in a store's directory: `5.delta`, `5_UUID.changelog`, `.5.delta.crc`, ..."""

    version: int
    kind: StateFileKind
    unique_id: str | None = None
    crc: CrcKind = CrcKind.NONE

    @property
    def name(self) -> str:
        """The file's name again."""
        version = (
            str(self.version) if self.unique_id is None else f"{self.version}_{self.unique_id}"
        )
        main = f"{version}.{self.kind}"
        match self.crc:
            case CrcKind.NONE:
                return main
            case CrcKind.HADOOP:
                return f".{main}.crc"
            case CrcKind.SPARK:
                return f"{main}.crc"
            case CrcKind.HADOOP_OF_SPARK:
                return f".{main}.crc.crc"

    @property
    def main_name(self) -> str:
        """The name of the file whose checksum this is, or its own."""
        return StateFile(self.version, self.kind, self.unique_id).name


_STATE_FILE = re.compile(
    r"(?P<hidden>\.?)(?P<version>\d+)(?:_(?P<unique>[^./]+))?"
    r"\.(?P<kind>delta|snapshot|changelog|zip)(?P<crc>(?:\.crc){0,2})",
    re.ASCII,
)
_CRCS = {
    ("", ""): CrcKind.NONE,
    (".", ".crc"): CrcKind.HADOOP,
    ("", ".crc"): CrcKind.SPARK,
    (".", ".crc.crc"): CrcKind.HADOOP_OF_SPARK,
}


def parse_state_file(name: str) -> StateFile | None:
    """What a name in a store's directory says; None if it is no state file's."""
    found = _STATE_FILE.fullmatch(name)
    crc = _CRCS.get((found["hidden"], found["crc"])) if found else None
    if found is None or crc is None or len(found["version"]) > 19:
        return None
    return StateFile(int(found["version"]), StateFileKind(found["kind"]), found["unique"], crc)


def parse_partition(name: str) -> int | None:
    """The partition or operator number a directory's name is; None for `_metadata` and the like."""
    return int(name) if re.fullmatch(r"\d{1,9}", name, re.ASCII) else None


def is_temp_file(name: str) -> bool:
    """Whether a name is that of a file somebody was still writing, or of that file's crc."""
    return name.startswith(".") and name.endswith((".tmp", ".tmp.crc"))


def hidden_crc_of(path: str) -> str:
    """Where Hadoop keeps the checksum of `path` on local disks."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def crc_target(name: str) -> str | None:
    """The file whose hidden crc `name` is; None if it is none."""
    if name.startswith(".") and name.endswith(".crc") and len(name) > 5:
        return name[1:-4]
    return None
