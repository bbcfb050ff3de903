"""Spark's own planner, called from Python: check, optimise and plan a query without running it.

Everything that differs between the releases 4.0 to 4.3 is here: classes have moved between packages
and constructors have got more arguments. The calls work in a clone of the user's session, with the
settings that a checkpoint pins, as Spark's MicroBatchExecution does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from epochal.connectors.file.file_reader import METADATA
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    Replacement,
    arrow_type_of,
    collected,
    items,
    option,
    simple_name,
)
from epochal.errors import OptionError
from epochal.evaluator.spark_classes import active_session, class_of, object_of, scala_map

_SQL = "org.apache.spark.sql"
_EXPRESSIONS = f"{_SQL}.catalyst.expressions"
_STREAMING = f"{_SQL}.execution.streaming"

_ZONELESS = ("CurrentTimestamp", "Now")
_TIME_FUNCTIONS = (*_ZONELESS, "CurrentDate", "LocalTimestamp", "CurrentTime")
"""What the optimiser would replace by a constant. (Spark itself replaces Now in every batch by the
clock's time, and the others by the batch's time.)"""

_OF_FILES = {
    "InputFileName": "file_path",
    "InputFileBlockStart": "file_block_start",
    "InputFileBlockLength": "file_block_length",
}
"""Functions of the file of a row, and the fields of `_metadata` with their values."""

_FULL_URL = ("^([^:/]+):/(?!/)", "$1:///")
"""What to replace in `_metadata.file_path` to get `input_file_name()`, and by what."""

_HAND_ON = (
    *("Project", "Filter", "Generate", "SubqueryAlias", "View", "ResolvedHint"),
    *("EventTimeWatermark", "CollectMetrics"),
)
"""Nodes whose rows are in the tasks that read them, and can get another column."""

_EXCHANGE = (
    *("Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit"),
    *("Repartition", "RepartitionByExpression", "RebalancePartitions"),
    *("TransformWithStateInPySpark", "TransformWithStateInPandas"),
)
"""Nodes whose rows come from an exchange: no file is known any more."""

RENAMED = {"TimeAdd": "TimestampAddInterval"}
"""Expressions that have another name in earlier releases."""

_FIXED = {
    "spark.sql.cbo.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.requireAllClusterKeysForDistribution": "false",
}
"""Settings that Spark fixes for streaming queries, so that operators keep their places."""


def release_of(spark: SparkSession) -> tuple[int, int]:
    """Major and minor version of a session's Spark."""
    major, minor, *_ = spark.version.split(".")
    return int(major), int(minor)


def with_replacements(spark: SparkSession, analyzed: JavaObject) -> JavaObject:
    """An analysed plan with the expressions that Spark evaluates instead of those written."""
    return object_of(spark._jvm, f"{_SQL}.catalyst.optimizer.ReplaceExpressions").apply(analyzed)


