"""The verdict on each difference between a checkpoint and a query."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.checkpoint.restart import HDFS_PROVIDER_CLASS, PROVIDER
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.rows.types import StructType, parse_schema
from epochal.tools.upgrade.checkpoint_facts import kind_of_offset
from epochal.tools.upgrade.state_rules import AGGREGATES, evolve_words
from epochal.tools.upgrade.upgrade_findings import (
    FILE,
    KAFKA,
    NUMBER,
    OTHER,
    RATE_MICRO_BATCH,
    AfterCommand,
    Impossible,
    Needs,
    OperatorFact,
    Outcome,
    Pins,
    Safe,
    SourceFact,
    StoreFact,
    Unclear,
    UpgradeDifference,
)
from epochal.tools.upgrade.upgrade_rules import compare

TOPIC = SourceFact("0", KAFKA, frozenset({"orders"}))


def columns(text: str) -> StructType:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (each.split() for each in text.split(", ") if each)
    ]
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


def operator(
    key: str, value: str, name: str = "stateStoreSave", **properties: object
) -> OperatorFact:
    family = FamilySchema(DEFAULT_FAMILY, columns(key), columns(value))
    store = StoreFact("default", {DEFAULT_FAMILY: family}, 2)
    return OperatorFact(0, name, {"default": store}, properties)


def differences(
    was: OperatorFact | None,
    wants: OperatorFact | None,
    *,
    sources: tuple[Sequence[SourceFact], Sequence[SourceFact]] = ((TOPIC,), (TOPIC,)),
    release: tuple[int, int] = (4, 3),
    offset_version: int = 1,
    session: dict[str, str] | None = None,
    ours: bool = False,
    unpublished: int | None = None,
    url: str = "/c",
) -> tuple[UpgradeDifference, ...]:
    pins = Pins(
        url,
        1,
        offset_version,
        tuple(sources[0]),
        {} if was is None else {0: was},
        {PROVIDER: HDFS_PROVIDER_CLASS, "spark.sql.shuffle.partitions": "2"},
        unpublished=unpublished,
    )
    operators = {} if wants is None else {0: wants}
    needs = Needs(release, tuple(sources[1]), operators, session or {}, ours=ours)
    return compare(pins, needs).differences


def keyed(columns: str, value: str = "sum long") -> OperatorFact:
    """An operator of which the columns of the key are known."""
    names = tuple(each.split()[0] for each in columns.split(", "))
    return replace(operator(columns, value), keys=(names,))


@pytest.mark.parametrize("fails", [True, False])
def test_topics_that_change_places_are_impossible_also_where_spark_starts(fails: bool) -> None:
    def source(key: str, topic: str) -> SourceFact:
        return SourceFact(key, KAFKA, frozenset(topic), fails_on_loss=fails)

    before, after = (source("0", "a"), source("1", "b")), (source("0", "b"), source("1", "a"))
    (found,) = differences(None, None, sources=(before, after))
    assert (type(found.verdict), found.is_silent) == (Impossible, not fails)


@pytest.mark.parametrize(
    ("topics", "pattern", "verdict"),
    [("a b", "", Safe), ("b", "", Unclear), ("", "[ab]", None), ("", "b.*", Unclear)],
)
def test_topics_may_be_added_but_not_removed_without_a_decision(
    topics: str, pattern: str, verdict: type | None
) -> None:
    was = SourceFact("0", KAFKA, frozenset("a"))
    wants = SourceFact("0", KAFKA, frozenset(topics.split()), pattern)
    found = differences(None, None, sources=((was,), (wants,)))
    assert [type(each.verdict) for each in found] == ([verdict] if verdict else [])
    assert [each.refusal for each in found if verdict is Unclear] in ([], ["have been deleted"])


def test_one_more_source_is_impossible_before_spark_had_names() -> None:
    more = (TOPIC, SourceFact("1", KAFKA, frozenset({"refunds"})))
    (found,) = differences(None, None, sources=((TOPIC,), more), release=(4, 1))
    assert isinstance(found.verdict, Impossible)


def test_a_release_that_cannot_read_the_log_is_impossible() -> None:
    (found,) = differences(None, None, offset_version=2, release=(4, 1))
    assert (type(found.verdict), found.refusal) == (Impossible, "INVALID_LOG_VERSION")


def test_a_setting_that_the_checkpoint_overrides_is_safe_and_names_the_command() -> None:
    one = operator("k string", "sum long")
    (found,) = differences(one, one, session={"spark.sql.shuffle.partitions": "8"})
    assert isinstance(found.verdict, Safe)
    command = "epochal state repartition /c --partitions 8 --sink OUTPUT --execute"
    assert found.verdict.command == command


def test_the_worst_difference_decides() -> None:
    found = differences(
        operator("k string", "sum long"),
        operator("k long", "sum long"),
        session={"spark.sql.shuffle.partitions": "8"},
    )
    assert [each.outcome for each in found] == [Outcome.IMPOSSIBLE, Outcome.SAFE]


@pytest.mark.parametrize(
    ("was", "wants", "words"),
    [
        ("sum long", "sum long, count long", "--add count:long=0"),
        ("sum long", "sum long, count long, max long", "--add count:long=0 --add max:long=null"),
        ("sum long", "sum long, n long", None),
        ("sum long", "sum long, sum long", None),
        ("a long", "a long, x=y long", None),
        ("a long, b long", "a long, count long, b long, max long", None),
        ("sum long, max long", "sum long, count long, max long", "--add count:long=0 --after sum"),
        ("max integer", "max long", "--widen max:long"),
        ("sum long, count long", "sum long", None),
        ("sum long", "count long, sum long", None),
        ("max long", "max integer", None),
    ],
)
def test_values_get_columns_and_wider_types(was: str, wants: str, words: str | None) -> None:
    found = evolve_words(columns(was), columns(wants), AGGREGATES)
    assert (found and " ".join(found)) == words


def test_columns_that_no_aggregate_has_start_with_null() -> None:
    assert evolve_words(columns("k string"), columns("k string, n long")) == [
        "--add",
        "n:long=null",
    ]


def test_spark_does_not_notice_a_deduplication_on_state_without_the_name_of_its_operator() -> None:
    was, wants = (
        operator("k string", "sum long", ""),
        operator("k string", "e long, f long", "dedupe"),
    )
    for ours in (False, True):
        (found,) = differences(was, wants, ours=ours)
        assert (type(found.verdict), found.is_silent) == (Impossible, not ours)


def test_our_engine_takes_over_keys_of_which_the_names_are_not_known() -> None:
    was, wants = operator("k string", "sum long"), keyed("j string")
    (found,) = differences(was, wants, ours=True)
    assert (type(found.verdict), found.is_silent) == (AfterCommand, True)


def test_our_engine_compares_the_names_of_stores() -> None:
    one = operator("k string", "v long", "transformWithState")
    other = replace(one, stores={"other": one.stores["default"]})
    assert differences(one, other) == ()
    (found,) = differences(one, other, ours=True)
    assert (type(found.verdict), found.refusal) == (Impossible, "was written by a query with")


def test_spark_needs_state_under_its_own_names_first() -> None:
    one = operator("k string", "sum long")
    assert differences(one, one, unpublished=7, ours=True) == ()
    more = operator("k string", "sum long, count long")
    first, second = differences(one, more, unpublished=7)
    assert isinstance(first.verdict, AfterCommand)
    assert first.verdict.command == "epochal checkpoint publish /c --execute"
    assert isinstance(second.verdict, AfterCommand)
    assert second.verdict.command.startswith("epochal state evolve")


def test_a_column_with_the_name_of_another_one_has_changed_places() -> None:
    was, wants = operator("a string, b string", "c long"), operator("b string, x string", "c long")
    (found,) = differences(was, wants)
    assert isinstance(found.verdict, Impossible)


@pytest.mark.parametrize("name", ["sum", "a=b"])
def test_a_name_that_the_command_cannot_find_is_for_the_author(name: str) -> None:
    was, wants = operator(f"{name} string", "sum long"), operator("k string", "sum long")
    (found,) = differences(was, wants)
    assert isinstance(found.verdict, Unclear)


def test_commands_are_quoted_for_the_shell() -> None:
    (found,) = differences(
        operator("k string", "sum long"), operator("j$ string", "sum long"), url="/my data/it's"
    )
    assert isinstance(found.verdict, AfterCommand)
    words = shlex.split(found.verdict.command)
    assert (words[3], words[7]) == ("/my data/it's", "k=j$")


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        ('{"logOffset":3}', FILE),
        ("17", NUMBER),
        ('{"offset":15,"timestamp":3000}', RATE_MICRO_BATCH),
        ('{"orders":{"0":23,"1":45}}', KAFKA),
        ('{"my":"own"}', OTHER),
        (None, OTHER),
        ("not json", OTHER),
    ],
)
def test_a_source_is_recognised_by_its_offset(offset: str | None, kind: str) -> None:
    assert kind_of_offset(offset)[0] == kind
