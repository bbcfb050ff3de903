"""Faults to plant into real checkpoints: for each code of `verify` one that has just that effect.

A plant changes files as an operator, a disk or a broken tool would. Whatever it rewrites loses its
hidden Hadoop checksum, as with our own tools, so that only the content speaks; the faults about
checksums leave them be.
"""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epochal.checkpoint.entries import CommitLog, OffsetLog, QueryMetadata, Switched
from epochal.epoch.epoch_files.epoch_file import Header, StoreFileEntry, checksum_of, encode_epoch
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, commit_mark, manifest_to_json
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import compress, decompress
from epochal.testing.files import Crash, FaultyFiles, crash_after
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Change, Plan

PARTITIONS = "spark.sql.shuffle.partitions"
CODEC = "spark.sql.streaming.stateStore.compression.codec"
AGGREGATION = "spark.sql.streaming.aggregation.stateFormatVersion"

END_MARK = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Fault:
    """A change to a checkpoint, and the one finding it must cause."""

    code: str
    path: str
    plant: Callable[[Path], None]
    case: str = "windowed"
    release: str = "4.3.0"
    severity: str = ""
    """Where it differs from the table's."""
    with_sink: bool = False
    relocate: bool = True
    note: str = ""

    def __str__(self) -> str:
        return "-".join(part for part in (self.code, self.note) if part)


def in_an_epoch_file(root: Path) -> None:
    """Have the newest state in an epoch file, as a continuous query leaves it that was killed."""
    in_epoch_files(root, 1)


def in_epoch_files(root: Path, count: int) -> None:
    """The same with the state of some newest epochs."""
    newest = max(CommitLog(LocalFiles(root).at("commits")).batch_ids())
    first = newest + 1 - count
    later = {
        path: path.read_bytes()
        for n in range(first + 1, newest + 1)
        for path in (root / f"offsets/{n}", root / f"commits/{n}")
    }
    runs: tuple[EpochRun, ...] = ()
    for epoch in range(first, newest + 1):
        for path, data in later.items():
            if int(path.name) == epoch:
                path.write_bytes(data)
        runs = _into_epoch_file(root, epoch, first, runs)


def _into_epoch_file(
    root: Path, epoch: int, first: int, before: tuple[EpochRun, ...]
) -> tuple[EpochRun, ...]:
    files = LocalFiles(root)
    offsets, commits = OffsetLog(files.at("offsets")), CommitLog(files.at("commits"))
    paths = sorted(root.glob(f"state/*/*/{epoch + 1}.delta"))
    places = [(int(path.parts[-3]), int(path.parts[-2]), "default") for path in paths]
    contents = [path.read_bytes() for path in paths]
    entries = tuple(
        StoreFileEntry(*place, path.name, len(data))
        for place, path, data in zip(places, paths, contents, strict=True)
    )
    data = encode_epoch(Header(epoch, 1, 0, 1, -1, entries), contents)
    files.create(f"epochs/{epoch}-t0-a1", data)
    runs = (*before, EpochRun(epoch, epoch, 1, (checksum_of(data),)))
    chain = StateChain(first, runs)
    manifest = Manifest(epoch, 1, "run", (), (), (), chain=chain)
    entry, commit = offsets.get(epoch), commits.get(epoch)
    if entry is None or commit is None:
        raise LookupError(epoch)
    own = {MANIFEST_KEY: manifest_to_json(manifest)}
    offsets.purge_after(epoch - 1)
    offsets.add(epoch, replace(entry, extra=own, keys=None))
    commits.purge_after(epoch - 1)
    commits.add(epoch, replace(commit, extra=commit_mark("run")))
    remove(*(str(path.relative_to(root)) for path in paths))(root)
    return runs


def in_a_lost_epoch_file(root: Path) -> None:
    in_an_epoch_file(root)
    shutil.rmtree(root / "epochs")


def remove(*names: str) -> Callable[[Path], None]:
    """Delete files with their hidden checksums, or whole directories."""

    def plant(root: Path) -> None:
        for name in names:
            path = root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
                crc_of(path).unlink(missing_ok=True)

    return plant


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change a file's bytes; its hidden checksum goes."""

    def plant(root: Path) -> None:
        path = root / name
        path.write_bytes(change(path.read_bytes()))
        crc_of(path).unlink(missing_ok=True)

    return plant


def content(name: str, data: bytes) -> Callable[[Path], None]:
    return rewrite(name, lambda _: data)


