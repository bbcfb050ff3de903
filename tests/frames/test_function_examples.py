"""The examples in the documentation of Spark's functions have the same results here, as streams.

They are read from the installed Spark. Literals become columns wherever Spark accepts that, so that
the optimiser cannot compute the result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.fuzz_sql.both_sides import quiet
from tests.fuzz_sql.example_runs import BY_US, DIFFERENT, SETTINGS, run_all
from tests.fuzz_sql.examples import read_examples
from tests.spark.sessions import session_with

PARTS = 12
"""Functions are split into so many parts. Every day the first of them is compared."""

NEED_A_FILE = {"input_file_name", "input_file_block_length", "input_file_block_start"}
"""Functions of the file of a row."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with quiet():
        yield session_with(SETTINGS)


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("part", range(PARTS))
def test_the_examples_of_functions_have_the_results_of_spark(
    spark: SparkSession, part: int, ansi: str
) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    functions = list(read_examples(spark).values())[part::PARTS]
    examples = [example for found in functions for example in found]
    report = run_all(spark, examples, literal=ansi == "true")
    print(report)  # noqa: T201  pytest shows it with -rP
    assert report.lines(DIFFERENT) == []
    refused = {o.example.function for o in report.outcomes if o.verdict == BY_US}
    assert refused <= NEED_A_FILE
