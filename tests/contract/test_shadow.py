"""`epochal shadow` finds the first difference between the outputs of two queries, in every sink.

The outputs are written by the real sinks, the logs by a small engine. The second query begins as a
clone of the first, after epoch 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.contract.sinks import written
from tests.iceberg_tables import Warehouse
from tests.rigs.postgres import Postgres

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.cli.main import main
from epochal.connectors.registry import open_sink
from epochal.files.local import LocalFiles
from epochal.tools.switch.clone import new_sink_log

FIELDS: list[tuple[str, Any]] = [("k", pa.string()), ("v", pa.int64())]
SCHEMA = pa.schema(FIELDS)
Rows = Mapping[str, int]


class Query:
    """A query in small: one source, whose offset is the number of rows read."""

    def __init__(self, folder: Path, kind: str, options: Mapping[str, str], **more: Any) -> None:
        self.files = LocalFiles(folder, durable=False)
        self.id, self.kind = str(uuid4()), kind
        self.options, self.more = options, more
        self.next = 0
        QueryMetadata(self.id).write(self.files)

    def run(self, end: int, rows: Rows, watermark_ms: int = 0) -> None:
        """Commit an epoch that ends at this offset."""
        epoch, self.next = self.next, self.next + 1
        sink = open_sink(
            *(self.kind, self.options, SCHEMA), checkpoint=self.files, query_id=self.id, **self.more
        )
        with closing(sink):
            sink.fence(epoch + 1)
            found = [{"k": key, "v": value} for key, value in rows.items()]
            messages = written(sink, epoch, [found], SCHEMA, attempt=epoch + 1)
            self.log(epoch, end, watermark_ms)
            sink.commit(epoch, messages)
        CommitLog(self.files.at("commits")).add(epoch, CommitEntry())

    def log(self, epoch: int, end: int, watermark_ms: int) -> None:
        entry = OffsetEntry(1, (str(end),), watermark_ms=watermark_ms)
        OffsetLog(self.files.at("offsets")).add(epoch, entry)

    def follow(self, other: Query, epoch: int) -> None:
        """Begin as a clone of another query after an epoch."""
        entry = OffsetLog(other.files.at("offsets")).get(epoch)
        assert entry is not None
        OffsetLog(self.files.at("offsets")).add(epoch, entry)
        CommitLog(self.files.at("commits")).add(epoch, CommitEntry())
        self.next = epoch + 1
        if self.kind == "parquet":
            output = LocalFiles(self.options["path"], durable=False)
            for change in new_sink_log(output, epoch):
                assert isinstance(change.after, bytes)
                output.create(change.path, change.after)


@dataclass
class Pair:
    """Two queries, and how their outputs are named in the command."""

    a: Query
    b: Query
    outputs: tuple[str, str]
    words: Sequence[str] = ()

    def shadow(self, capsys: pytest.CaptureFixture[str], *words: str, status: int) -> Any:
        outputs = ("--output-a", self.outputs[0], "--output-b", self.outputs[1])
        places = (self.a.files.url, self.b.files.url)
        capsys.readouterr()
        found = main(("shadow", *places, *outputs, *self.words, *words, "--json"))
        shown = capsys.readouterr()
        assert found == status, shown
        return json.loads(shown.out)


def files_pair(tmp: Path) -> Pair:
    queries = [
        Query(tmp / f"ck-{each}", "parquet", {"path": str(tmp / f"out-{each}")}) for each in "ab"
    ]
    return Pair(queries[0], queries[1], (str(tmp / "out-a"), str(tmp / "out-b")))


def delta_pair(tmp: Path, **more: Any) -> Pair:
    options = more.pop("options", {})
    queries = [
        Query(tmp / f"ck-{each}", "delta", {"path": str(tmp / f"out-{each}"), **options}, **more)
        for each in "ab"
    ]
    return Pair(queries[0], queries[1], (str(tmp / "out-a"), str(tmp / "out-b")))


def iceberg_pair(tmp: Path, **options: str) -> Pair:
    house = Warehouse(tmp / "house")
    queries = [
        Query(tmp / f"ck-{each}", "iceberg", house.options(f"db.{each}", **options))
        for each in "ab"
    ]
    words = [f"--catalog={key}={value}" for key, value in house.settings.items()]
    return Pair(
        queries[0], queries[1], ("iceberg:db.a", "iceberg:db.b"), [*words, "--catalog=name=tests"]
    )


PAIRS: dict[str, Callable[[Path], Pair]] = {
    "files": files_pair,
    "delta": delta_pair,
    "delta-partitioned": lambda tmp: delta_pair(tmp, partition_by=("k",)),
    "iceberg": iceberg_pair,
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    made = PAIRS[request.param](tmp_path)
    made.a.run(2, {"old": 1})
    made.a.run(4, {"older": 2})
    made.b.follow(made.a, 1)
    return made


def test_segments_with_other_cuts_have_the_same_rows(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for query, cuts in ((pair.a, (6, 8, 10)), (pair.b, (7, 8, 10))):
        query.run(cuts[0], {"x": 1} if cuts[0] == 6 else {"y": 2, "x": 1})
        query.run(cuts[1], {"y": 2} if cuts[0] == 6 else {})
        query.run(cuts[2], {"z": 3})
    found = pair.shadow(capsys, status=0)
    assert found["verdict"] == "same"
    assert [(each["epochs_a"], each["epochs_b"], each["rows"]) for each in found["same"]] == [
        ([2, 3], [2, 3], 2),
        ([4, 4], [4, 4], 1),
    ]


def test_the_first_difference_is_shown_with_its_epochs_offsets_and_rows(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for query, wrong in ((pair.a, 5), (pair.b, 6)):
        query.run(6, {"x": 1})
        query.run(8, {"y": wrong})
        query.run(10, {"z": 3})
    found = pair.shadow(capsys, "--key", "k", status=1)
    assert [each["offsets_after"] for each in found["same"]] == [["6"]]
    assert found["difference"] == {
        "epochs_a": [3, 3],
        "epochs_b": [3, 3],
        "offsets_before": ["6"],
        "offsets_after": ["8"],
        "watermark_ms": 0,
        "only_a": 1,
        "only_b": 1,
        "rows": [{"a": '{"k": "y", "v": 5}', "b": '{"k": "y", "v": 6}'}],
    }
    assert pair.shadow(capsys, "--ignore-columns", "v", status=0)["verdict"] == "same"


def test_rows_that_only_one_has_are_counted(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.a.run(6, {"x": 1, "y": 2, "z": 3})
    pair.b.run(6, {"x": 1})
    found = pair.shadow(capsys, "--rows", "1", status=1)["difference"]
    assert (found["only_a"], found["only_b"]) == (2, 0)
    assert found["rows"] == [{"a": '{"k": "y", "v": 2}', "b": None}]


def test_queries_that_never_stood_at_the_same_place_cannot_be_compared(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.a.run(6, {"x": 1})
    pair.b.run(7, {"x": 1})
    found = pair.shadow(capsys, status=3)
    assert "ends at 6, that of the second, 2, at 7" in found["reason"]


def test_the_same_input_with_another_watermark_cannot_be_compared(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.a.run(6, {"x": 1}, watermark_ms=50)
    pair.b.run(6, {})
    pair.shadow(capsys, status=1)  # a query without state does not depend on it
    pair.a.files.create("state/0/_metadata/metadata", b"")
    assert "watermarks are 50 and 0 ms" in pair.shadow(capsys, status=3)["reason"]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_that_replace_others_are_compared_by_key(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = (
        delta_pair(tmp_path, options={"mergeKeys": "k"}, output_mode="update")
        if kind == "delta"
        else iceberg_pair(tmp_path, mergeKeys="k")
    )
    pair.a.run(2, {"never again": 1, "x": 1})
    pair.b.follow(pair.a, 0)
    for query in (pair.a, pair.b):
        query.run(4, {"x": 2})
        query.run(6, {"x": 3, "y": 1})
    assert pair.shadow(capsys, "--key", "k", status=0)["verdict"] == "same"
    pair.a.run(8, {"x": 4})
    pair.b.run(8, {"x": 5})
    found = pair.shadow(capsys, "--key", "k", status=1)["difference"]
    assert found["rows"] == [{"a": '{"k": "x", "v": 4}', "b": '{"k": "x", "v": 5}'}]


def test_a_table_without_a_commit_of_the_query_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = delta_pair(tmp_path)
    pair.a.run(2, {"old": 1})
    pair.b.follow(pair.a, 0)
    for query in (pair.a, pair.b):
        query.run(4, {"x": 1})
    wrong = Pair(pair.a, pair.b, (pair.outputs[0], pair.outputs[0]))
    found = wrong.shadow(capsys, status=1)
    assert f"no commit of query {pair.b.id}" in found["notes"][-1]


def test_tables_that_do_not_know_epochs_are_compared_as_a_whole_and_only_at_the_same_place(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"shadow_{uuid4().hex}" for _ in range(2)]
    queries = [
        Query(tmp_path / name, "postgres", {"url": postgres.url, "dbtable": name, "mergeKeys": "k"})
        for name in names
    ]
    outputs = (f"{postgres.url}#{names[0]}", f"{postgres.url}#public.{names[1]}")
    pair = Pair(queries[0], queries[1], outputs)
    pair.a.run(2, {"never again": 1, "x": 1})
    pair.b.follow(pair.a, 0)
    for query in (pair.a, pair.b):
        query.run(4, {"x": 2})
    found = pair.shadow(capsys, "--key", "k", status=0)
    assert "All rows are compared" in found["notes"][0]
    assert "Left out: 1 row of the first output, whose keys the second has not." in found["notes"]
    assert pair.shadow(capsys, status=1)["difference"]["only_a"] == 1
    pair.a.run(6, {"x": 3})
    found = pair.shadow(capsys, "--key", "k", status=3)
    assert "do not stand at the same place" in found["reason"]


def test_files_without_a_log_are_compared_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = files_pair(tmp_path)
    pair.a.run(2, {})
    for name, rows in (("a", '{"k":"x"}\n{"k":"y"}\n'), ("b", '{"k":"y"}\n{"k":"x"}\n')):
        (tmp_path / f"plain-{name}" / "day=1").mkdir(parents=True)
        (tmp_path / f"plain-{name}" / "day=1" / "rows.json").write_text(rows)
    plain = Pair(pair.a, pair.a, (str(tmp_path / "plain-a"), str(tmp_path / "plain-b")))
    assert plain.shadow(capsys, status=0)["same"][0]["rows"] == 2
    (tmp_path / "plain-b" / "day=1").rename(tmp_path / "plain-b" / "day=2")
    found = plain.shadow(capsys, status=1)["difference"]["rows"]
    assert found[0]["a"] == '{"day": "1", "k": "x"}'
