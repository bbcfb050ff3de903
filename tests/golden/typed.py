"""Spark rows as JSON that loses nothing. README.md says how each type is written.

Works from the schema's own JSON rather than PySpark's type classes, because not every release has a
class for every type. Needs the process and the session to be in UTC: PySpark hands timestamps over
as local time.
"""

import base64
import datetime as dt
import json
import math
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame

Kind = str | dict[str, Any]


def schema_of(frame: DataFrame) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(frame._jdf.schema().json())
    return schema


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Collect `frame`; rows in a canonical order."""
    schema = schema_of(frame)
    distinct: dict[str, Any] = {
        "type": "struct",
        "fields": [_with_distinct_names(f) for f in schema["fields"]],
    }
    parse = frame.sparkSession._jvm.org.apache.spark.sql.types.DataType.fromJson
    columns = []
    for field, renamed in zip(schema["fields"], distinct["fields"], strict=True):
        name = expression = _quoted(field["name"])
        if renamed != field:
            sql = parse(json.dumps(renamed["type"])).sql()
            expression = f"CAST({expression} AS {sql})"
        columns.append(f"{_lower(expression, renamed['type'])} AS {name}")
    rows = [_plain(row, distinct) for row in frame.selectExpr(*columns).collect()]
    return sorted(rows, key=canonical)


def _with_distinct_names(field: dict[str, Any]) -> dict[str, Any]:
    """Two sums are two buffers called `sum`: the second becomes `sum#2`, at any depth."""
    kind = field["type"]
    if isinstance(kind, str) or kind["type"] != "struct":
        return field
    seen: Counter[str] = Counter()
    fields = []
    for each in kind["fields"]:
        seen[each["name"]] += 1
        nth = seen[each["name"]]
        name = each["name"] if nth == 1 else f"{each['name']}#{nth}"
        fields.append({**_with_distinct_names(each), "name": name})
    return {**field, "type": {**kind, "fields": fields}}


def canonical(row: Any) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _lower(expression: str, kind: Kind) -> str:
    """The SQL that turns what PySpark cannot collect (intervals) into what it can."""
    if not _has_interval(kind):
        return expression
    if isinstance(kind, str):
        return _lowered_interval(expression, kind)
    if kind["type"] == "struct":
        fields = ", ".join(
            f"'{each['name']}', {_lower(expression + '.' + _quoted(each['name']), each['type'])}"
            for each in kind["fields"]
        )
        return f"if({expression} IS NULL, NULL, named_struct({fields}))"
    if kind["type"] == "array":
        return f"transform({expression}, x -> {_lower('x', kind['elementType'])})"
    raise TypeError(f"no plain form for an interval inside {kind['type']}")


def _lowered_interval(expression: str, kind: str) -> str:
    if "month" in kind or "year" in kind:
        return f"CAST(CAST({expression} AS INTERVAL MONTH) AS INT)"
    if kind != "interval":
        return f"unix_micros(timestamp_micros(0) + {expression})"

    def part(unit: str) -> str:
        return f"CAST(extract({unit} FROM {expression}) AS DECIMAL(30, 6))"

    months = f"CAST({part('YEAR')} * 12 + {part('MONTH')} AS INT)"
    micros = (
        f"CAST(({part('HOUR')} * 3600 + {part('MINUTE')} * 60 + {part('SECOND')}) * 1000000"
        " AS BIGINT)"
    )
    return (
        f"if({expression} IS NULL, NULL, named_struct('months', {months}, "
        f"'days', CAST({part('DAY')} AS INT), 'microseconds', {micros}))"
    )


def _has_interval(kind: Kind) -> bool:
    if isinstance(kind, str):
        return kind.startswith("interval")
    match kind["type"]:
        case "struct":
            return any(_has_interval(each["type"]) for each in kind["fields"])
        case "array":
            return _has_interval(kind["elementType"])
        case "map":
            return _has_interval(kind["keyType"]) or _has_interval(kind["valueType"])
    return False


def _plain(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if isinstance(kind, str):
        return _plain_atom(value, kind)
    match kind["type"]:
        case "struct":
            return {
                each["name"]: _plain(item, each["type"])
                for each, item in zip(kind["fields"], value, strict=True)
            }
        case "array":
            return [_plain(item, kind["elementType"]) for item in value]
        case "map":
            return [
                [_plain(key, kind["keyType"]), _plain(item, kind["valueType"])]
                for key, item in value.items()
            ]
    raise TypeError(f"no plain form for {kind}")


def _plain_atom(value: Any, kind: str) -> Any:
    match kind:
        case "timestamp":
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
        case "timestamp_ntz":
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0")
        case "date":
            return dt.date.isoformat(value)
        case "float" | "double":
            if math.isnan(value):
                return "NaN"
            return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
        case "binary":
            return _base64(value)
        case "interval":
            return value.asDict()
        case "variant":
            return {"value": _base64(value.value), "metadata": _base64(value.metadata)}
    return format(value, "f") if kind.startswith("decimal") else value


def _base64(raw: bytes | bytearray) -> str:
    return base64.b64encode(bytes(raw)).decode("ascii")
