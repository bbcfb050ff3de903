"""Spark goes on from state that we wrote, and ends with the output of an undisturbed run.

Each edit starts from a golden checkpoint, is made with the `epochal` command, and is then handed to
the Spark release that wrote the checkpoint, which reads the rest of the input. One child process
serves all edits of a release. Snapshot repair is off: Spark must load what we wrote, not pass over
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import asked_for
from tests.golden import account
from tests.golden.catalogue import CASES
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.shape import Read
from tests.no_file_sink import with_no_sink
from tests.spark.releases import RELEASES, Resumed
from tests.spark.sessions import session_with
from tests.spark.test_edits_resume import run

from epochal.checkpoint import Checkpoint
from epochal.cli.main import main

Edit = Callable[[Unpacked], None]
Rows = list[dict[str, Any]]


def epochal(*words: str) -> None:
    assert main(with_no_sink(words)) == 0, words


def state(command: str, place: Unpacked, *words: str) -> None:
    directory = str(place.checkpoint)
    epochal("state", command, directory, *words, "--execute", "--settle-seconds", "0")


def repartition(place: Unpacked) -> None:
    for count in (7, 2, 3):
        state("repartition", place, "--partitions", str(count))


def read_rows(place: Unpacked, tmp: Path, *words: str) -> Rows:
    epochal("state", "export", str(place.checkpoint), *words, "--to", str(tmp))
    return [json.loads(line) for line in tmp.read_text().splitlines()]


def delete_and_put_back(place: Unpacked) -> None:
    file = place.base / "rows.jsonl"
    rows = read_rows(place, file)
    assert rows
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[::2]))
    state("delete", place, "--file", str(file))
    assert len(read_rows(place, place.base / "left.jsonl")) == len(rows) // 2
    state("put", place, "--file", str(file))


VARIABLES = tuple(("--variable", name) for name in ("total", "recent", "seen"))


def delete_variables_and_put_back(place: Unpacked) -> None:
    file = place.base / "rows.jsonl"
    for which in (*VARIABLES, ("--timers",)):
        assert read_rows(place, file, *which)
        state("delete", place, *which, "--file", str(file))
        assert read_rows(place, place.base / "left.jsonl", *which) == []
        state("put", place, *which, "--file", str(file))


def postpone(place: Unpacked) -> None:
    """Let everything expire in a hundred years: the checkpoint is older than its times to live."""
    file = place.base / "rows.jsonl"
    for which in VARIABLES:
        rows = read_rows(place, file, *which)
        for row in rows:
            [value] = [v for v in row.values() if isinstance(v, dict) and "ttlExpirationMs" in v]
            value["ttlExpirationMs"] += 100 * 365 * 86_400_000
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        state("put", place, *which, "--file", str(file))


def postpone_and_repartition(place: Unpacked) -> None:
    postpone(place)
    repartition(place)


def rekey_and_back(place: Unpacked) -> None:
    functions = place.base / "keys.py"
    functions.write_text(
        "def there(key, value):\n    return {'a': 7, 'b': key['k'] + '!'}\n\n"
        "def back(key, value):\n    return {'k': key['b'][:-1]}\n"
    )
    for name, schema in (("there", "a int, b string"), ("back", "k string")):
        state("rekey", place, "--key-function", f"{functions}:{name}", "--key-schema", schema)


def move_and_back(place: Unpacked) -> None:
    for source, to in (("0", "7"), ("7", "0")):
        state("move", place, "--operator", source, "--to", to)


def add_a_thousand(place: Unpacked) -> None:
    [row] = read_rows(place, place.base / "rows.jsonl")
    value = a_thousand_more([row["value"]])[0]
    state("put", place, "--key", "{}", "--value", json.dumps(value))


def to_hdfs(place: Unpacked) -> None:
    state("convert", place, "--to", "hdfs")


def to_rocksdb(place: Unpacked) -> None:
    state("convert", place, "--to", "rocksdb")


def rename_columns(place: Unpacked) -> None:
    state("evolve", place, "--rename", "count=how_many")


def as_undisturbed(output: Rows) -> Rows:
    return output


def a_thousand_more(output: Rows) -> Rows:
    return [
        {name: v + 1000 if isinstance(v, int) else v for name, v in row.items()} for row in output
    ]


@dataclass(frozen=True)
class Scenario:
    edit: Edit
    case: str
    expected: Callable[[Rows], Rows] = as_undisturbed

    def __str__(self) -> str:
        return f"{self.edit.__name__}-{self.case}"


EVERYDAY = [
    *(Scenario(repartition, case) for case in ("windowed", "join_outer", "chained")),
    *(Scenario(repartition, case) for case in ("rocksdb_session", "join_v4", "transform_ids")),
    *(Scenario(each, "transform") for each in (delete_variables_and_put_back, rekey_and_back)),
    Scenario(postpone_and_repartition, "transform_ttl"),
    *(Scenario(delete_and_put_back, case) for case in ("session", "rocksdb_changelog")),
    Scenario(add_a_thousand, "global", a_thousand_more),
    Scenario(to_hdfs, "rocksdb_zip"),
    Scenario(to_rocksdb, "windowed"),
    Scenario(rename_columns, "windowed"),
]
"""Every edit, on the kinds of state that differ most."""
OTHERS = ("per_key", "dedup", "session", "join_inner", "dedup_watermark", "limit", "global")
ROCKSDB = (
    "rocksdb_zip",
    "rocksdb_changelog",
    "rocksdb_checksum",
    "rocksdb_dedup",
    "join_rocksdb",
    "join_v3",
    "transform",
    "transform_avro",
)
MORE = [
    *(Scenario(repartition, case) for case in (*OTHERS, *ROCKSDB)),
    *(
        Scenario(delete_variables_and_put_back, case)
        for case in ("transform_ids", "transform_avro")
    ),
    *(
        Scenario(rekey_and_back, case)
        for case in ("transform_ids", "transform_avro", "per_key", "pandas_state")
    ),
    Scenario(postpone, "transform_ttl"),
    *(Scenario(rename_columns, case) for case in ("rocksdb_zip", "rocksdb_checksum")),
    Scenario(delete_and_put_back, "rocksdb_session"),
    *(Scenario(delete_and_put_back, case) for case in ("windowed", "dedup", "rocksdb_zip")),
    Scenario(to_hdfs, "rocksdb_changelog"),
    Scenario(to_rocksdb, "join_inner"),
]
WITH_IDS = [
    Scenario(delete_and_put_back, "rocksdb_v2"),
    Scenario(delete_and_put_back, "rocksdb_v2_zip"),
    *(Scenario(repartition, case) for case in ("rocksdb_v2", "rocksdb_v2_zip", "join_rocksdb_ids")),
    Scenario(rename_columns, "rocksdb_v2"),
    *(Scenario(move_and_back, case) for case in ("transform_ids", "join_rocksdb_ids")),
]
LEGACY = [Scenario(repartition, "join_v1")]
"""Joins of format 1 have golden checkpoints of releases before 4.1 only."""


def scenarios_of(release: str) -> list[Scenario]:
    chosen = [*EVERYDAY, *MORE, *LEGACY, *([] if release.startswith("3.") else WITH_IDS)]
    return [each for each in chosen if Golden(release, each.case).archive.exists()]


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Unpacked, Resumed]]:
    scenarios = asked_for(request, "scenario", EVERYDAY)
    return run(RELEASES[-1], scenarios, tmp_path_factory.mktemp("edits"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", EVERYDAY, ids=str)
def test_spark_ends_with_the_same_output(
    scenario: Scenario, resumed: dict[str, tuple[Unpacked, Resumed]]
) -> None:
    place, done = resumed[str(scenario)]
    assert done.query_id == place.facts["query_id"]
    assert done.output == scenario.expected(place.facts["undisturbed"]["output"])


READ_BY_SPARK = {
    "rocksdb_session": (repartition, delete_and_put_back),
    "join_v3": (repartition,),
    "transform_ids": (delete_variables_and_put_back, repartition, rekey_and_back),
    "transform_ttl": (delete_variables_and_put_back, repartition, rekey_and_back),
    "transform_avro": (delete_variables_and_put_back, repartition, rekey_and_back),
}


def newest_rows(facts: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What Spark's reader shows of the newest batch, without partitions."""
    newest = max(fact["batch_id"] for fact in facts)
    found: dict[str, list[str]] = {}
    for fact in facts:
        if fact["batch_id"] == newest:
            shown = [{k: v for k, v in row.items() if k != "partition_id"} for row in fact["rows"]]
            rows = sorted(json.dumps(row, sort_keys=True) for row in shown)
            found[json.dumps(fact["options"])] = rows
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", READ_BY_SPARK)
def test_sparks_reader_shows_the_same_rows(case: str, tmp_path: Path) -> None:
    place = unpack(Golden(RELEASES[-1], case), tmp_path, relocate=True)
    for edit in READ_BY_SPARK[case]:
        edit(place)
    newest = max(Checkpoint(str(place.checkpoint)).commits.batch_ids())
    spark = session_with(CASES[case].session_conf())
    # Only the rows: the change feed needs a changelog for each batch.
    unchanged = replace(CASES[case], reads=tuple(Read(r.options) for r in CASES[case].reads))
    read = account.state(spark, unchanged, place.checkpoint, [newest])
    assert newest_rows(read["state"]) == newest_rows(place.facts["state"])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_ends_with_the_same_output(release: str, tmp_path: Path) -> None:
    scenarios = scenarios_of(release)
    found = run(release, scenarios, tmp_path)
    for each in scenarios:
        place, done = found[str(each)]
        assert done.query_id == place.facts["query_id"], str(each)
        assert done.output == each.expected(place.facts["undisturbed"]["output"]), str(each)


def test_all_scenarios_have_a_golden_checkpoint() -> None:
    assert len(scenarios_of(RELEASES[-1])) == len(EVERYDAY) + len(MORE) + len(WITH_IDS)
