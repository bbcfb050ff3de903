"""How much a source reads in a turn."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochal.connectors.contract import Positions
from epochal.continuous.tasks.task_sources import FEW_ROWS, MAX_ROWS_PER_TURN, OpenSource


class Script:
    """A reader whose reads return these numbers of rows, and then nothing."""

    def __init__(self, *counts: int) -> None:
        self.left = list(counts)

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if not self.left:
            return None
        count = min(self.left[0], max_rows)
        self.left[0] -= count
        if not self.left[0]:
            del self.left[0]
        return pa.record_batch([list(range(count))], names=["n"])

    def positions(self) -> Positions:
        return {}

    def limit(self, ends: Positions) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


def read(reader: Script, partitions: int, *, reads_all: bool) -> tuple[list[int], bool]:
    numbers = {str(number): number for number in range(partitions)}
    source = OpenSource(reader, numbers, [], None, reads_all=reads_all)
    batches, more = source.read()
    return [batch.num_rows for batch in batches], more


def test_each_partition_is_read_until_it_is_empty() -> None:
    reader = Script(3, 2, 1)
    assert read(reader, 2, reads_all=False) == ([3, 2], False)
    assert reader.left == [1]


@pytest.mark.parametrize("count", [1, FEW_ROWS, MAX_ROWS_PER_TURN - 1])
def test_a_reader_that_reads_all_partitions_is_asked_once(count: int) -> None:
    reader = Script(count, 2)
    assert read(reader, 2, reads_all=True) == ([count], False)
    assert reader.left == [2]


def test_a_full_turn_says_that_there_is_more() -> None:
    assert read(Script(MAX_ROWS_PER_TURN + 1), 1, reads_all=True) == ([MAX_ROWS_PER_TURN], True)
