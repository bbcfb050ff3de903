"""`epochal.check` on checkpoints of earlier releases: its verdict is what this Spark then does."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.golden import account
from tests.golden.catalogue import CASES
from tests.golden.child import run, session_for, take_rest
from tests.golden.inputs import read_events
from tests.golden.library import Golden, cases, unpack
from tests.golden.place import Place
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


def by_value(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    return rows.groupBy("v").agg(F.count("*").alias("n"), F.avg("v").alias("mean"))


def distinct(spark: SparkSession, place: Place) -> DataFrame:
    return read_events(spark, place, "events").select("k").dropDuplicates()


def stateless(spark: SparkSession, place: Place) -> DataFrame:
    return read_events(spark, place, "events").select("k")


def distinct_first(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events").dropDuplicates(["k", "v"])
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.avg("v").alias("mean"))


def not_distinct(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events").selectExpr("ts", "k", "v % 20 AS r")
    counts = rows.groupBy(F.window("ts", "2 minutes"), "k").agg(F.count("*").alias("n"))
    return counts.selectExpr("window.start AS start", "k", "n")


def renamed(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events").withColumnRenamed("k", "j")
    return rows.groupBy("j").agg(F.count("*").alias("n"), F.avg("v").alias("mean"))


@dataclass(frozen=True, slots=True)
class Change:
    case: str
    name: str
    query: Callable[[SparkSession, Place], DataFrame]
    outcome: Outcome
    mode: str | None = None
    release: str = ""

    def __str__(self) -> str:
        return f"{self.release}-{self.case}: {self.name}"


CHANGES = [
    replace(change, release=release)
    for release in RELEASES
    for change in (
        Change("per_key", "the type of the key", by_value, IMPOSSIBLE),
        Change("per_key", "the name of the key", renamed, ACTION),
        Change("per_key", "a deduplication", distinct, IMPOSSIBLE, "append"),
        Change("per_key", "a second operator", distinct_first, IMPOSSIBLE),
        Change("per_key", "no state", stateless, IMPOSSIBLE, "append"),
        Change("chained", "no deduplication", not_distinct, IMPOSSIBLE),
    )
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_verdict_on_a_changed_query_is_what_spark_then_does(
    change: Change, spark: SparkSession, tmp_path: Path
) -> None:
    place = unpack(Golden(change.release, change.case), tmp_path, relocate=True)
    case = CASES[change.case]
    if change.mode is not None:
        case = replace(case, mode=change.mode)  # type: ignore[arg-type]
    case = replace(case, query=change.query)
    made = session(spark, case)
    writer = case.query(made, place).writeStream.outputMode(case.mode)
    report = check(writer, str(place.checkpoint))
    assert report.outcome == change.outcome, report

    take_rest(place)
    try:
        run(made, case, place)
        refusal = None
    except StreamingQueryException as error:
        refusal = str(error)
    assert report.starts == (refusal is None), (report, refusal)
    if refusal is not None:
        said = [each.refusal for each in report.differences if each.refusal]
        assert any(each.lower() in refusal.lower() for each in said), (said, refusal)
