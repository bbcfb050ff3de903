"""The Python functions that queries of the corpus use: one of each kind.

Hints must not be postponed here: Spark finds the kind of a function by them.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)


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


def _an_hour_later(times: pd.Series) -> pd.Series:
    return times + pd.Timedelta(hours=1)


def _described(numbers: pd.Series) -> pd.DataFrame:
    """Columns in another order than the result has them."""
    return pd.DataFrame({"text": numbers.astype(str), "number": numbers})


def _shown(*values: Any) -> str:
    return repr(values)


_udf: Any = F.udf
_pandas_udf: Any = F.pandas_udf
_arrow_udf: Any = getattr(F, "arrow_udf", F.pandas_udf)  # Spark 4.0, which only plans it, has none

shout = _udf(lambda text, times=1: text and text.upper() + "!" * times, StringType())
plain_plus = _udf(lambda n: None if n is None else n + 1, IntegerType(), useArrow=False)
halved = _pandas_udf(_halved, DoubleType())
counted = _pandas_udf(_counted, LongType())
doubled = _arrow_udf(_doubled, LongType())
always_seven = _udf(lambda: 7, IntegerType())
shown = _udf(_shown, StringType())
shown_plainly = _udf(_shown, StringType(), useArrow=False)
an_hour_later = _pandas_udf(_an_hour_later, TimestampType())
described = _pandas_udf(_described, StructType().add("number", "long").add("text", "string"))


def named(frame: DataFrame) -> DataFrame:
    """A function with a broadcast variable."""
    names = frame.sparkSession.sparkContext.broadcast({"buy": "bought"})
    return frame.select("id", _udf(lambda kind: names.value.get(kind), "string")("kind").alias("n"))
