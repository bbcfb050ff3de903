"""Our rows against those of Spark's own `statestore` source, for every golden checkpoint.

Every operator, store, variable, join side and batch that Spark read is compared, values with their
types; then the change feeds, and single keys. What Spark could not read is not compared, and
counted. Then all bytes of HDFS-backed stores: each key and value is decoded both as a column and as
a row, encoded again both ways, and each key must hash to the directory it is in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.library import Golden, Unpacked, cases, facts, unpack
from tests.unit.state.arrow_values import from_arrow

from epochal.errors import StateReadError
from epochal.state.files.codecs import decompress
from epochal.state.files.delta_snapshot import (
    FileKind,
    Records,
    encode_records,
    encode_spans,
    scan_records,
)
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import placing_columns
from epochal.state.files.schema_file import FamilySchema, encode_schema_file, parse_schema_file
from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import Kind, Layout, StructType, bitset_bytes
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.tools.read_state import read, read_target
from epochal.tools.read_state.changes import open_changes
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import (
    StateReader,
    StoreReader,
    open_batch,
    open_reader,
    read_state,
    rows_with_key,
)
from epochal.tools.read_state.read_target import StoreTarget

STATEFUL = [golden for golden in cases() if facts(golden).get("state")]


def opened(found: Unpacked, options: Mapping[str, str], batch_id: int) -> StateReader:
    batch = open_batch(str(found.checkpoint), batch_id)
    side = options.get("joinSide")
    return open_reader(
        batch,
        int(options.get("operatorId", "0")),
        options.get("storeName", "default"),
        join_side=side if side in ("left", "right") else None,  # type: ignore[arg-type]
        state_variable=options.get("stateVarName"),
        timers=options.get("readRegisteredTimers") == "true",
    )


def feed(found: Unpacked, options: Mapping[str, str], start: int, end: int) -> StateReader:
    return open_changes(
        open_batch(str(found.checkpoint), end),
        start,
        int(options.get("operatorId", "0")),
        options.get("storeName", "default"),
        state_variable=options.get("stateVarName"),
    )


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)


def ours(reader: StateReader) -> Counter[str]:
    return counted(row for rows in json_batches(reader) for row in rows)


def collapsed(rows: Counter[str]) -> Counter[str]:
    """Of fields with the same name keep the last: older facts have no name for `buf#2`."""
    found: Counter[str] = Counter()
    for text, count in rows.items():
        found[json.dumps(_collapsed(json.loads(text)), sort_keys=True, ensure_ascii=False)] += count
    return found


def _collapsed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.partition("#")[0]: _collapsed(item) for name, item in value.items()}
    return [_collapsed(item) for item in value] if isinstance(value, list) else value


def theirs(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Spark's rows; its own text of a variant is left out, since the bytes are there."""
    return counted(without_variant_text(row) for row in rows)


