"""Recognises the sources of a plan: their format, and the options and schema that the user gave.

Sources are numbered as Spark numbers them: by their first occurrence in the analysed plan, from the
sink down and from left to right. Spark treats two relations as one source if they are equal.
"""

from __future__ import annotations

import pyarrow as pa

from epochal.connectors.file.file_reader import METADATA, METADATA_FIELDS
from epochal.connectors.file.spark_reader import SPARK_SCHEMA
from epochal.connectors.registry import FILE_SOURCES, SOURCES, source_identity, source_schema
from epochal.continuous.catalyst.plan_steps import Reading, Steps, ids_of
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    absolute_paths,
    items,
    option,
    simple_name,
)
from epochal.continuous.plan.logical import StreamSource
from epochal.evaluator.spark_classes import texts_of

RELATIONS = ("StreamingRelation", "StreamingRelationV2")


class PlanSources:
    """The sources of one analysed plan."""

    def __init__(self, steps: Steps, analyzed: JavaObject) -> None:
        self._steps = steps
        self._sources: list[tuple[JavaObject, StreamSource]] = []
        self.occurrences = tuple(
            self._register(leaf).number
            for leaf in items(analyzed.collectLeaves())
            if simple_name(leaf) in RELATIONS
        )

    @property
    def all(self) -> tuple[StreamSource, ...]:
        """Each source once, in the order of their numbers."""
        return tuple(source for _, source in self._sources)

    def read(self, relation: JavaObject) -> Reading:
        """The source of a leaf of the optimised plan."""
        return Reading(self._register(relation), ids_of(items(relation.output())))

    def _register(self, relation: JavaObject) -> StreamSource:
        for known, source in self._sources:
            if known.equals(relation):
                return source
        for known, source in self._sources:  # the optimiser may have renamed the columns
            if known.canonicalized().equals(relation.canonicalized()):
                return source
        made = self._source(len(self._sources), relation)
        self._sources.append((relation, made))
        return made

    def _source(self, number: int, relation: JavaObject) -> StreamSource:
        second = simple_name(relation) == "StreamingRelationV2"
        format, options = _second(relation) if second else self._first(relation)
        columns = list(items(relation.output()))
        schema = self._steps.schema_of(format, columns)
        for index, column in enumerate(columns):
            if METADATA.decode() in column.metadata().json():
                marked = schema.field(index).with_metadata({METADATA: b"true"})
                schema = schema.set(index, marked)
                self._check_metadata(format, [field.name for field in marked.type])
        user_schema = None
        if format.lower() in FILE_SOURCES:
            user_schema = schema.with_metadata({SPARK_SCHEMA: str(relation.schema().json())})
        self._check(format, options, user_schema, schema)
        described = _described(format, options)
        options = absolute_paths(options)
        spark = self._steps.planner.session
        return StreamSource(number, format, options, user_schema, schema, described, spark)

    def _check(
        self, format: str, options: dict[str, str], user_schema: pa.Schema | None, schema: pa.Schema
    ) -> None:
        findings = self._steps.findings
        if format.lower() not in SOURCES or format.lower() == "memory":
            known = ", ".join(sorted(set(SOURCES) - {"memory"}))
            findings.refuse(
                f"source {format}",
                "there is no connector for this format",
                f"read it with one of these: {known}; or let Spark write it to Kafka or files",
            )
            return
        with findings.around(f"source {format}", "change the options of the source"):
            ours = source_schema(format, options, user_schema)
            if ours.names != schema.names:
                findings.refuse(
                    f"source {format}",
                    f"its columns are ({_columns(schema)}) in Spark, but ({_columns(ours)}) here",
                    "change the schema of the source",
                )
            if source_identity(format, options) is not None:
                findings.refuse(
                    f"source {format}",
                    "it may deliver rows again, and a DataFrame has no operator that drops them",
                    "leave out delivery=exactly-once, or use epochal.read_stream",
                )

    def _check_metadata(self, format: str, names: list[str]) -> None:
        unknown = [name for name in names if name not in METADATA_FIELDS]
        if unknown:
            self._steps.findings.refuse(
                f"source {format}",
                f"_metadata has the fields {', '.join(unknown)}, whose values are not known here",
                "leave out _metadata",
            )
        self._steps.findings.note(
            "_metadata: a file is read as one block, also if Spark would split it"
        )

    def _first(self, relation: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of a relation of Spark's first source API: files."""
        source = relation.dataSource()
        options = texts_of(source.options())
        table = option(source.catalogTable())
        if table is not None and not any(key.lower() == "path" for key in options):
            options["path"] = str(table.location().toString())
        name = str(source.className())
        return name.rpartition(".")[2] if "." in name else name, options


def _second(relation: JavaObject) -> tuple[str, dict[str, str]]:
    """Format and options of a relation of Spark's second source API: everything but files."""
    given = relation.extraOptions().asCaseSensitiveMap()
    options = {str(key): str(given[key]) for key in given}
    if relation.catalog().isDefined():
        return f"table {relation.sourceName()}", options
    return str(relation.sourceName()), options


def _described(format: str, options: dict[str, str]) -> str:
    lower = {key.lower(): value for key, value in options.items()}
    for key in ("path", "subscribe", "subscribepattern", "assign", "subscription"):
        if key in lower:
            return f"{format}[{lower[key]}]"
    return format


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
