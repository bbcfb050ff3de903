"""Runs queries with Avro in Spark and in Epochal, with Spark's own package for it.

    python -m tests.frames.avro_child ANSWER JAR MASTER KEY=VALUE ...

The answer has the rows by query and engine, and the error if the package is not on an executor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from tests.frames.user_classes_child import rows_of, session_of

SCHEMA = (
    '{"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}, '
    '{"name": "word", "type": ["null", "string"]}]}'
)
READ = f"from_avro(payload, '{SCHEMA}', map('mode', 'PERMISSIVE'))"
WRITTEN = "to_avro(struct(id, concat('w', id) AS word))"


def main(answer: str, _: str, master: str, *settings: str) -> None:
    spark, folder = session_of(master, *settings), Path(answer).parent
    rows = spark.range(40).selectExpr("id", "if(id % 7 = 0, null, id * id) AS square").coalesce(1)
    rows.write.json(str(folder / "json"))
    rows.write.format("avro").save(str(folder / "avro"))
    written = spark.readStream.schema("id long").json(str(folder / "json"))
    written = written.selectExpr("id", f"{WRITTEN} AS payload")
    files = spark.readStream.format("avro").schema("id long, square long")
    frames = {
        "files": files.load(str(folder / "avro")),
        "written": written.selectExpr("id", "hex(payload) AS bytes"),
        "read": written.selectExpr("id", f"{READ} AS row").selectExpr("id", "row.word"),
        "broken": written.selectExpr("id", f"{READ.replace('payload', 'substr(payload, 3)')} AS r"),
    }
    found: dict[str, Any] = {
        name: {
            engine: rows_of(frame, engine, folder / f"{name}-{engine}")
            for engine in ("spark", "epochal")
        }
        for name, frame in frames.items()
    }
    for copied in Path(SparkFiles.getRootDirectory()).glob("*.jar"):
        copied.unlink()
    try:
        # Another memory is another evaluator: the one that runs has the classes.
        rows_of(frames["written"], "epochal", folder / "missing", evaluatorMemory="288m")
    except Exception as error:  # noqa: BLE001  its text is the answer
        found["missing"] = str(error)
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
