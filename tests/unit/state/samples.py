"""Small checkpoints with state, made here: key (k: string), value (count: long, sum: long)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT, OperatorMetadata, StoreMetadata
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import encode_records
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.survey import survey
from epochal.tools.verify.check_content import partition_of_key

KEY = StructType((StructField("k", StringType()),))
VALUE = StructType(
    (StructField("count", AtomicType("long")), StructField("sum", AtomicType("long")))
)
PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

Content = Mapping[str, tuple[int | None, int | None]]


@dataclass(frozen=True)
class Sample:
    """A checkpoint of one aggregation: `batches[n]` is the whole state after batch n."""

    root: Path
    partitions: int = 3
    codec: str = "lz4"
    row_checksums: bool = False

    @property
    def path(self) -> str:
        return str(self.root)

    @property
    def conf(self) -> dict[str, str]:
        prefix = "spark.sql.streaming.stateStore."
        return {
            "spark.sql.shuffle.partitions": str(self.partitions),
            f"{prefix}providerClass": PROVIDER,
            f"{prefix}compression.codec": self.codec,
            f"{prefix}rowChecksum.enabled": str(self.row_checksums).lower(),
        }

    def store(self, partition: int) -> Path:
        return self.root / "state" / "0" / str(partition)

    def delta(self, partition: int, version: int) -> Path:
        return self.store(partition) / f"{version}.delta"

    def snapshot(self, partition: int, version: int) -> Path:
        return self.store(partition) / f"{version}.snapshot"


def make(
    root: Path,
    batches: Sequence[Content],
    *,
    snapshots: Sequence[int] = (),
    partitions: int = 3,
    codec: str = "lz4",
    row_checksums: bool = False,
) -> Sample:
    """Write a checkpoint with a delta for every version, and snapshots of some."""
    sample = Sample(root, partitions, codec, row_checksums)
    metadata = OperatorMetadata(1, 0, "stateStoreSave", (StoreMetadata("default", 0, partitions),))
    write(root / "metadata", b'{"id":"53b62e34-0476-452d-8313-c1786e091891"}')
    write(root / "state/0/_metadata/metadata", OPERATOR_FORMAT.serialize(metadata))
    write(
        root / "state/0/0/_metadata/schema",
        encode_schema_file([FamilySchema("default", KEY, VALUE)]),
    )
    before: Content = {}
    for batch_id, after in enumerate(batches):
        entry = OffsetEntry(1, (str(batch_id),), timestamp_ms=1000 * batch_id, conf=sample.conf)
        write(root / f"offsets/{batch_id}", OFFSET_FORMAT.serialize(entry))
        _state(sample, batch_id + 1, before, after, with_snapshot=batch_id + 1 in snapshots)
        write(root / f"commits/{batch_id}", COMMIT_FORMAT.serialize(CommitEntry()))
        before = after
    return sample


def key_bytes(key: str) -> bytes:
    return encode_row((key,), KEY)


def value_bytes(value: tuple[int | None, int | None]) -> bytes:
    return encode_row(value, VALUE)


def home_of(key: str, partitions: int) -> int:
    home = partition_of_key(key_bytes(key), KEY, 1, partitions)
    assert home is not None
    return home


def files(sample: Sample) -> LocalFiles:
    return LocalFiles(sample.root, durable=False)


def edit(sample: Sample, plan: Any, *arguments: Any, **named: Any) -> str:
    """Execute a plan on the sample; the id of its entry in the journal."""
    where = files(sample)
    return Journal(where).execute(plan(survey(where), *arguments, **named)).id


def content(sample: Sample) -> dict[str, bytes]:
    """The bytes of every file but those of the journal."""
    return {
        str(path.relative_to(sample.root)): path.read_bytes()
        for path in sorted(sample.root.rglob("*"))
        if path.is_file() and ".epochal" not in path.parts
    }


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def packed(sample: Sample, records: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    return compress(encode_records(records, row_checksums=sample.row_checksums), sample.codec)


def _state(
    sample: Sample, version: int, before: Content, after: Content, *, with_snapshot: bool
) -> None:
    for partition in range(sample.partitions):
        mine = {k: v for k, v in after.items() if home_of(k, sample.partitions) == partition}
        gone = [k for k in before if k not in after and home_of(k, sample.partitions) == partition]
        changed: list[tuple[bytes, bytes | None]] = [
            (key_bytes(k), value_bytes(v)) for k, v in mine.items() if before.get(k) != v
        ]
        changed += [(key_bytes(k), None) for k in gone]
        write(sample.delta(partition, version), packed(sample, changed))
        if with_snapshot:
            rows = [(key_bytes(k), value_bytes(v)) for k, v in mine.items()]
            write(sample.snapshot(partition, version), packed(sample, rows))
