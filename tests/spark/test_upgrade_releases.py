"""`epochal.check` on checkpoints of earlier releases: its verdict is what this Spark then does."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.golden import account
from tests.golden.catalogue import CASES
from tests.golden.child import run, session_for, take_rest
from tests.golden.library import Golden, cases, unpack
from tests.golden.shape import Case
from tests.spark.sessions import local_session

from epochal.cli.main import main
from epochal.tools.upgrade.check_query import check
from epochal.tools.upgrade.upgrade_findings import AfterCommand, Outcome

pytestmark = pytest.mark.timeout(600)

RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1")
SAFE, ACTION, IMPOSSIBLE = Outcome.SAFE, Outcome.NEEDS_ACTION, Outcome.IMPOSSIBLE
UNCHANGED = (
    "aggregation_v1",
    "chained",
    "join_v1",
    "join_v3",
    "pandas_state",
    "per_key",
    "rocksdb_v2",
    "session",
    "transform",
)
OLD = [each for each in cases() if each.release in RELEASES]
GOLDEN = [each for each in OLD if each.case in UNCHANGED]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


def session(spark: SparkSession, case: Case) -> SparkSession:
    made = session_for(spark, case)
    made.conf.set("spark.sql.session.timeZone", "UTC")
    return made


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
def test_an_unchanged_query_of_an_earlier_release_is_safe_and_goes_on(
    golden: Golden, spark: SparkSession, tmp_path: Path
) -> None:
    place, case = unpack(golden, tmp_path, relocate=True), CASES[golden.case]
    made = session(spark, case)
    writer = case.query(made, place).writeStream.outputMode(case.mode)
    report = check(writer, str(place.checkpoint))
    assert (report.outcome, report.starts) == (SAFE, True), report

    take_rest(place)
    run(made, case, place)
    assert account.output(made, case, place) == place.facts["undisturbed"]["output"]


def test_names_of_spark_4_2_were_not_stored_and_need_a_command(
    spark: SparkSession, tmp_path: Path
) -> None:
    golden, case = Golden("4.2.1", "named_sources"), CASES["named_sources"]
    made = session(spark, case)
    for mended in (False, True):
        place = unpack(golden, tmp_path / str(mended), relocate=True)
        (found,) = check(case.query(made, place), str(place.checkpoint)).differences
        assert isinstance(found.verdict, AfterCommand)
        take_rest(place)
        if not mended:
            with pytest.raises(StreamingQueryException) as refusal:
                run(made, case, place)
            assert found.refusal in str(refusal.value)
            continue
        _, *words = shlex.split(found.verdict.command)
        assert words[3:-1] == ["--name", "0=morning", "--name", "1=evening"]
        assert main([*words, "--settle-seconds", "0"]) == 0
        run(made, case, place)
        assert account.output(made, case, place) == place.facts["undisturbed"]["output"]