class Planner:
    """Plans queries in a clone of a session."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        output_mode: str,
        pinned: Mapping[str, str] | None,
        runs_jobs: bool = True,
    ) -> None:
        """Without `runs_jobs`, `collect` returns no rows."""
        self._runs_jobs = runs_jobs
        self._jvm: Any = spark._jvm
        self._release = release_of(spark)
        old = self._release < (4, 1)
        self._runtime = _STREAMING if old else f"{_STREAMING}.runtime"
        logs = _STREAMING if old else f"{_STREAMING}.checkpointing"
        self._metadata_class = f"{logs}.OffsetSeqMetadata"
        self.session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        self._js: Any = self.session._jsparkSession
        modes = self._class(f"{_SQL}.streaming.OutputMode")
        self._mode = getattr(modes, output_mode.capitalize())()
        # The optimiser calls back into Python for the functions of the current time.
        ensure_callback_server_started(spark.sparkContext._gateway)
        for key, value in _FIXED.items():
            self.session.conf.set(key, value)
        if pinned is not None:
            rules = self._object(self._metadata_class)
            rules.setSessionConf(self._metadata(pinned), self._js.sessionState().conf())

    def check(self, analyzed: JavaObject) -> str | None:
        """Why Spark itself refuses the query; None if it accepts it."""
        if not analyzed.isStreaming():
            return "the DataFrame is not a stream: no source of it was made by spark.readStream"
        checks = self.session.conf.get("spark.sql.streaming.unsupportedOperationCheck")
        if str(checks).lower() == "false":
            return None
        checker = self._object(f"{_SQL}.catalyst.analysis.UnsupportedOperationChecker")
        try:
            checker.checkForStreaming(analyzed, self._mode)
        except AnalysisException as error:
            return str(error).split(";\n")[0].split("\n")[0].strip()  # without the plan
        return None

    def optimized(self, analyzed: JavaObject) -> JavaObject:
        """The optimised logical plan, in which the current time is not a constant."""
        moving = analyzed.transformAllExpressions(Replacement(_TIME_FUNCTIONS, self._moment))
        with active_session(self.session):
            return self._js.sessionState().optimizer().execute(moving)

    def _moment(self, expr: JavaObject) -> JavaObject:
        """The time of the batch instead of the current time."""
        zone = (
            self._class("scala.Option").apply("UTC")
            if simple_name(expr) in _ZONELESS
            else expr.timeZoneId()
        )
        batch_time = self._class(f"{_EXPRESSIONS}.CurrentBatchTimestamp")
        if simple_name(expr) != "CurrentTime":
            return batch_time(0, expr.dataType(), zone)
        moment = batch_time(0, self._class(f"{_SQL}.types.DataTypes").TimestampType, zone)
        return self._object(f"{_EXPRESSIONS}.Cast").apply(moment, expr.dataType(), zone, True)

    def with_files(self, analyzed: JavaObject) -> JavaObject:
        """The plan, with fields of `_metadata` instead of functions of the file of a row.

        Above an exchange no file is known. There the functions stay, and have the values for that.
        """
        if "input_file_" not in str(analyzed.toString()):
            return analyzed
        unknown: list[str] = []  # an error would not come back through the JVM
        replace = Replacement(("Project", "Filter", "Generate"), lambda n: self._named(n, unknown))
        named = analyzed.transformUp(replace)
        if unknown:
            raise OptionError(f"the file of a row is not known above {unknown[0]}")
        # The analyzer lets the operators below hand the column on.
        return self._js.sessionState().analyzer().AddMetadataColumns().apply(named)

    def _named(self, node: JavaObject, unknown: list[str]) -> JavaObject:
        if not any("input_file_" in str(expr.toString()) for expr in items(node.expressions())):
            return node
        below = node.child()
        while simple_name(below) in _HAND_ON:
            below = below.child()
        name = simple_name(below)
        is_join = name == "Join" and all(child.isStreaming() for child in items(below.children()))
        if is_join or name in _EXCHANGE:  # its rows come from other tasks than those that read them
            return node
        if not name.startswith("StreamingRelation"):
            unknown.append(name)
            return node
        hidden = [*items(below.metadataOutput()), *items(below.output())]
        hidden = [column for column in hidden if METADATA.decode() in str(column.metadata().json())]
        if not hidden:
            return node  # the source has no files
        column = hidden[0]
        names = [str(name) for name in column.dataType().fieldNames()]
        classes, none = self._class(_EXPRESSIONS), self._class("scala.Option").empty()

        def field(function: JavaObject) -> JavaObject:
            name = simple_name(function)
            value = classes.GetStructField(column, names.index(_OF_FILES[name]), none)
            if name != "InputFileName":
                return value
            text = [self._object(f"{_EXPRESSIONS}.Literal").apply(text) for text in _FULL_URL]
            return classes.RegExpReplace(value, *text)

        return node.transformExpressions(Replacement(_OF_FILES, field))

    def physical(self, optimized: JavaObject) -> JavaObject:
        """The physical plan of an optimised one, with the ids of its stateful operators."""
        execution = self._object(f"{_SQL}.execution.QueryExecution")
        with active_session(self.session):
            dry = self._dry_run(optimized)
            arguments = [dry.planner(), optimized.clone()]
            if self._release < (4, 1):
                arguments.insert(0, self._js)
            planned = execution.createSparkPlan(*arguments)
            return execution.prepareForExecution(dry.preparations(), planned)

    def lay_out_state(self, analyzed: JavaObject, directory: str) -> JavaObject:
        """Let Spark plan the first batch of a query, whose checkpoint is a local directory.

        Spark then writes the metadata and schemas of the stateful operators into its `state`.
        Returns the physical plan. The directory needs a file `offsets/0`: before Spark plans a
        batch it has logged its offsets, and some operators make sure of that.
        """
        with active_session(self.session):
            return self._dry_run(analyzed, f"{directory}/state", is_first=True).executedPlan()

    def collect(self, plan: JavaObject) -> pa.Table:
        """The rows of a logical plan without streams."""
        if not self._runs_jobs:
            columns = [(str(c.name()), arrow_type_of(c.dataType())) for c in items(plan.output())]
            return pa.schema(columns).empty_table()
        for leaf in items(plan.collectLeaves()):
            if simple_name(leaf) == "LogicalRelation":
                relation = leaf.relation()
                if simple_name(relation) == "HadoopFsRelation":
                    relation.location().refresh()  # else Spark keeps the listing of the files
        datasets = self._object(f"{_SQL}.classic.Dataset")
        return collected(DataFrame(datasets.ofRows(self._js, plan), self.session))

    def value_of(self, plan: JavaObject) -> JavaObject:
        """The only row of a logical plan without streams; None if there is none."""
        if not self._runs_jobs:
            return None
        with active_session(self.session):
            datasets = self._object(f"{_SQL}.classic.Dataset")
            execution = datasets.ofRows(self._js, plan).queryExecution().executedPlan()
            rows = execution.executeCollect()
        if len(rows) > 1:
            raise OptionError(f"a scalar subquery returned {len(rows)} rows, not one")
        return rows[0].copy() if len(rows) else None

    def join_keys(
        self, join: JavaObject
    ) -> tuple[tuple[list[JavaObject], list[JavaObject]], JavaObject | None]:
        """The keys of both sides that must be equal, and what else must hold; None if nothing."""
        pattern = self._object(f"{_SQL}.catalyst.planning.ExtractEquiJoinKeys")
        keys = option(pattern.unapply(join))
        if keys is None:
            return ([], []), option(join.condition())
        return (list(items(keys._2())), list(items(keys._3()))), option(keys._4())

    def normalized(self, expr: JavaObject) -> JavaObject:
        """A grouping expression with one form of NaN and zero, as Spark's planner makes it."""
        rule = self._object(f"{_SQL}.catalyst.optimizer.NormalizeFloatingNumbers")
        return rule.normalize(expr)

    def aggregation_value(self, save: JavaObject) -> JavaObject:
        """The schema of the state values of a StateStoreSaveExec."""
        package = (
            f"{_STREAMING}.state" if self._release < (4, 1) else f"{_STREAMING}.operators.stateful"
        )
        managers = self._object(f"{package}.StreamingAggregationStateManager")
        manager = managers.createStateManager(
            save.keyExpressions(), save.child().output(), save.stateFormatVersion()
        )
        return manager.getStateValueSchema()

    def _dry_run(
        self, plan: JavaObject, location: str = "/nowhere", *, is_first: bool = False
    ) -> JavaObject:
        """An IncrementalExecution. If it is not the first batch, it writes nothing."""
        maps, uuid = self._class("scala.collection.mutable.HashMap"), self._class("java.util.UUID")
        arguments = [
            self._js,
            plan,
            self._mode,
            location,
            uuid.randomUUID(),
            uuid.randomUUID(),
            0,
            self._class("scala.Option").empty(),
            self._metadata({}),
            self._object(f"{self._runtime}.NoOpWatermarkPropagator"),
            is_first,
            maps(),
            maps(),
            self._class(f"{_SQL}.execution.CommandExecutionMode").SKIP(),
        ]
        if self._release >= (4, 1):
            arguments.append(False)  # isTerminatingTrigger
        if self._release >= (4, 3):
            arguments.append(False)  # isRealTimeMode
        return self._class(f"{self._runtime}.IncrementalExecution")(*arguments)

    def _metadata(self, conf: Mapping[str, str]) -> JavaObject:
        return self._class(self._metadata_class)(0, 0, scala_map(self._jvm, conf))

    def _class(self, name: str) -> Any:
        return class_of(self._jvm, name)

    def _object(self, name: str) -> Any:
        return object_of(self._jvm, name)


def stateful_operators(physical: JavaObject) -> list[JavaObject]:
    """The stateful operators of a physical plan that save state, by their ids."""
    operators = {
        node.getStateInfo().operatorId(): node
        for node in preorder(physical)
        if simple_name(node) in STATEFUL
    }
    return [operators[number] for number in sorted(operators)]


STATEFUL = (
    "StateStoreSaveExec",
    "SessionWindowStateStoreSaveExec",
    "StreamingDeduplicateExec",
    "StreamingDeduplicateWithinWatermarkExec",
    "StreamingSymmetricHashJoinExec",
    "StreamingGlobalLimitExec",
    "FlatMapGroupsWithStateExec",
    "FlatMapGroupsInPandasWithStateExec",
    "TransformWithStateExec",
    "TransformWithStateInPySparkExec",
    "TransformWithStateInPandasExec",
)


def preorder(plan: JavaObject) -> Iterator[JavaObject]:
    """A plan node and all below it."""
    yield plan
    for child in items(plan.children()):
        yield from preorder(child)