def copy(source: str, target: str) -> Callable[[Path], None]:
    """Copy a file without its checksum."""

    def plant(root: Path) -> None:
        shutil.copyfile(root / source, root / target)
        crc_of(root / target).unlink(missing_ok=True)

    return plant


def taken_with_a_hidden_file(root: Path) -> None:
    (root / "commits/11/nested").mkdir(parents=True)
    (root / "commits/11/nested/.hidden").touch()


def offsets(batch_id: int, **changes: object) -> Callable[[Path], None]:
    """Change keys of a batch's metadata line."""
    return rewrite(f"offsets/{batch_id}", lambda data: with_metadata(data, changes))


def file_offset(batch_id: int, entry: int) -> Callable[[Path], None]:
    """Have a batch of one file source end at another entry of the source's log."""
    last = b'{"logOffset":%d}' % entry
    return rewrite(f"offsets/{batch_id}", lambda data: data[: data.rindex(b"\n") + 1] + last)


def with_metadata(data: bytes, changes: dict[str, object]) -> bytes:
    version, metadata, *rest = data.split(b"\n")
    changed = json.dumps(json.loads(metadata) | changes, separators=(",", ":")).encode()
    return b"\n".join([version, changed, *rest])


def settings(batch_ids: tuple[int, ...], changes: dict[str, str | None]) -> Callable[[Path], None]:
    def change(data: bytes) -> bytes:
        held = json.loads(data.split(b"\n")[1])["conf"] | changes
        kept = {key: value for key, value in held.items() if value is not None}
        return with_metadata(data, {"conf": kept})

    return every(*(rewrite(f"offsets/{batch_id}", change) for batch_id in batch_ids))


def every(*plants: Callable[[Path], None]) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        for each in plants:
            each(root)

    return plant


def crc_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def next_repartition(root: Path) -> None:
    shutil.copyfile(root / "offsets/10", root / "offsets/11")
    settings((11,), {PARTITIONS: "4"})(root)


def dangling_link(root: Path) -> None:
    remove("commits/5")(root)
    os.symlink("nowhere", root / "commits/5")


def plain_instead_of_compact(root: Path) -> None:
    compact = root / "sources/0/8.compact"
    header, *entries = compact.read_bytes().split(b"\n")
    own = [entry for entry in entries if b'"batchId":8}' in entry]
    (root / "sources/0/8").write_bytes(b"\n".join([header, *own]))
    remove("sources/0/8.compact")(root)


def lost_output(root: Path) -> None:
    header, entry, *_ = (root.parent / "output/_spark_metadata/8.compact").read_text().split("\n")
    del header
    (root.parent / "output" / json.loads(entry)["path"].rpartition("/")[2]).unlink()


def torn_sink_log(root: Path) -> None:
    log = root.parent / "output/_spark_metadata"
    shutil.copyfile(log / "5.compact", log / "8.compact")


def edit_without_its_sink(root: Path) -> None:
    """Add a batch that reads nothing, as every edit of state does."""
    for log in ("offsets", "commits"):
        shutil.copyfile(root / log / "8", root / log / "9")


def short_value(data: bytes) -> bytes:
    """The first record with a value of half a row."""
    raw = decompress(data, "lz4")
    key_end = 4 + int.from_bytes(raw[:4], "big")
    return compress(raw[:key_end] + (8).to_bytes(4, "big") + bytes(8) + END_MARK, "lz4")


def other_value(data: bytes) -> bytes:
    """The first record with its last byte changed, whatever checksum it carries."""
    raw = bytearray(decompress(data, "lz4"))
    key_end = 4 + int.from_bytes(raw[:4], "big")
    value_end = key_end + 4 + int.from_bytes(raw[key_end : key_end + 4], "big")
    raw[value_end - 1] ^= 1
    return compress(bytes(raw), "lz4")


def json_key(name: str, key: str, value: object) -> Callable[[Path], None]:
    return rewrite(name, lambda data: json.dumps(json.loads(data) | {key: value}).encode())


def lost_ids(version: int) -> Callable[[Path], None]:
    """Remove every file of a version that carries a unique id."""

    def plant(root: Path) -> None:
        for path in (root / "state/0/0").iterdir():
            if path.name.lstrip(".").startswith(f"{version}_"):
                path.unlink()

    return plant


