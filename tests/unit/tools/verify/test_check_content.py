"""Checks of state, by row or by column, in one process or in several, give the same results."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.state.random_rows import random_table, struct_of

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.errors import StateFormatError
from epochal.files import UNBOUNDED
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import encode_records
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import AtomicType, DecimalType, StringType, StructType
from epochal.state.rows.unsafe_row import encode_row, validate_row
from epochal.testing.files import FaultyFiles
from epochal.tools.verify import check_operators
from epochal.tools.verify.check_columns import check_large, scan_large
from epochal.tools.verify.check_content import (
    EMPTY_LZ4,
    END_MARK,
    NO_VALUE,
    Record,
    RowChecker,
    partition_of_key,
    scan_small,
    sure_check,
    unpack,
)
from epochal.tools.verify.check_operators import check_in_processes, check_in_threads
from epochal.tools.verify.findings import Finding, finding
from epochal.tools.verify.verify import verify

KEY = struct_of([StringType()])
VALUE = struct_of([AtomicType("long"), StringType()])
WIDE = struct_of(
    [
        StringType(),
        AtomicType("long"),
        AtomicType("integer"),
        AtomicType("boolean"),
        AtomicType("double"),
        AtomicType("float"),
        AtomicType("binary"),
        AtomicType("date"),
        DecimalType(10, 2),
        DecimalType(30, 5),
        struct_of([AtomicType("timestamp"), AtomicType("timestamp")]),
    ]
)


def records(count: int, *, seed: int = 1) -> list[Record]:
    draw = Random(seed)
    found: list[Record] = []
    for n in range(count):
        key = encode_row((f"key {n} {'é' * draw.randrange(9)}",), KEY)
        value = encode_row((draw.randrange(1 << 40), "x" * draw.randrange(20)), VALUE)
        found.append((key, None if draw.random() < 0.2 else value))
    return found


@pytest.mark.parametrize("row_checksums", [False, True])
def test_both_ways_read_the_same_records(row_checksums: bool) -> None:
    written = records(300)
    data = encode_records(written, row_checksums=row_checksums)
    form: dict[str, Any] = {"is_snapshot": False, "row_checksums": row_checksums, "source": "f"}
    assert scan_small(data, **form) == written
    assert list(scan_large(data, **form).to_list()) == written


@pytest.mark.parametrize("seed", range(400))
def test_both_ways_refuse_the_same_bytes(seed: int) -> None:
    draw = Random(seed)
    data = bytearray(encode_records(records(draw.randrange(5), seed=seed)))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data))
        data[at] = draw.choice((0, 0xFF, draw.randrange(256)))
    cut = bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.3 else data)
    form: dict[str, Any] = {
        "is_snapshot": draw.random() < 0.5,
        "row_checksums": False,
        "source": "f",
    }
    assert outcome(lambda: scan_small(cut, **form)) == outcome(
        lambda: list(scan_large(cut, **form).to_list())
    )


def outcome(read: Any) -> Any:
    try:
        return read()
    except StateFormatError:
        return StateFormatError


def test_knows_an_empty_delta_at_sight() -> None:
    assert compress(END_MARK, "lz4") == EMPTY_LZ4
    assert unpack(EMPTY_LZ4, "lz4", "f", UNBOUNDED) == END_MARK
    with pytest.raises(StateFormatError):
        unpack(EMPTY_LZ4, "zstd", "f", UNBOUNDED)


@pytest.mark.parametrize("seed", range(150))
def test_a_row_called_surely_right_is_right(seed: int) -> None:
    """The fast check accepts only rows that the full validation accepts."""
    draw = Random(seed)
    schema = draw.choice(
        [KEY, VALUE, struct_of([AtomicType("long")] * 3), random_table(draw, 1)[0]]
    )
    check = sure_check(schema)
    for _ in range(40):
        row = bytearray(draw.randbytes(8 * draw.randrange(1, 8)))
        if schema is KEY or schema is VALUE:
            values = (
                ("é" * draw.randrange(4) + "x",) if schema is KEY else (draw.randrange(9), "ab")
            )
            row = bytearray(encode_row(values, schema))
            for _ in range(draw.randrange(3)):
                row[draw.randrange(len(row))] = draw.choice((0, 8, 16, 255, draw.randrange(256)))
        if check(bytes(row)):
            validate_row(bytes(row), schema)


def test_the_quick_check_says_yes_to_what_most_queries_store() -> None:
    assert sure_check(KEY)(encode_row(("plain",), KEY))
    assert sure_check(VALUE)(encode_row((7, ""), VALUE))
    assert sure_check(StructType(()))(b"")
    assert not sure_check(VALUE)(encode_row((None, "x"), VALUE)), "left to the careful one"


def check_both(found: list[Record], partition: int = 0, count: int | None = None) -> list[Any]:
    """The result of each way: the number of misplaced keys, or the error."""
    checker = RowChecker(KEY, VALUE, placing_columns=1)
    columns = scan_large(encode_records(found), is_snapshot=False, row_checksums=False, source="f")
    ways = (
        lambda: checker.check(found, "f", partition, count),
        lambda: check_large(checker, columns, "f", partition, count),
    )
    return [outcome(way) for way in ways]


def test_both_ways_accept_and_refuse_the_same_rows() -> None:
    good = records(50)
    bad_key, bad_value = (b"\0" * 8, good[0][1]), (good[0][0], b"\0" * 8)
    assert check_both(good) == [0, 0]
    assert check_both([*good, bad_key]) == [StateFormatError] * 2
    assert check_both([*good, bad_value]) == [StateFormatError] * 2


def test_both_ways_overlook_the_schema_that_old_deduplications_wrote() -> None:
    assert check_both([(key, NO_VALUE) for key, _ in records(5)]) == [0, 0]


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_both_ways_count_the_same_misplaced_keys(partition: int) -> None:
    found = records(90)
    homes = [partition_of_key(key, KEY, 1, 3) for key, _ in found]
    wrong = sum(home != partition for home in homes)
    assert 0 < wrong < 90
    assert check_both(found, partition, 3) == [wrong, wrong]


def test_remembers_only_keys_that_are_in_their_place() -> None:
    checker = RowChecker(KEY, VALUE, placing_columns=1)
    found = records(30)
    first = checker.check(found, "f", 0, 3)
    assert checker.check(found, "f", 0, 3) == first


def test_places_single_keys_where_whole_columns_go() -> None:
    draw = Random(5)
    rows = [
        (
            "é" * draw.randrange(9),
            draw.randrange(-(1 << 62), 1 << 62),
            draw.randrange(-(1 << 31), 1 << 31),
            draw.random() < 0.5,
            draw.choice((0.0, -0.0, 1.5, -2.25e300)),
            draw.choice((0.0, -0.0, 1.5)),
            draw.randbytes(draw.randrange(12)),
            draw.randrange(-9999, 9999),
            None,
            None,
            (draw.randrange(1 << 50), None),
        )
        for _ in range(200)
    ]
    keys = [encode_row(row, WIDE) for row in rows]
    columns = decode_rows(spans_of(keys), WIDE).flatten()
    assert [partition_of_key(key, WIDE, len(WIDE.fields), 7) for key in keys] == partition_ids(
        columns, WIDE, 7
    ).tolist()


def test_has_no_place_for_keys_of_types_spark_does_not_partition_by() -> None:
    schema = struct_of([AtomicType("interval")])
    assert partition_of_key(encode_row((None,), schema), schema, 1, 3) is None


ITEMS = list(range(23))


def odd(share: Sequence[int], reports_progress: bool) -> list[Finding]:
    del reports_progress
    return [finding("STATE_HOLE", str(n), f"{n} ≠ even") for n in share if n % 2]


def ordered(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: int(each.path))


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_processes_find_what_one_finds(workers: int) -> None:
    assert ordered(check_in_processes(ITEMS, odd, workers)) == odd(ITEMS, False)


def test_threads_find_what_one_finds() -> None:
    assert ordered(check_in_threads(ITEMS, odd)) == odd(ITEMS, False)


def test_nothing_to_do_is_nothing_found() -> None:
    assert check_in_processes([], odd, 4) == []
    assert check_in_threads([], odd) == []


def test_the_share_of_a_process_that_died_is_done_again() -> None:
    here = os.getpid()

    def dies_elsewhere(share: Sequence[int], reports_progress: bool) -> list[Finding]:
        if os.getpid() != here:
            os._exit(7)
        return odd(share, reports_progress)

    assert ordered(check_in_processes(ITEMS, dies_elsewhere, 3)) == odd(ITEMS, False)


def test_only_one_share_reports_progress() -> None:
    reports_progress: list[bool] = []

    def note(share: Sequence[int], shown: bool) -> list[Finding]:
        del share
        reports_progress.append(shown)
        return []

    check_in_threads(ITEMS, note)
    assert sorted(reports_progress) == [False] * 15 + [True]


@pytest.mark.parametrize("remote", [False, True])
def test_verify_finds_the_same_however_many_work_on_it(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalFiles(tmp_path, durable=False)
    QueryMetadata("53b62e34-0476-452d-8313-c1786e091891").write(local)
    conf = {"spark.sql.shuffle.partitions": "9"}
    OffsetLog(local.at("offsets")).add(0, OffsetEntry(1, (), conf=conf))
    CommitLog(local.at("commits")).add(0, CommitEntry())
    for partition in range(9):
        local.create(f"state/0/{partition}/1.delta", EMPTY_LZ4 if partition % 2 else b"?")
    files = FaultyFiles(local, lambda operation, path: None) if remote else local
    monkeypatch.setattr(check_operators, "PARALLEL_FROM_FILES", 1)
    alone, together = verify(files), verify(files, workers=3)
    assert alone.findings == together.findings
    broken = [each.path for each in alone.findings if each.code == "STATE_FILE_UNREADABLE"]
    assert broken == [f"state/0/{partition}/1.delta" for partition in range(0, 9, 2)]