def without_variant_text(value: Any) -> Any:
    if isinstance(value, dict):
        kept = value.keys() - {"json"} if value.keys() == {"value", "metadata", "json"} else value
        return {name: without_variant_text(item) for name, item in value.items() if name in kept}
    return [without_variant_text(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", params=STATEFUL, ids=str)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    chosen: Golden = request.param
    return unpack(chosen, tmp_path_factory.mktemp(str(chosen)))


def without_event_time(rows: Counter[str]) -> Counter[str]:
    """Drop the time in the key of a join of format 4.

    Spark 4.3 shows the bytes of another column there: it reads a key without the time as if it had
    one.
    """
    found: Counter[str] = Counter()
    for text, count in rows.items():
        row = json.loads(text)
        row["key"].pop("__event_time", None)
        found[json.dumps(row, sort_keys=True, ensure_ascii=False)] += count
    return found


def test_every_row_of_every_batch_is_the_one_spark_reads_and_nothing_is_changed_by_reading(
    golden: Unpacked,
) -> None:
    before = listing(golden.checkpoint)
    for fact in golden.facts["state"]:
        if "rows" in fact:
            asked = (fact["options"], fact["batch_id"])
            found, expected = ours(opened(golden, *asked)), theirs(fact["rows"])
            if "joinSide" in fact["options"]:
                found, expected = without_event_time(found), without_event_time(expected)
            if not any("#" in text for text in expected):
                found = collapsed(found)
            assert found == expected, asked
    assert listing(golden.checkpoint) == before


def test_every_change_is_the_one_spark_reads(golden: Unpacked) -> None:
    for fact in golden.facts["changes"]:
        if "rows" in fact:
            asked = (fact["options"], fact["start"], fact["end"])
            assert ours(feed(golden, *asked)) == theirs(fact["rows"]), asked


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


SIDES = {
    "left": "seen timestamp, view bigint, k string",
    "right": "clicked timestamp, click bigint",
}


@pytest.mark.parametrize("case", ["join_v1", "join_inner"])
def test_a_join_without_schema_files_is_read_with_the_users_schema(
    case: str, tmp_path: Path
) -> None:
    found = unpack(Golden("3.5.9", case), tmp_path)
    for path in found.checkpoint.glob("state/*/*/*/_metadata/schema"):
        path.unlink()
    for side, columns in SIDES.items():
        [fact] = [
            each
            for each in found.facts["state"]
            if each["options"] == {"joinSide": side} and each["batch_id"] == 5
        ]
        with pytest.raises(StateReadError, match="give --key-schema and --value-schema"):
            opened(found, fact["options"], 5)
        batch = open_batch(str(found.checkpoint), 5, "field0 bigint", columns)
        reader = open_reader(batch, join_side="left" if side == "left" else "right")
        assert ours(reader) == theirs(fact["rows"])


def test_metadata_of_a_preview_of_spark_4_is_named_as_such(tmp_path: Path) -> None:
    found = unpack(Golden("4.3.0", "transform"), tmp_path)
    for path in found.checkpoint.glob("state/0/_metadata/v2/[0-9]*"):
        text = path.read_text(encoding="utf-8").replace("SchemaFilePaths", "SchemaFilePath")
        path.write_text(text.replace('["file:', '"file:').replace('"]}]', '"}]'), encoding="utf-8")
    with pytest.raises(StateReadError, match=r"a preview of Spark 4\.0\.0"):
        read_state(str(found.checkpoint), state_variable="total")


def test_fields_of_the_same_name_stay_apart_in_arrow_as_in_json(tmp_path: Path) -> None:
    found = unpack(Golden("4.3.0", "types"), tmp_path)
    table = read_state(str(found.checkpoint))
    shown = {name for rows in json_batches(opened(found, {}, 0)) for name in rows[0]["value"]}
    names = [field.name for field in table.schema.field("value").type]
    assert set(names) == shown
    assert len(set(names)) == len(names)
    assert any(name.endswith("#2") for name in names)


def test_there_are_golden_checkpoints_and_spark_could_read_most_of_them() -> None:
    read = [
        fact for golden in STATEFUL for fact in facts(golden)["state"] if golden.release != "3.5.9"
    ]
    assert len(STATEFUL) > 20
    assert sum("rows" in fact for fact in read) > 0.9 * len(read)


OF_4_3 = [golden for golden in cases(release="4.3.0") if facts(golden).get("state")]
KEYS = 5


def newest_reads(golden: Golden) -> Iterator[dict[str, Any]]:
    """The newest read of each store that Spark could do, except sides of joins."""
    newest: dict[str, dict[str, Any]] = {}
    for each in facts(golden)["state"]:
        if each.get("rows") and "joinSide" not in each["options"]:
            newest[json.dumps(each["options"])] = each
    yield from newest.values()


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("archive", OF_4_3, ids=str)
def test_a_key_has_the_rows_that_a_whole_read_has_of_it(
    archive: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unpack(archive, tmp_path)
    loaded: list[int] = []

    def load_rows(target: StoreTarget, partition: int, prefix: bytes = b"") -> list[Rows]:
        found = read_target.load_rows(target, partition, prefix)
        loaded.extend(map(len, found))
        return found

    monkeypatch.setattr(read, "load_rows", load_rows)
    for wanted in newest_reads(archive):
        reader = opened(place, wanted["options"], wanted["batch_id"])
        assert isinstance(reader, StoreReader)
        operator = reader.target.operator_id
        name = open_batch(str(place.checkpoint)).operator_name(operator)
        everything = [row for rows in json_batches(reader) for row in rows]
        keys = {json.dumps(row["key"]): row["key"] for row in everything}
        for key in list(keys.values())[:KEYS]:
            expected = [row for row in everything if row["key"] == key]
            loaded.clear()
            assert texts(rows_with_key(reader, key, name)) == texts(expected), (wanted, key)
            if "avro" not in archive.case and reader.target.encoder.kind == "plain":
                assert sum(loaded) <= len(expected)  # not the other rows of its partition


CODEC = "spark.sql.streaming.stateStore.compression.codec"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"


@dataclass(frozen=True)
class StateFile:
    """A delta or snapshot, and what is needed to read it."""

    path: Path
    partition: int
    operator: str | None
    store: str
    schema: FamilySchema
    records: Records
    raw: bytes
    row_checksums: bool


def conf_of(checkpoint: Path) -> dict[str, str]:
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    found: dict[str, str] = json.loads(newest.read_text().splitlines()[1])["conf"]
    return found


def operator_name(operator: Path) -> str | None:
    metadata = operator / "_metadata" / "metadata"
    if not metadata.exists():
        return None
    found: str = json.loads(metadata.read_text().splitlines()[1])["operatorInfo"]["operatorName"]
    return found


def state_files(checkpoint: Path) -> Iterator[StateFile]:
    conf = conf_of(checkpoint)
    codec, checksums = conf.get(CODEC, "lz4"), conf.get(CHECKSUMS) == "true"
    for schema_path in sorted(checkpoint.glob("state/*/0/**/_metadata/schema")):
        (schema,) = parse_schema_file(schema_path.read_bytes(), source=str(schema_path))
        inside = schema_path.parent.parent.relative_to(checkpoint).parts
        operator, store = checkpoint / "state" / inside[1], "/".join(inside[3:])
        for path in sorted(operator.glob(f"[0-9]*/{store or '.'}/*.*")):
            if path.name.startswith(".") or path.suffix not in (".delta", ".snapshot"):
                continue
            raw = decompress(path.read_bytes(), codec, source=str(path))
            kind = FileKind(path.suffix[1:])
            records = scan_records(raw, kind, row_checksums=checksums, source=str(path))
            partition = int(path.relative_to(operator).parts[0])
            name = operator_name(operator)
            yield StateFile(path, partition, name, store, schema, records, raw, checksums)


@pytest.fixture(scope="module", params=STATEFUL, ids=str)
def files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[StateFile]:
    golden: Golden = request.param
    found = unpack(golden, tmp_path_factory.mktemp(str(golden)))
    read = list(state_files(found.checkpoint))
    in_rocksdb = "RocksDB" in conf_of(found.checkpoint).get(PROVIDER, "")
    assert in_rocksdb == (not read)
    return read


def both_ways(rows: Spans, schema: StructType, source: str) -> list[Any]:
    """The rows' values, equal as a column and one at a time."""
    column = decode_rows(rows, schema, source=source)
    column.validate(full=True)
    values = [decode_row(raw, schema, source=source) for raw in rows]
    assert repr(from_arrow(column, schema.layout)) == repr(values)  # repr: NaN is equal to itself
    return values


def test_every_row_is_well_formed_as_a_row_and_as_a_column(files: list[StateFile]) -> None:
    for file in files:
        both_ways(file.records.keys, file.schema.key, f"{file.path} keys")
        kept = file.records.values.take(~file.records.deleted)
        both_ways(kept, file.schema.value, f"{file.path} values")


def encoded_again(rows: Spans, schema: StructType) -> list[bytes]:
    """The bytes we make of the rows' values, the same from a column and one at a time."""
    one_by_one = [encode_row(decode_row(raw, schema), schema) for raw in rows]
    assert list(encode_rows(decode_rows(rows, schema), schema)) == one_by_one
    return one_by_one


def blanked(row: bytes, layout: Layout) -> bytes:
    """The row without what Spark left in the room of a null interval: whatever was there before."""
    data = bytearray(row)
    bitset = bitset_bytes(len(layout.children))
    for index, child in enumerate(layout.children):
        if child.kind is Kind.INTERVAL and data[index // 8] >> index % 8 & 1:
            slot = bitset + 8 * index
            at = int.from_bytes(data[slot + 4 : slot + 8], "little")
            data[at : at + 16] = bytes(16)
    return bytes(data)


def test_keys_encode_to_the_bytes_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        assert encoded_again(file.records.keys, file.schema.key) == list(file.records.keys)


def test_values_encode_to_the_bytes_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        kept = file.records.values.take(~file.records.deleted)
        written = [blanked(row, file.schema.value.layout) for row in kept]
        assert encoded_again(kept, file.schema.value) == written


def test_every_key_hashes_to_the_directory_it_is_in(files: list[StateFile]) -> None:
    for file in files:
        partitions = len(list(file.path.parents[len(Path(file.store).parts)].parent.glob("[0-9]*")))
        placing = placing_columns(file.operator, file.store or "default", file.schema.key)
        columns = decode_rows(file.records.keys, file.schema.key).flatten()
        if placing.fields:
            placed = partition_ids(columns[: len(placing.fields)], placing, partitions)
        else:
            placed = np.zeros(len(file.records), np.int64)
        assert placed.tolist() == [file.partition] * len(file.records), file.path


def test_records_encode_to_the_stream_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        records, sums = file.records, file.row_checksums
        assert encode_records(records.to_list(), row_checksums=sums) == file.raw
        if not records.deleted.any():
            assert encode_spans(records.keys, records.values, row_checksums=sums) == file.raw


def test_schema_files_encode_to_the_bytes_spark_wrote(tmp_path: Path) -> None:
    seen = 0
    for golden in STATEFUL:
        checkpoint = unpack(golden, tmp_path / str(golden)).checkpoint
        paths = [*checkpoint.glob("state/**/_metadata/schema")]
        paths += checkpoint.glob("state/*/_stateSchema/*/[0-9]*")
        for path in paths:
            raw = path.read_bytes()
            families = parse_schema_file(raw, source=str(path))
            assert encode_schema_file(families, version=int(raw[3:4])) == raw, path
            seen += 1
    assert seen > len(STATEFUL) // 2
