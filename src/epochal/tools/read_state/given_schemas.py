"""Schemas that the user gives for state whose schema the checkpoint does not record. Pure.

Spark before 3.1 wrote no schema files. The bytes of a row do not say what they are, so somebody who
knows the query has to: in Spark's DDL, such as `"user string, window struct<start timestamp, end
timestamp>"`.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.types import AtomicType, StructField, StructType

_LONG, _FLAG = AtomicType("long"), AtomicType("boolean")
FLAGGED_JOIN_FORMAT = 2
"""From this format on, a join marks the rows that have found a match."""


@dataclass(frozen=True, slots=True)
class GivenSchemas:
    """The schema of keys, of values, or of both; None where the schema file is to be used."""

    key: StructType | None = None
    value: StructType | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def counts_of_join(self) -> GivenSchemas:
        """For the store with the number of rows per key, if these are the schemas of a side."""
        return GivenSchemas(self.key, self.key and StructType((StructField("value", _LONG),)))

    def rows_of_join(self, join_format: int) -> GivenSchemas:
        """For the store with the rows, if these are the schemas of a side of a join."""
        flags = (StructField("matched", _FLAG),) if join_format >= FLAGGED_JOIN_FORMAT else ()
        return GivenSchemas(
            self.key and StructType((*self.key.fields, StructField("index", _LONG))),
            self.value and StructType((*self.value.fields, *flags)),
        )


def given_schemas(key: str | None, value: str | None) -> GivenSchemas:
    """Parse the user's DDL; StateSchemaError if it is not valid."""
    return GivenSchemas(
        None if key is None else parse_ddl(key), None if value is None else parse_ddl(value)
    )