def half_an_edit(root: Path) -> None:
    files = LocalFiles(root)
    info = files.info("commits/10")
    assert info is not None
    plan = Plan("rewind", "a rewind", (Change("commits/99", None, b"v1"),))
    try:
        Journal(FaultyFiles(files, crash_after(2))).execute(plan)
    except Crash:
        return
    raise AssertionError("the edit was to be interrupted")


def switch_away(root: Path) -> None:
    known = QueryMetadata.deserialize((root / "metadata").read_bytes())
    (root / ".metadata.crc").unlink(missing_ok=True)
    (root / "metadata").write_bytes(Switched("/elsewhere", 10, 10, known.id).serialize())


def newest_sst(root: Path) -> Path:
    return max((root / "state/0/0/SSTs").glob("*.sst"))


def lost_sst(root: Path) -> None:
    path = newest_sst(root)
    crc_of(path).unlink(missing_ok=True)
    path.rename(path.with_name("lost"))


def begun_anew(root: Path) -> None:
    """A new checkpoint over the output of an old one."""
    shutil.rmtree(root)
    root.mkdir()
    (root / "metadata").write_bytes(
        QueryMetadata("53b62e34-0476-452d-8313-c1786e091891").serialize()
    )


def torn_snapshot(version: int) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        [path] = root.glob(f"state/0/0/{version}[._]*zip")
        path.write_bytes(path.read_bytes()[:100])
        for checksum in (crc_of(path), path.with_name(f"{path.name}.crc")):
            checksum.unlink(missing_ok=True)

    return plant


def longer_sst(root: Path) -> None:
    path = newest_sst(root)
    path.write_bytes(path.read_bytes() + b"!")
    crc_of(path).unlink(missing_ok=True)


def changed_sst(at: int, bit: int) -> Callable[[Path], None]:
    """Change one bit of a data file, which keeps its size."""

    def plant(root: Path) -> None:
        path = newest_sst(root)
        data = bytearray(path.read_bytes())
        data[at] ^= bit
        path.write_bytes(data)
        crc_of(path).unlink(missing_ok=True)

    return plant


