"""`state get` returns the rows that a whole read has of a key, and loads no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, cases, facts, unpack
from tests.golden.test_state_golden import opened

from epochal.state.files.merge import Rows
from epochal.tools.read_state import read, read_target
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import StoreReader, open_batch, rows_with_key
from epochal.tools.read_state.read_target import StoreTarget

STATEFUL = [golden for golden in cases(release="4.3.0") if facts(golden).get("state")]
KEYS = 5


def reads(golden: Golden) -> Iterator[dict[str, Any]]:
    """The newest read of each store that Spark could do, except sides of joins."""
    newest: dict[str, dict[str, Any]] = {}
    for each in facts(golden)["state"]:
        if each.get("rows") and "joinSide" not in each["options"]:
            newest[json.dumps(each["options"])] = each
    yield from newest.values()


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("golden", STATEFUL, ids=str)
def test_a_key_has_the_rows_that_a_whole_read_has_of_it(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unpack(golden, tmp_path)
    loaded: list[int] = []

    def load_rows(target: StoreTarget, partition: int, prefix: bytes = b"") -> list[Rows]:
        found = read_target.load_rows(target, partition, prefix)
        loaded.extend(map(len, found))
        return found

    monkeypatch.setattr(read, "load_rows", load_rows)
    for wanted in reads(golden):
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
            if "avro" not in golden.case and reader.target.encoder.kind == "plain":
                assert sum(loaded) <= len(expected)  # not the other rows of its partition
