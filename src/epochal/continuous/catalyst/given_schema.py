"""Reads a schema that a user gives: DDL text, Spark's or Arrow's.

Note: PySpark is imported only if it is needed. A test of a stream without SQL then runs without it.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

from epochal.errors import OptionError, StateSchemaError
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.ddl import parse_ddl


def arrow_schema(schema: Any) -> pa.Schema:
    """Convert a schema (DDL text, Spark's `StructType` or Arrow's) to Arrow's."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return _from_spark_ddl(schema) if _has_session() else _parsed(schema)
    return _from_spark(schema)


def _has_session() -> bool:
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _from_spark(schema: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def _from_spark_ddl(text: str) -> pa.Schema:
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        return _from_spark(StructType.fromDDL(text))
    except ParseException as error:
        raise OptionError(f"{text!r} is not a schema: {error}") from None


def _parsed(text: str) -> pa.Schema:
    """Parse DDL without Spark, which needs a session for that."""
    try:
        found = parse_ddl(text)
    except StateSchemaError as error:
        raise OptionError(f"{text!r} is not a schema: {error}") from None
    return pa.schema(
        [pa.field(each.name, arrow_type(each.data_type), each.nullable) for each in found.fields]
    )
