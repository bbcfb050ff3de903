"""Edits of RocksDB and transformWithState on checkpoints that Spark wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, Unpacked, cases, unpack

from epochal.checkpoint import Checkpoint
from epochal.errors import EditError
from epochal.files.local import LocalFiles
from epochal.state.files.rocksdb_family import FAMILY_BYTES, families_of, family_prefix
from epochal.state.rows.ddl import parse_ddl
from epochal.state.store.rocksdb_directory import RocksDirectory
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.survey import survey
from epochal.tools.edit_state.edit_state import avro_forms
from epochal.tools.edit_state.evolve import AddColumn, parse_type, plan_evolve
from epochal.tools.edit_state.mutate import Mutation, plan_mutations
from epochal.tools.edit_state.rekey import plan_rekey
from epochal.tools.edit_state.repartition import plan_repartition
from epochal.tools.inspect.listing import list_all
from epochal.tools.inspect.state_listing import operators_of
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import open_reader, open_store
from epochal.tools.read_state.read_target import StateBatch
from epochal.tools.verify.verify import verify

ON_ROCKSDB = [
    "rocksdb_zip",
    "rocksdb_changelog",
    "rocksdb_v2",
    "rocksdb_v2_zip",
    "rocksdb_checksum",
    "rocksdb_session",
    "rocksdb_dedup",
    "rocksdb_retention",
    "types_rocksdb",
    "join_rocksdb",
    "join_rocksdb_ids",
    "join_v3",
    "join_v4",
    "transform",
    "transform_ttl",
    "transform_ids",
    "transform_avro",
]
VARIABLES = ("total", "recent", "seen")
FAMILIES = [each for each in cases() if each.case.startswith("transform")]

Read = dict[str, Any]


def files(place: Unpacked) -> LocalFiles:
    return LocalFiles(place.checkpoint, durable=False)


def run(place: Unpacked, plan: Any, *arguments: Any, **named: Any) -> str:
    where = files(place)
    return Journal(where).execute(plan(survey(where), *arguments, **named)).id


def batch_of(place: Unpacked) -> StateBatch:
    return StateBatch(Checkpoint(str(place.checkpoint)))


def reads(batch: StateBatch) -> Iterator[Read]:
    """Every way in which the state of the operators can be read."""
    for operator in operators_of(list_all(batch.files)):
        number = operator.operator
        if (variables := batch.variables(number)) is not None:
            for each in variables.values():
                timers = each.kind == "TimerState"
                yield {"operator_id": number, "state_variable": None if timers else each.name,
                       "timers": timers}  # fmt: skip
        elif batch.uses_join_families(number):
            yield from ({"operator_id": number, "store_name": n} for n in batch.schemas(number))
        else:
            for name in operator.store_names:
                yield {"operator_id": number, "store_name": name}


def all_rows(place: Unpacked) -> dict[str, list[str]]:
    """The rows of every store and variable, without their partitions."""
    batch = batch_of(place)
    found: dict[str, list[str]] = {}
    for read in reads(batch):
        rows = [row for part in json_batches(open_store(batch, **read)) for row in part]
        for row in rows:
            del row["partition_id"]
        found[json.dumps(read)] = sorted(json.dumps(row, sort_keys=True) for row in rows)
    return found


def rows_of(place: Unpacked, **read: Any) -> list[dict[str, Any]]:
    reader = open_reader(batch_of(place), **read)
    return [row for part in json_batches(reader) for row in part]


def content(place: Unpacked) -> dict[str, bytes]:
    root = place.checkpoint
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".epochal" not in path.parts
    }


def assert_indexes_follow_from_rows(place: Unpacked) -> None:
    """Each index has exactly the entries that follow from the rows that it is about."""
    batch = batch_of(place)
    variables = batch.variables(0) or {}
    lists = [each.name for each in variables.values() if each.kind == "ListState"]
    form, avro = batch.settings.form, avro_forms(batch, 0)
    for partition in batch.partitions(0):
        target = batch.family(0, "total")
        rocks = RocksDirectory(target.directory(partition), batch.settings)
        found = rocks.load(batch.version, target.stored(partition).unique_id)
        prefixes = {name: family_prefix(number) for name, number in found.families.items()}
        made: dict[bytes, bytes | None] = {}
        for family in families_of(batch.schemas(0), lists, found.families, avro).values():
            rows = [
                (
                    family.rows.decode_key(key[FAMILY_BYTES:], "golden"),
                    family.rows.decode_value(key, value, form, "golden"),
                )
                for key, value in found.family(family.name)
            ]
            made.update(family.changes(rows, (), prefixes.__getitem__, made.get, form))
        assert made == found.entries


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str, str], Unpacked]:
    return lambda release, case: unpack(Golden(release, case), tmp_path / case)


@pytest.mark.parametrize("golden", [each for each in cases() if each.case in ON_ROCKSDB], ids=str)
def test_repartition_of_rocksdb_keeps_every_row(golden: Golden, tmp_path: Path) -> None:
    place = unpack(golden, tmp_path)
    before, names = all_rows(place), content(place)
    assert any(before.values())
    entries = []
    for count in (5, 1, 3):
        entries.append(run(place, plan_repartition, count))
        assert all_rows(place) == before
        assert max(batch_of(place).partitions(0)) == count - 1
    assert [each for each in verify(files(place)).findings if each.severity == "error"] == []
    for entry in reversed(entries):
        Journal(files(place)).undo(entry)
    assert content(place) == names


@pytest.mark.parametrize("golden", FAMILIES, ids=str)
def test_indexes_are_as_spark_writes_them_after_every_edit(golden: Golden, tmp_path: Path) -> None:
    place = unpack(golden, tmp_path)
    assert_indexes_follow_from_rows(place)
    before = all_rows(place)
    put_back: list[tuple[dict[str, Any], list[Mutation]]] = []
    for name in VARIABLES:
        rows = rows_of(place, state_variable=name)
        mutations = [_mutation(row) for row in rows]
        removed = [Mutation(each.key, None) for each in mutations]
        run(place, plan_mutations, removed, variable=name)
        put_back.append(({"variable": name}, mutations))
        assert rows_of(place, state_variable=name) == []
        assert_indexes_follow_from_rows(place)
    rows = rows_of(place, timers=True)
    mutations = [_mutation(row) for row in rows]
    run(place, plan_mutations, [Mutation(each.key, None) for each in mutations], timers=True)
    assert rows_of(place, timers=True) == []
    assert_indexes_follow_from_rows(place)
    run(place, plan_repartition, 3)
    for options, gone in (*put_back, ({"timers": True}, mutations)):
        run(place, plan_mutations, gone, **options)
        assert_indexes_follow_from_rows(place)
    assert all_rows(place) == before


def _mutation(row: dict[str, Any]) -> Mutation:
    key = row["key"]
    for second in ("user_map_key", "expiration_timestamp_ms"):
        if second in row:
            key = {"key": key, second: row[second]}
    named = ("value", "list_element", "user_map_value")
    return Mutation(key, next((row[name] for name in named if name in row), {}))


def test_putting_a_timer_elsewhere_moves_it_in_both_indexes(
    unpacked: Callable[[str, str], Unpacked],
) -> None:
    place = unpacked("4.3.0", "transform")
    timer = rows_of(place, timers=True)[0]
    later = {"key": timer["key"], "expiration_timestamp_ms": -5}
    run(place, plan_mutations, [Mutation(later, {}), Mutation(_mutation(timer).key, None)],
        timers=True)  # fmt: skip
    assert_indexes_follow_from_rows(place)
    assert later in [_mutation(row).key for row in rows_of(place, timers=True)]


@pytest.mark.parametrize("release", ["4.0.5", "4.3.0"])
def test_a_list_becomes_the_elements_that_are_put(
    release: str, unpacked: Callable[[str, str], Unpacked]
) -> None:
    place = unpacked(release, "transform")
    key = rows_of(place, state_variable="recent")[0]["key"]
    run(place, plan_mutations, [Mutation(key, [{"v": 1}]), Mutation(key, {"v": 2})],
        variable="recent")  # fmt: skip
    found = [r["list_element"] for r in rows_of(place, state_variable="recent") if r["key"] == key]
    assert found == [{"v": 1}, {"v": 2}]
    assert_indexes_follow_from_rows(place)


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("case", ["transform", "transform_ttl", "transform_ids"])
def test_a_variable_gets_a_column_and_older_batches_stay(
    case: str, variable: str, unpacked: Callable[[str, str], Unpacked]
) -> None:
    place = unpacked("4.3.0", case)
    before, newest = all_rows(place), batch_of(place).batch_id
    rows = rows_of(place, state_variable=variable)
    run(place, plan_evolve, [AddColumn("extra", parse_type("string"), "x")], variable=variable)
    column = next(n for n in ("value", "list_element", "user_map_value") if n in rows[0])
    for row in rows:
        inner = row[column]["value"] if case == "transform_ttl" else row[column]
        inner["extra"] = "x"
    shown = sorted(map(json.dumps, rows_of(place, state_variable=variable)))
    assert shown == sorted(map(json.dumps, rows))
    old = StateBatch(Checkpoint(str(place.checkpoint)), newest)
    for read in reads(old):
        found = [row for part in json_batches(open_store(old, **read)) for row in part]
        assert len(found) == len(before[json.dumps(read)])


@pytest.mark.parametrize("golden", FAMILIES, ids=str)
def test_all_variables_and_timers_get_other_keys_and_their_own_back(
    golden: Golden, tmp_path: Path
) -> None:
    place = unpack(golden, tmp_path)
    before = all_rows(place)
    two = parse_ddl("a string, b int")
    run(place, plan_rekey, lambda key, _: {"a": key["k"], "b": 7}, key_schema=two)
    assert_indexes_follow_from_rows(place)
    shown = (
        json.dumps(all_rows(place)).replace('\\"a\\": ', '\\"k\\": ').replace(', \\"b\\": 7', "")
    )
    assert json.loads(shown) == before
    run(place, plan_repartition, 3)
    one = parse_ddl("k string")
    run(place, plan_rekey, lambda key, _: {"k": key["a"]}, key_schema=one)
    assert_indexes_follow_from_rows(place)
    assert all_rows(place) == before
    with pytest.raises(EditError, match="both become"):
        run(place, plan_rekey, lambda key, _: {"k": "same"})


def test_values_in_avro_evolve_without_help(unpacked: Callable[[str, str], Unpacked]) -> None:
    place = unpacked("4.3.0", "transform_avro")
    with pytest.raises(EditError, match="start the changed query as it is"):
        run(place, plan_evolve, [AddColumn("x", parse_type("long"), 1)], variable="total")
