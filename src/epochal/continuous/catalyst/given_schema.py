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
    if not isinstance(schema, str):
        return _from_spark(schema)
    if "pyspark.sql" in sys.modules:
        from pyspark.errors import ParseException
        from pyspark.sql import SparkSession
        from pyspark.sql.types import StructType

        if SparkSession.getActiveSession() is not None:
            try:
                return _from_spark(StructType.fromDDL(schema))
            except ParseException as error:
                raise OptionError(f"{schema!r} is not a schema: {error}") from None
    try:
        parsed = parse_ddl(schema)  # Spark would need a session
    except StateSchemaError as error:
        raise OptionError(f"{schema!r} is not a schema: {error}") from None
    return pa.schema(
        [pa.field(own.name, arrow_type(own.data_type), own.nullable) for own in parsed.fields]
    )


def _from_spark(schema: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return converted
