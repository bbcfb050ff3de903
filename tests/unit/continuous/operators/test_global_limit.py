"""A limit passes on the first rows of a query, over all of its runs."""

from __future__ import annotations

import pyarrow as pa
from tests.unit.continuous.operators.driving import Driver, columns, table

from epochal.continuous.operators.global_limit import GlobalLimitSpec

SCHEMA = columns(v=pa.int64())


def test_a_limit_counts_over_epochs_and_restarts() -> None:
    driver = Driver(GlobalLimitSpec(3, SCHEMA), partitions=2)
    assert driver.turn(table(SCHEMA, [(1,), (2,)])) == [{"v": 1}, {"v": 2}]
    driver.cut()
    assert driver.state() == {(None,): (2,)}
    driver.restart()
    assert driver.turn(table(SCHEMA, [(3,), (4,)])) == [{"v": 3}]
    driver.cut()
    driver.restart()
    assert driver.turn(table(SCHEMA, [(5,)])) == []
    driver.cut()
    assert driver.state() == {(None,): (3,)}


def test_a_limit_of_nothing_stores_nothing() -> None:
    driver = Driver(GlobalLimitSpec(0, SCHEMA))
    assert driver.turn(table(SCHEMA, [(1,)])) == []
    driver.cut()
    assert driver.state() == {}
