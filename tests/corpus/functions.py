"""The Python functions that queries of the corpus use: one of each kind.

Hints must not be postponed here: Spark finds the kind of a function by them.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType


def next_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow."""
    for batch in batches:
        ids: Any = batch.column("id")
        yield pa.RecordBatch.from_arrays([pc.add(ids, 1)], ["next"])


def doubled_scores(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """For mapInPandas."""
    for frame in frames:
        yield pd.DataFrame({"id": frame["id"], "double": frame["score"] * 2})


def _halved(values: pd.Series) -> pd.Series:
    return values / 2


def _counted(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for part in parts:
        yield part + 100


def _doubled(values: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    return pc.multiply(values, 2)


_udf: Any = F.udf
_pandas_udf: Any = F.pandas_udf
_arrow_udf: Any = F.arrow_udf

shout = _udf(lambda text, times=1: text and text.upper() + "!" * times, StringType())
plain_plus = _udf(lambda n: None if n is None else n + 1, IntegerType(), useArrow=False)
halved = _pandas_udf(_halved, DoubleType())
counted = _pandas_udf(_counted, LongType())
doubled = _arrow_udf(_doubled, LongType())
always_seven = _udf(lambda: 7, IntegerType())
