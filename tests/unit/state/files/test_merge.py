from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochal.state.files.delta_snapshot import FileKind, Records, encode_records, scan_records
from epochal.state.files.merge import merge_records, puts_of

Operations = list[tuple[bytes, bytes | None]]

KEYS = st.integers(0, 12).map(lambda n: n.to_bytes(8, "little"))
VALUES = st.integers(0, 5).map(lambda n: n.to_bytes(8, "little"))
DELTA = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=8)


def records(operations: Operations, kind: FileKind = FileKind.DELTA) -> Records:
    return scan_records(encode_records(operations), kind)


def merged(base: dict[bytes, bytes] | None, deltas: list[Operations]) -> list[tuple[bytes, bytes]]:
    bottom = None if base is None else records(list(base.items()), FileKind.SNAPSHOT)
    parts = merge_records(bottom, [records(delta) for delta in deltas])
    return sorted(pair for part in parts for pair in zip(part.keys, part.values, strict=True))


@given(st.none() | st.dictionaries(KEYS, VALUES), st.lists(DELTA, max_size=4))
def test_the_last_record_of_a_key_wins_as_in_a_dictionary(
    base: dict[bytes, bytes] | None, deltas: list[Operations]
) -> None:
    model = dict(base or {})
    for delta in deltas:
        for key, value in delta:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
    assert merged(base, deltas) == sorted(model.items())


def test_large_files_are_cut_into_parts_that_hold_every_row_once() -> None:
    rows = puts_of(records([(bytes([n]) * 8, bytes(8)) for n in range(20)]))
    assert rows.parts(1 << 30) == [rows]
    for most in (16, 17, 40, 100, 319, 320):
        parts = rows.parts(most)
        assert [key for part in parts for key in part.keys] == list(rows.keys)
        sizes = [int((p.keys.lengths + p.values.lengths).sum()) for p in parts]
        assert all(size <= most + 16 for size in sizes)
