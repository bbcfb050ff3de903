"""Count the words of text files in an Iceberg table: a word's newest count replaces the last one.

pip install 'epochal[spark,iceberg]'
python examples/iceberg_table.py /tmp/words
"""

import sys
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import epochal

home = Path(sys.argv[1]).absolute()
(home / "warehouse").mkdir(parents=True, exist_ok=True)
(home / "input").mkdir(exist_ok=True)
(home / "input" / "1.txt").write_text("to be or not to be\n")

spark = SparkSession.builder.master("local[2]").getOrCreate()
catalog = {
    "type": "sql",
    "uri": f"sqlite:///{home}/catalog.db",
    "warehouse": f"file://{home}/warehouse",
}
lines = spark.readStream.format("text").load(str(home / "input"))
words = lines.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
query = (
    epochal.write_stream(words)
    .format("iceberg")
    .outputMode("update")
    .options(**{f"catalog.{key}": value for key, value in catalog.items()})
    .options(mergeKeys="word", expireSnapshotsKeep=50, checkpointLocation=home / "checkpoint")
    .trigger(availableNow=True)
    .start("demo.words")
)
query.awaitTermination()

table = load_catalog("default", **catalog).load_table("demo.words")
for row in sorted(table.scan().to_arrow().to_pylist(), key=lambda row: str(row["word"])):
    print(f"{row['word']:5} {row['count']}")
