"""Positions and Spark's offset JSON."""

from __future__ import annotations

import json

import pytest

from epochal.connectors.kafka.source.source_offsets import (
    parse_logged,
    parse_partition_id,
    partition_id,
    partition_names,
    spark_json,
    to_offsets,
    to_positions,
)
from epochal.errors import MalformedFileError


def test_a_partition_id_can_be_parsed_for_any_topic_name() -> None:
    for tp in [("t", 0), ("a-b", 12), ("a-1", 2), ("a.b_c", 999)]:
        assert parse_partition_id(partition_id(tp)) == tp


def test_positions_are_offsets() -> None:
    offsets = {("a", 0): 4, ("a", 1): 2**53}
    assert to_offsets(to_positions(offsets)) == offsets
    assert to_positions(offsets) == {"a-0": "4", "a-1": "9007199254740992"}


def test_json_is_in_the_order_of_a_scala_hash_map() -> None:
    few = {("orders", 1): 7, ("orders", 0): 3}
    assert spark_json(few) == '{"orders":{"0":3,"1":7}}'
    topics = {(name, 0): 0 for name in ("clicks", "orders", "payments", "users")}
    assert list(json.loads(spark_json(topics))) == ["payments", "clicks", "orders", "users"]


def test_partitions_fold_back_into_a_small_table() -> None:
    sparse = {("t", n): 0 for n in (100, 3, 16)}
    assert spark_json(sparse) == '{"t":{"16":0,"3":0,"100":0}}'


def test_offsets_that_spark_logged_are_read() -> None:
    assert parse_logged('{"t":{"1":5,"0":0}}') == {("t", 1): 5, ("t", 0): 0}
    assert parse_logged("{}") == {}


@pytest.mark.parametrize("text", ["", "5", '{"t":5}', '{"t":{"0":-1}}', '{"t":{"x":1}}'])
def test_negative_offsets_are_rejected(text: str) -> None:
    with pytest.raises(MalformedFileError):
        parse_logged(text)


def test_many_partitions_are_named_by_the_first_few() -> None:
    assert partition_names([("t", n) for n in range(7)]) == "t-0, t-1, t-2, t-3, t-4 and 2 more"
