"""Small checkpoints with the entries and files that a query writes."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.file_log import (
    FileEntry,
    FileLogFormat,
    SinkFileStatus,
    is_compaction_batch,
)
from epochal.files import Files
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import encode_records
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_plan import read_tree
from epochal.tools.edit.survey import Survey, survey

QUERY_ID = "53b62e34-0476-452d-8313-c1786e091891"
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "HDFSBackedStateStoreProvider",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
}
START_MS = 1_700_000_000_000
EMPTY_DELTA = compress(encode_records(()), "lz4")
SOURCE_FORMAT: FileLogFormat[FileEntry] = FileLogFormat(FileEntry)
SINK_FORMAT: FileLogFormat[SinkFileStatus] = FileLogFormat(SinkFileStatus)


def content(files: Files) -> dict[str, bytes]:
    """All files below the root except those of the tools."""
    return {path: files.read(path) for path in read_tree(files).infos}


def offsets(batch_id: int, *, source_offsets: Sequence[str | None] | None = None) -> bytes:
    return OFFSET_FORMAT.serialize(
        OffsetEntry(
            1,
            tuple(source_offsets or (f'{{"logOffset":{batch_id}}}',)),
            watermark_ms=1000 * batch_id,
            timestamp_ms=START_MS + 60_000 * batch_id,
            conf=CONF,
        )
    )


def commit(batch_id: int) -> bytes:
    return COMMIT_FORMAT.serialize(CommitEntry(1, 1000 * (batch_id + 1)))


def checkpoint(
    batches: int = 6,
    *,
    uncommitted: bool = False,
    snapshots: Sequence[int] = (3,),
    partitions: int = 2,
    stores: Sequence[str] = ("default",),
    stateful: bool = True,
    source_offsets: Sequence[str | None] | None = None,
    first: int = 0,
) -> MemoryFiles:
    """Batches `first` up to `batches` of a query over one file source; every file has its crc."""
    files = MemoryFiles(prefix="ckpt", clock=ManualClock(START_MS))
    tree: dict[str, bytes] = {"metadata": f'{{"id":"{QUERY_ID}"}}'.encode()}
    for batch_id in range(first, batches):
        tree[f"offsets/{batch_id}"] = offsets(batch_id, source_offsets=source_offsets)
        if not (uncommitted and batch_id == batches - 1):
            tree[f"commits/{batch_id}"] = commit(batch_id)
    for batch_id in range(batches):
        tree |= source_batch(batch_id, interval=10)
    if stateful:
        for store in (
            f"state/0/{partition}" + ("" if name == "default" else f"/{name}")
            for partition in range(partitions)
            for name in stores
        ):
            tree |= {f"{store}/{v}.delta": EMPTY_DELTA for v in range(first + 1, batches + 1)}
            tree |= {f"{store}/{v}.snapshot": EMPTY_DELTA for v in snapshots}
    for path, data in tree.items():
        files.create(path, data)
    for path in tree:
        folder, slash, name = path.rpartition("/")
        files.create(f"{folder}{slash}.{name}.crc", b"crc\0\0\0\x02\0 of " + path.encode())
    return files


def source_batch(batch_id: int, *, interval: int, directory: str = "sources/0") -> dict[str, bytes]:
    """One batch of the log of a file source that read one file per batch."""
    compact = is_compaction_batch(batch_id, interval)
    first = 0 if compact else batch_id
    entries = [
        FileEntry(f"file:///data/in/{each:03}.json", START_MS + each, each)
        for each in range(first, batch_id + 1)
    ]
    name = f"{batch_id}.compact" if compact else str(batch_id)
    return {f"{directory}/{name}": SOURCE_FORMAT.serialize(entries)}


def sink(batches: int = 6, *, interval: int = 3, root: str = "out") -> MemoryFiles:
    """The output of a file sink that wrote one file per batch."""
    files = MemoryFiles(prefix=root, clock=ManualClock(START_MS))
    for batch_id in range(batches):
        compact = is_compaction_batch(batch_id, interval)
        first = 0 if compact else batch_id
        entries = [sink_status(each, root) for each in range(first, batch_id + 1)]
        name = f"{batch_id}.compact" if compact else str(batch_id)
        files.create(f"_spark_metadata/{name}", SINK_FORMAT.serialize(entries))
        files.create(f"part-{batch_id}.parquet", b"rows of %d" % batch_id)
    return files


def sink_status(batch_id: int, root: str = "out") -> SinkFileStatus:
    path = f"memory:/{root}/part-{batch_id}.parquet"
    return SinkFileStatus(path, 9, False, START_MS + 60_000 * batch_id, 1, 1 << 25, "add")


def surveyed(files: Files) -> Survey:
    return survey(files)
