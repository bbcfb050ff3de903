"""Decodes JSON payloads with Spark's own parser: a value means what it means to `from_json`.

Note: inside JSON, binary is base64, and a timestamp without a zone is in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from epochal.connectors.payloads.payload_columns import unsupported_type
from epochal.evaluator.evaluator_client import CLIENT, EvaluatorStep, Session
from epochal.record_batches import batch_of


class JsonDecoder:
    """Decodes objects of one struct type."""

    def __init__(self, kind: pa.StructType) -> None:
        self.type = kind
        try:
            struct = from_arrow_schema(pa.schema(list(kind)), prefer_timestamp_ntz=True)
        except PySparkException as error:
            raise unsupported_type("payload", f"{kind} ({error})") from None
        result = StructType().add("parsed", struct).add("parse_error", StringType())
        self._step = EvaluatorStep("json", Session(""), result.json(), ())

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        rows = batch_of([pa.array(payloads, pa.binary())], ["data"], len(payloads))
        values, errors = CLIENT.run_rows(self._step, rows)
        return values.cast(self.type), errors.to_pylist()
