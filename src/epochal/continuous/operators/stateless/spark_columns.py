"""Converts SQL text and PySpark columns to expression trees, with Spark's analyzer.

Spark resolves names, types, implicit casts and functions on an empty DataFrame with the stream's
schema. The JSON of its analyzed plan is then converted to the trees of `expressions.py`.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType, _parse_datatype_json_value

from epochal.continuous.operators.expressions.evaluate import check_supported
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Literal
from epochal.errors import OptionError

Node: TypeAlias = dict[str, Any]

_NESTED = {"Between": ("input", "lower", "upper")}
"""Expressions whose arguments are fields of the node. Their children are a rewritten form, which
Spark executes instead."""


@dataclass(frozen=True, slots=True)
class _Session:
    """The properties of session and stream that determine the meaning of a tree."""

    columns: tuple[str, ...]
    ansi: bool
    zone: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """Resolved columns, and their names and types."""

    columns: tuple[Expr, ...]
    schema: pa.Schema


def resolve(spark: SparkSession, schema: pa.Schema, columns: Sequence[Any]) -> Resolved:
    """Resolve `columns` (SQL text or PySpark columns) over a stream of this schema."""
    for column in columns:
        if isinstance(column, str) and re.search(r"\btry_\w+\s*\(", column, re.IGNORECASE):
            raise OptionError(
                f"{column!r}: try_ functions are not supported. Use map_in_arrow instead."
            )
        if isinstance(column, str) and re.search(r"\bESCAPE\s+['\"]", column, re.IGNORECASE):
            raise OptionError(
                f"{column!r}: LIKE with ESCAPE is not supported. Use RLIKE or map_in_arrow instead."
            )
    frame = spark.createDataFrame([], spark_schema(schema))
    try:
        found = frame.selectExpr(*columns) if _texts(columns) else frame.select(*columns)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"{', '.join(map(str, columns))}: {error}") from None
    plan = json.loads(found._jdf.queryExecution().analyzed().toJSON())
    if not plan[0]["class"].endswith("logical.Project"):
        raise OptionError(
            f"{', '.join(map(str, columns))}: only expressions over the columns of one row are "
            f"possible. To aggregate, use group_by."
        )
    session = _Session(
        tuple(frame.columns),
        str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true",
        str(spark.conf.get("spark.sql.session.timeZone")),
    )
    exprs = tuple(_read(nodes, session) for nodes in plan[0]["projectList"])
    for expr in exprs:
        check_supported(expr, ", ".join(map(str, columns)))
    return Resolved(exprs, arrow_schema(found.schema))


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType | str | pa.Schema) -> pa.Schema:
    """Convert a schema (DDL text, Spark's or Arrow's) to Arrow's."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except ParseException as error:
            raise OptionError(f"{schema!r} is not a schema: {error}") from None
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def _texts(columns: Sequence[Any]) -> bool:
    texts = {isinstance(column, str) for column in columns}
    if len(texts) > 1:
        raise OptionError(
            "Some columns are text and some are PySpark columns. Use only one of the two."
        )
    return texts == {True}


def _read(nodes: list[Node], session: _Session) -> Expr:
    expr, used = _read_at(nodes, 0, session)
    assert used == len(nodes)
    return expr


def _read_at(nodes: list[Node], index: int, session: _Session) -> tuple[Expr, int]:
    """The tree that starts at `index` of a list in preorder, and the index of the next tree."""
    node = nodes[index]
    name = node["class"].rpartition(".")[2]
    arguments: list[Expr] = []
    index += 1
    for _ in range(node["num-children"]):
        argument, index = _read_at(nodes, index, session)
        arguments.append(argument)
    if name in _NESTED:
        arguments = [_read(node[each], session) for each in _NESTED[name]]
    return _expr(name, node, arguments, session), index


def _expr(name: str, node: Node, arguments: list[Expr], session: _Session) -> Expr:
    match name:
        case "AttributeReference":
            return Column(session.columns.index(node["name"]))
        case "Literal":
            kind = _arrow_type(node["dataType"])
            return Literal(pa.scalar(_value(node["value"], kind, session.zone), kind))
        case "Alias":
            return arguments[0]
        case _:
            extra: dict[str, Any] = {}
            kind = _arrow_type(node["dataType"]) if "dataType" in node else pa.null()
            if "ordinal" in node:
                extra["ordinal"] = node["ordinal"]
            if "timeZoneId" in node:
                extra["zone"] = session.zone
            return Call(name, tuple(arguments), kind, "ansi" if session.ansi else "legacy", extra)


def _arrow_type(described: Any) -> pa.DataType:
    if isinstance(described, str) and described.startswith("interval"):
        return pa.duration("us")
    kind: pa.DataType = to_arrow_type(_parse_datatype_json_value(described), timezone="UTC")
    return kind


def _value(text: str | None, kind: pa.DataType, zone: str) -> Any:
    if text is None:
        return None
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind) or pa.types.is_duration(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text).quantize(Decimal(1).scaleb(-kind.scale))
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return text
