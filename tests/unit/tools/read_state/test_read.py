from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from tests.unit.state.samples import Content, Sample, home_of, make, packed, write

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.errors import StateFormatError, StateLoadError, StateReadError
from epochal.tools.read_state.changes import read_state_changes
from epochal.tools.read_state.read import read_state

BATCHES: list[Content] = [
    {"a": (1, 10), "b": (1, 20), "c": (1, 30)},
    {"a": (2, 11), "b": (1, 20), "d": (1, None)},
    {"a": (3, 12), "d": (1, None), "e": (5, 5)},
]


def rows_of(table: pa.Table) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for row in table.to_pylist():
        assert row["key"]["k"] not in found
        found[row["key"]["k"]] = (row["value"]["count"], row["value"]["sum"])
    return found


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return make(tmp_path / "checkpoint", BATCHES, snapshots=[2])


def test_the_newest_committed_batch_is_read_unless_one_is_named(sample: Sample) -> None:
    (sample.root / "commits" / "2").unlink()
    assert rows_of(read_state(sample.path)) == BATCHES[1]


def test_one_partition_can_be_read_alone(sample: Sample) -> None:
    parts = [rows_of(read_state(sample.path, partition=n)) for n in range(3)]
    assert {k: v for part in parts for k, v in part.items()} == BATCHES[2]
    with pytest.raises(StateReadError, match="not 3") as raised:
        read_state(sample.path, partition=3)
    assert raised.value.condition == "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND"


def test_state_from_before_the_codec_was_a_setting_is_lz4(sample: Sample) -> None:
    """A checkpoint of Spark 3.0 pins neither codec nor checksums, whatever a session says now."""
    for batch_id in range(len(BATCHES)):
        conf = {"spark.sql.shuffle.partitions": "3"}
        entry = OffsetEntry(1, (str(batch_id),), conf=conf)
        write(sample.root / f"offsets/{batch_id}", OFFSET_FORMAT.serialize(entry))
    assert rows_of(read_state(sample.path)) == BATCHES[2]


def test_partitions_beyond_those_of_the_batch_are_not_read(sample: Sample) -> None:
    write(sample.store(3) / "3.snapshot", packed(sample, []))
    (sample.store(3) / "3.snapshot").write_bytes(b"left by a later repartition")
    assert rows_of(read_state(sample.path)) == BATCHES[2]


def test_the_change_feed_needs_deltas(sample: Sample) -> None:
    sample.delta(0, 2).unlink()
    assert rows_of(read_state(sample.path)) == BATCHES[2]  # the snapshot serves
    with pytest.raises(StateLoadError, match=r"2\.delta"):
        read_state_changes(sample.path, 1)


def condition_of(call: Any) -> str:
    with pytest.raises(StateReadError) as raised:
        call()
    return raised.value.condition


def test_asking_an_operator_without_variables_for_one_names_its_stores(sample: Sample) -> None:
    with pytest.raises(StateReadError, match=r"Its stores are: default\. Choose one with --store"):
        read_state(sample.path, state_variable="total")


def test_asking_for_what_is_not_there_has_sparks_conditions(sample: Sample, tmp_path: Path) -> None:
    path = sample.path
    assert condition_of(lambda: read_state(path, batch_id=-1)).endswith("IS_NEGATIVE")
    assert condition_of(lambda: read_state(path, -1)).endswith("IS_NEGATIVE")
    assert condition_of(lambda: read_state(path, store_name=" ")).endswith("IS_EMPTY")
    assert condition_of(lambda: read_state(path, batch_id=9)) == "STDS_COMMITTED_BATCH_UNAVAILABLE"
    assert condition_of(lambda: read_state(path, 7)) == "STDS_FAILED_TO_READ_STATE_SCHEMA"
    assert condition_of(lambda: read_state(str(tmp_path))) == "STDS_COMMITTED_BATCH_UNAVAILABLE"
    both = condition_of(lambda: read_state(path, store_name="x", join_side="left"))
    assert both == "STDS_CONFLICT_OPTIONS"
    assert condition_of(lambda: read_state(path, state_variable="x")).endswith("WITH_MESSAGE")
    assert condition_of(lambda: read_state(path, timers=True)).endswith("WITH_MESSAGE")
    assert condition_of(lambda: read_state(path, join_side="left")).endswith("WITH_MESSAGE")
    assert condition_of(lambda: read_state_changes(path, -1)).endswith("IS_NEGATIVE")
    assert condition_of(lambda: read_state_changes(path, 2, 1)).endswith("WITH_MESSAGE")
    (sample.root / "offsets" / "2").unlink()
    assert condition_of(lambda: read_state(path)) == "STDS_OFFSET_LOG_UNAVAILABLE"
    write(sample.root / "offsets" / "2", b"v1\n\n-")
    assert condition_of(lambda: read_state(path)) == "STDS_OFFSET_METADATA_LOG_UNAVAILABLE"


