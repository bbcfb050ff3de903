"""SQL text and PySpark columns to expression trees, by asking Spark.

An empty DataFrame with the stream's schema resolves whatever Spark would: names, types, implicit
casts, functions. Its analysed plan, as JSON, is then read into `continuous.operators.expressions`.
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

from epochal.continuous.operators.stateless.expressions import (
    Call,
    Column,
    Expr,
    Literal,
    check_supported,
)
from epochal.errors import OptionError

Node: TypeAlias = dict[str, Any]

_NESTED = {"Between": ("input", "lower", "upper")}
"""Expressions whose arguments are fields of the node; what follows it is how Spark runs them."""


@dataclass(frozen=True, slots=True)
class _Session:
    """What of the session and the stream a tree's meaning depends on."""

    columns: tuple[str, ...]
    ansi: bool
    zone: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """Columns, named and typed."""

    columns: tuple[Expr, ...]
    schema: pa.Schema


def resolve(spark: SparkSession, schema: pa.Schema, columns: Sequence[Any]) -> Resolved:
    """What `columns` (SQL text or PySpark columns) mean over a stream of this schema."""
    for column in columns:
        if isinstance(column, str) and re.search(r"\btry_\w+\s*\(", column, re.IGNORECASE):
            raise OptionError(f"{column!r}: the try_ functions are not supported here.")
    frame = spark.createDataFrame([], spark_schema(schema))
    try:
        found = frame.selectExpr(*columns) if _texts(columns) else frame.select(*columns)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"{', '.join(map(str, columns))}: {error}") from None
    plan = json.loads(found._jdf.queryExecution().analyzed().toJSON())
    if not plan[0]["class"].endswith("logical.Project"):
        raise OptionError(
            f"{', '.join(map(str, columns))}: only expressions over a row's own columns are "
            f"possible here; aggregate with group_by."
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
    """An Arrow schema as Spark's."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType | str | pa.Schema) -> pa.Schema:
    """A schema given as DDL, as Spark's type or as Arrow's, as Arrow's."""
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
        raise OptionError("Give all columns as text, or all as PySpark columns.")
    return texts == {True}


def _read(nodes: list[Node], session: _Session) -> Expr:
    expr, used = _read_at(nodes, 0, session)
    assert used == len(nodes)
    return expr


def _read_at(nodes: list[Node], place: int, session: _Session) -> tuple[Expr, int]:
    """The tree that starts at `place` of a list in preorder, and where the next one starts."""
    node = nodes[place]
    name = node["class"].rpartition(".")[2]
    arguments: list[Expr] = []
    place += 1
    for _ in range(node["num-children"]):
        argument, place = _read_at(nodes, place, session)
        arguments.append(argument)
    if name in _NESTED:
        arguments = [_read(node[each], session) for each in _NESTED[name]]
    return _expr(name, node, arguments, session), place


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
            if "dataType" in node:
                extra["type"] = _arrow_type(node["dataType"])
            if "ordinal" in node:
                extra["ordinal"] = node["ordinal"]
            if "timeZoneId" in node:
                extra["zone"] = session.zone
            return Call(name, tuple(arguments), session.ansi, extra)


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