def other_manifest(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the MANIFEST in the newest snapshot, and pack it again."""

    def plant(root: Path) -> None:
        path = root / "state/0/0/11.zip"
        packed = io.BytesIO()
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                new.writestr(name, change(content) if name.startswith("MANIFEST") else content)
        path.write_bytes(packed.getvalue())
        crc_of(path).unlink(missing_ok=True)

    return plant


def flipped_byte(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 0xFF]) + data[-19:]


ALL = tuple(range(11))


def lost(code: str, path: str, **more: Any) -> Fault:
    return Fault(code, path, remove(path), **more)


def holding(code: str, path: str, data: bytes, **more: Any) -> Fault:
    return Fault(code, path, content(path, data), **more)


def copied(code: str, source: str, path: str, **more: Any) -> Fault:
    return Fault(code, path, copy(source, path), **more)


FAULTS = (
    Fault("FILE_UNREADABLE", "commits/5", dangling_link),
    Fault(
        "NOT_A_DIRECTORY",
        "sources",
        every(remove("sources"), lambda root: grow(root / "sources", b"a file")),
        case="rate",
    ),
    lost("METADATA_MISSING", "metadata"),
    holding("METADATA_UNREADABLE", "metadata", b"{}"),
    Fault(
        "METADATA_UNREADABLE",
        "metadata",
        every(remove("metadata"), lambda root: (root / "metadata").mkdir()),
        note="directory",
    ),
    Fault(
        "OFFSETS_MISSING", "offsets", remove(*(f"offsets/{n}" for n in ALL)), note="beside-commits"
    ),
    holding("LOG_ENTRY_UNREADABLE", "offsets/5", b"v1", severity="info", note="truncated"),
    holding("LOG_ENTRY_UNREADABLE", "sources/0/5", b"v1\n{", note="source"),
    Fault(
        "LOG_ENTRY_UNREADABLE",
        "offsets/10",
        rewrite("offsets/10", lambda data: data[: data.rindex(b"\n") + 3]),
        case="rocksdb_dedup",
        note="torn-in-an-offset",
    ),
    holding("LOG_VERSION_UNKNOWN", "offsets/5", b"v99999\n{}"),
    copied("LOG_NAME_NOT_CANONICAL", "commits/7", "commits/007"),
    Fault("LOG_NAME_TAKEN", "commits/11", lambda root: (root / "commits/11").mkdir()),
    Fault("LOG_NAME_TAKEN", "commits/11", taken_with_a_hidden_file, note="with-a-hidden-file"),
    Fault("OFFSETS_GAP", "offsets/9", remove("offsets/9", "commits/9"), note="before-the-newest"),
    Fault(
        "OFFSETS_GAP",
        "offsets/7",
        remove("offsets/7", "commits/7"),
        case="file_sink",
        with_sink=True,
        note="with-a-file-sink",
    ),
    Fault(
        "OFFSETS_GAP",
        "offsets/4",
        remove("offsets/4", "commits/4"),
        severity="info",
        note="further-back",
    ),
    Fault(
        "OFFSETS_GAP",
        "offsets/7",
        remove("offsets/7", "commits/7", "commits/8"),
        case="several_sources",
        severity="warning",
        note="one-hole-in-a-dense-log",
    ),
    Fault(
        "OFFSETS_GAP_ASYNC",
        "offsets",
        remove("offsets/2", "commits/2", "offsets/5", "commits/5", "offsets/7", "commits/7"),
        case="several_sources",
    ),
    lost("COMMITS_GAP", "commits/4"),
    Fault("COMMITS_BEHIND", "commits", remove("commits/9", "commits/10")),
    Fault("COMMITS_BEHIND", "commits", remove(*(f"commits/{n}" for n in ALL)), note="no-commits"),
    copied("COMMIT_WITHOUT_OFFSETS", "commits/10", "commits/11"),
    Fault(
        "SOURCE_COUNT_CHANGED",
        "offsets/8",
        rewrite("offsets/8", lambda data: data.rpartition(b"\n")[0]),
        case="several_sources",
    ),
    Fault("CONF_KEY_LOST", "offsets/10", settings((10,), {PARTITIONS: None})),
    Fault("CONF_INCOMPLETE", "offsets/10", settings(ALL, {PARTITIONS: None})),
    Fault("CONF_INVALID", "offsets/10", settings(ALL, {CODEC: "brotli"})),
    Fault(
        "CONF_INVALID",
        "offsets/8",
        settings((8,), {PARTITIONS: "many"}),
        case="file_sink",
        note="in-one-batch",
    ),
    Fault("CONF_CHANGED", "offsets/10", settings((10,), {AGGREGATION: "1"})),
    Fault(
        "CONF_CHANGED", "offsets/1", settings((0,), {CODEC: "brotli"}), note="from-an-unknown-codec"
    ),
    Fault("PARTITIONS_CHANGED", "offsets/1", settings((0,), {PARTITIONS: "7"}), case="global"),
    Fault("REPARTITION_UNFINISHED", "offsets/11", next_repartition),
    Fault("WATERMARK_BACKWARDS", "offsets/10", offsets(10, batchWatermarkMs=1)),
    Fault("TIMESTAMP_BACKWARDS", "offsets/10", offsets(10, batchTimestampMs=1)),
    Fault(
        "OFFSETS_BACKWARDS",
        "offsets/10",
        every(remove("commits/10"), file_offset(10, 3)),
        note="next",
    ),
    Fault("OFFSETS_BACKWARDS", "offsets/10", file_offset(10, 3), note="committed"),
    Fault("SOURCE_LOG_BEHIND", "sources/0", remove("sources/0/8")),
    lost("FILE_LOG_HOLE", "sources/0/4"),
    Fault(
        "FILE_LOG_HOLE",
        "sources/0/5",
        remove("sources/0/5.compact", "sources/0/8.compact", "offsets/8", "commits/8"),
        case="file_sink",
        note="compact",
    ),
    Fault(
        "FILE_LOG_HOLE",
        "_spark_metadata/9",
        edit_without_its_sink,
        case="file_sink",
        with_sink=True,
        note="edited-without-the-sink",
    ),
    copied(
        "FILE_LOG_HOLE",
        "sources/0/5.compact",
        "sources/0/8.compact",
        case="file_sink",
        note="torn-at-a-line",
    ),
    copied(
        "FILE_LOG_HOLE",
        "sources/0/8.compact",
        "sources/0/11.compact",
        case="file_sink",
        note="copied-ahead",
    ),
    Fault(
        "FILE_LOG_HOLE",
        "_spark_metadata/8.compact",
        torn_sink_log,
        case="file_sink",
        with_sink=True,
        note="sink-torn-at-a-line",
    ),
    Fault("FILE_LOG_COMPACT_NAME", "sources/0/8", plain_instead_of_compact, case="file_sink"),
    Fault(
        "FILE_LOG_BATCH_MISMATCH",
        "sources/0/8",
        rewrite("sources/0/8", lambda data: data.replace(b'"batchId":8', b'"batchId":7')),
    ),
    Fault(
        "SINK_FILE_MISSING",
        "_spark_metadata/8.compact",
        lost_output,
        case="file_sink",
        with_sink=True,
    ),
    Fault("SINK_OF_ANOTHER_QUERY", "_spark_metadata", begun_anew, case="file_sink", with_sink=True),
    Fault(
        "SINK_AHEAD",
        "_spark_metadata",
        remove("offsets/8", "commits/8"),
        case="file_sink",
        with_sink=True,
    ),
    Fault(
        "SINK_AHEAD",
        "_spark_metadata/10",
        remove("commits/10", "state/0/0/11.delta"),
        case="file_sink_counts",
        severity="error",
        with_sink=True,
        note="state-is-missing",
    ),
    copied("CRC_ORPHAN", "offsets/.10.crc", "offsets/.11.crc"),
    Fault(
        "CRC_ORPHAN",
        "state/0/0/_metadata/.lost.crc",
        lambda root: grow(root / "state/0/0/_metadata/.lost.crc", b"crc\0\0\0\2\0"),
        note="schema",
    ),
    Fault("CRC_STALE", "commits/3", lambda root: grow(root / "commits/3", b" ")),
    Fault(
        "CRC_REFUSED",
        "state/0/0/11.zip",
        lambda root: flip(root, "state/0/0/.11.zip.crc"),
        case="rocksdb_zip",
    ),
    Fault(
        "CRC_REFUSED",
        "state/0/0/SSTs/*",
        lambda root: stale_sst(root),
        case="rocksdb_zip",
        note="data-file",
    ),
    Fault(
        "CHECKSUM_MISMATCH",
        "state/0/0/11.delta",
        json_key("state/0/0/11.delta.crc", "value", 7),
        release="4.1.4",
    ),
    holding("CHECKSUM_UNREADABLE", "state/0/0/11.delta.crc", b"{", release="4.1.4"),
    copied("CHECKSUM_ORPHAN", "state/0/0/11.delta.crc", "state/0/0/12.delta.crc", release="4.1.4"),
    Fault("STATE_BEHIND", "state/0/1", remove(*(f"state/0/1/{n}.delta" for n in (9, 10, 11)))),
    lost("STATE_CHAIN_BROKEN", "state/0/1/10.delta"),
    Fault("STATE_UNPUBLISHED", "state", in_an_epoch_file),
    Fault("EPOCH_FILE_BROKEN", "epochs", in_a_lost_epoch_file),
    lost("STATE_HOLE", "state/0/1/2.delta"),
    copied("STATE_AHEAD", "state/0/1/11.delta", "state/0/1/13.delta"),
    copied("STATE_SNAPSHOT_AHEAD", "state/0/1/8.snapshot", "state/0/1/20.snapshot"),
    Fault(
        "STATE_SCHEMA_MISSING",
        "state/0/0/_metadata/schema",
        remove("state/0/0/_metadata"),
        severity="info",
    ),
    lost("OPERATOR_METADATA_MISSING", "state/0/_metadata", severity="info"),
    lost(
        "OPERATOR_METADATA_MISSING", "state/0/_metadata", case="transform", note="with-schema-log"
    ),
    lost("STATE_OPERATOR_MISSING", "state/0", case="chained"),
    Fault(
        "STATE_OPERATOR_MISSING",
        "state/0",
        remove("state"),
        case="rocksdb_v2",
        note="named-by-a-commit",
    ),
    lost("STATE_PARTITION_MISSING", "state/0/1"),
    lost("STATE_STORE_MISSING", "state/0/1/right-keyToNumValues", case="join_inner"),
    Fault(
        "STATE_FILE_UNREADABLE",
        "state/0/0/3.delta",
        rewrite("state/0/0/3.delta", lambda data: data[: len(data) // 2]),
        severity="info",
    ),
    Fault(
        "STATE_FILE_UNREADABLE",
        "state/0/0/11.delta",
        every(
            remove("commits/10"), rewrite("state/0/0/11.delta", lambda data: data[: len(data) // 2])
        ),
        note="of-a-batch-that-runs-again",
    ),
    Fault(
        "ROCKSDB_ZIP_UNREADABLE",
        "state/0/0/11.zip",
        every(remove("commits/10"), torn_snapshot(11)),
        case="rocksdb_dedup",
        note="of-a-batch-that-runs-again",
    ),
    Fault("STATE_ROW_INVALID", "state/0/0/9.delta", rewrite("state/0/0/9.delta", short_value)),
    Fault(
        "STATE_ROW_CHECKSUM",
        "state/0/0/9.delta",
        rewrite("state/0/0/9.delta", other_value),
        case="row_checksum",
    ),
    copied("STATE_KEY_WRONG_PARTITION", "state/0/0/9.delta", "state/0/1/9.delta"),
    copied("STATE_SNAPSHOT_DISAGREES", "state/0/0/4.snapshot", "state/0/0/8.snapshot"),
    copied("STATE_STRAY_SNAPSHOT", "state/0/0/8.snapshot", "state/0/0/abc.snapshot"),
    copied("STATE_STRAY_FILE", "state/0/0/9.delta", "state/0/0/abc.delta"),
    holding("STATE_SCHEMA_UNREADABLE", "state/0/0/_metadata/schema", b"\x00\x02v2\x00"),
    holding("OPERATOR_METADATA_UNREADABLE", "state/0/_metadata/metadata", b"v1\n{}"),
    Fault(
        "OPERATOR_METADATA_MOVED",
        "state/0/_metadata/v2/*",
        lambda root: None,
        case="transform",
        relocate=False,
    ),
    Fault(
        "ROCKSDB_ZIP_UNREADABLE",
        "state/0/0/11.zip",
        rewrite("state/0/0/11.zip", lambda data: data[:100]),
        case="rocksdb_zip",
    ),
    Fault("ROCKSDB_FILE_MISSING", "state/0/0/SSTs/*", lost_sst, case="rocksdb_zip"),
    Fault("ROCKSDB_FILE_SIZE", "state/0/0/SSTs/*", longer_sst, case="rocksdb_zip"),
    Fault(
        "ROCKSDB_ZIP_UNREADABLE",
        "state/0/0/11.zip",
        other_manifest(flipped_byte),
        case="rocksdb_zip",
        note="manifest",
    ),
    Fault("ROCKSDB_FILE_BROKEN", "state/0/0/SSTs/*", changed_sst(40, 4), case="rocksdb_zip"),
    Fault(
        "ROCKSDB_FILE_BROKEN",
        "state/0/0/SSTs/*",
        changed_sst(40, 4),
        case="rocksdb_zip",
        release="3.5.9",
        note="crc32c",
    ),
    Fault(
        "ROCKSDB_ZIP_UNREADABLE",
        "state/0/0/9.zip",
        torn_snapshot(9),
        case="rocksdb_changelog",
        note="with-changelogs",
    ),
    Fault(
        "ROCKSDB_ZIP_UNREADABLE",
        "state/0/0/9_*",
        torn_snapshot(9),
        case="rocksdb_v2",
        note="with-ids-and-changelogs",
    ),
    Fault(
        "ROCKSDB_FILE_BROKEN",
        "state/0/0/SSTs/*",
        changed_sst(40, 4),
        case="rocksdb_changelog",
        note="with-changelogs",
    ),
    Fault("ROCKSDB_UNCHECKED", "state/0/0/SSTs/*", changed_sst(-12, 2), case="rocksdb_zip"),
    copied(
        "STATE_SNAPSHOT_DISAGREES",
        "state/0/0/6.zip",
        "state/0/0/9.zip",
        case="rocksdb_changelog",
        note="rocksdb",
    ),
    Fault("ROCKSDB_ID_MISSING", "state/0/0/11_*", lost_ids(11), case="rocksdb_v2"),
    Fault(
        "ROCKSDB_ID_MISSING",
        "state/0/0/10_*",
        lost_ids(10),
        case="rocksdb_v2",
        note="in-the-lineage",
    ),
    Fault("EDIT_UNFINISHED", ".epochal/journal/0001-rewind", half_an_edit),
    Fault("CHECKPOINT_SWITCHED", "metadata", switch_away),
)


def stale_sst(root: Path) -> None:
    flip(root, f"state/0/0/SSTs/.{newest_sst(root).name}.crc")


def grow(path: Path, tail: bytes) -> None:
    path.write_bytes((path.read_bytes() if path.exists() else b"") + tail)


def flip(root: Path, name: str) -> None:
    data = bytearray((root / name).read_bytes())
    data[-1] ^= 1
    (root / name).write_bytes(bytes(data))