def test_a_query_without_state_has_none_to_read(sample: Sample) -> None:
    shutil.rmtree(sample.root / "state")
    assert condition_of(lambda: read_state(sample.path)) == "STDS_FAILED_TO_READ_STATE_SCHEMA"
    assert not (sample.root / "state").exists()


def test_a_change_feed_does_not_go_over_a_change_of_format(sample: Sample) -> None:
    ids = CommitEntry(2, state_unique_ids={0: tuple((f"id-{n}",) for n in range(3))})
    write(sample.root / "commits" / "2", COMMIT_FORMAT.serialize(ids))
    mixed = condition_of(lambda: read_state_changes(sample.path, 1))
    assert mixed == "STDS_MIXED_CHECKPOINT_FORMAT_VERSIONS_NOT_SUPPORTED"
    feed = read_state_changes(sample.path, 0, 1).to_pylist()
    assert {row["batch_id"] for row in feed} == {0, 1}


def test_a_row_of_another_shape_anywhere_is_refused(sample: Sample) -> None:
    records = [(b"\0" * 24, b"\0" * 24), (b"\0" * 24, b"\0" * 40)]
    write(sample.delta(0, 3), packed(sample, records))
    with pytest.raises(StateFormatError, match=r"state/0/0/3\.delta"):
        read_state(sample.path)


def test_other_libraries_read_the_table_without_a_copy(sample: Sample) -> None:
    state = read_state(sample.path).combine_chunks()
    summed: Any = duckdb.sql("select sum(value.count) from state")
    assert summed.fetchall() == [(9,)]
    frame = polars.from_arrow(state)
    assert isinstance(frame, polars.DataFrame)
    assert sorted(frame["key"].struct.field("k").to_list()) == ["a", "d", "e"]
    numbers = state["partition_id"].to_numpy(zero_copy_only=False)
    assert sorted(numbers) == sorted(home_of(k, 3) for k in "ade")
    values: Any = state["value"].chunk(0)
    counts = values.field("count")
    series: Any = polars.from_arrow(counts)
    assert series.to_arrow().buffers()[1].address == counts.buffers()[1].address
    assert counts.to_pandas(zero_copy_only=True).tolist() == counts.to_pylist()


def test_reading_a_snapshot_imports_nothing_it_does_not_need(tmp_path: Path) -> None:
    # Arrow imports pandas, where it is installed, for innocent calls; that takes longer than the
    # read, and so do Arrow's functions and the codecs that are not used.
    sample = make(tmp_path, BATCHES[:1], snapshots=[1])
    heavy = ["pyspark", "pandas", "pyarrow.compute", "rich", "typer", "zmq", "zipfile"]
    heavy += ["zstandard", "cramjam"]
    code = (
        "import sys; from epochal.state import read_state; rows = read_state(sys.argv[1]).num_rows;"
        f"print(rows, [name for name in {heavy} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, sample.path], capture_output=True, text=True, check=True
    )
    assert run.stdout == "3 []\n"


def test_reading_deltas_does_not_import_pandas(sample: Sample) -> None:
    code = (
        "import sys; from epochal.tools.read_state.read import read_state; "
        "read_state(sys.argv[1]); print('pandas' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, sample.path], capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"


def test_rows_decoded_in_parts_are_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {f"key {n}": (n, -n) for n in range(50)}
    sample = make(tmp_path, [rows], snapshots=[1], partitions=2)
    monkeypatch.setattr("epochal.tools.read_state.read.ROWS_AT_ONCE", 7)
    state = read_state(sample.path)
    assert rows_of(state) == rows
    assert max(len(batch) for batch in state.to_batches()) == 7
