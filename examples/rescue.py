"""Rescue a broken checkpoint: a real query, real damage, and no order lost or duplicated.

A PySpark query removes duplicate orders and writes the rest to Parquet. Between two runs its
checkpoint is damaged as by a power cut and a hasty clean-up. Spark refuses to start.
`epochal checkpoint` explains why and repairs it, and the query continues where it stopped.

    python examples/rescue.py [--directory DIR]      DIR must not exist yet; it is kept
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

ORDERS_PER_FILE = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, help="the working directory; must not exist yet")
    given = parser.parse_args().directory
    home = given or Path(tempfile.mkdtemp(prefix="epochal-demo-")) / "demo"
    home.mkdir(parents=True)
    checkpoint = home / "checkpoint"

    say("1. A PySpark query reads orders, drops duplicates and writes Parquet.")
    spark = session()
    write_orders(home, range(12))
    run_query(spark, home)
    print(f"   {count_output(spark, home)} orders written; the checkpoint is {checkpoint}")

    say("2. Look into the checkpoint, without a JVM:")
    epochal("checkpoint", "show", checkpoint, "--limit", "4")
    epochal("checkpoint", "verify", checkpoint, "--sink", home / "unique")

    say("3. A power cut damages the newest files, and a hasty clean-up leaves one crc behind.")
    break_checkpoint(checkpoint)
    write_orders(home, range(12, 18))
    print(f"   Spark's answer to the restart:\n   {spark_refuses(spark, home)}")

    say("4. What is wrong, and what a repair would do. Nothing is written without --execute.")
    epochal("checkpoint", "verify", checkpoint, "--sink", home / "unique", expect=1)
    epochal("checkpoint", "repair", checkpoint, "--sink", home / "unique")

    say("5. Repair it, with a backup and a journal: `epochal checkpoint undo` would revert it.")
    epochal("checkpoint", "repair", checkpoint, "--sink", home / "unique", "--execute")
    epochal("checkpoint", "verify", checkpoint, "--sink", home / "unique")

    say("6. The same query resumes.")
    run_query(spark, home)
    lost, repeated, total = balance(spark, home)
    spark.stop()
    print(f"   orders sent {total}, lost {lost}, duplicated {repeated}")
    print("\nExplore:")
    print(f"  epochal checkpoint show {checkpoint}\n  epochal state read {checkpoint}")
    return 0 if lost == repeated == 0 else 1


def session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("rescue")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "3")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "1s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write_orders(home: Path, files: range) -> None:
    """One file per batch; every order also turns up a second time, in a later file."""
    (home / "orders").mkdir(exist_ok=True)
    for number in files:
        first = number * ORDERS_PER_FILE
        ids = [*range(first, first + ORDERS_PER_FILE), *range(max(0, first - 50), first)]
        lines = [json.dumps({"id": n, "customer": f"c{n % 17}", "amount": n % 100}) for n in ids]
        temporary = home / f".{number}"
        temporary.write_text("\n".join(lines))
        temporary.rename(home / "orders" / f"{number:04}.json")


def run_query(spark: SparkSession, home: Path) -> None:
    orders = (
        spark.readStream.schema("id long, customer string, amount long")
        .option("maxFilesPerTrigger", "1")
        .json(str(home / "orders"))
    )
    query = (
        orders.dropDuplicates(["id"])
        .writeStream.format("parquet")
        .option("path", str(home / "unique"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def break_checkpoint(checkpoint: Path) -> None:
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(newest)).write_bytes(b"")
    next_crc = checkpoint / "offsets" / f".{newest + 1}.crc"
    next_crc.write_bytes(b"crc\0\0\0\2\0")
    snapshots = sorted((checkpoint / "state").rglob("*.snapshot"), key=lambda path: int(path.stem))
    damaged = snapshots[-1]
    os.truncate(damaged, damaged.stat().st_size // 2)
    print(
        f"   commits/{newest} is empty, {next_crc.name} has no file, half of {damaged.name} is gone"
    )


def spark_refuses(spark: SparkSession, home: Path) -> str:
    try:
        run_query(spark, home)
    except StreamingQueryException as error:
        _, _, cause = str(error).partition("terminated with exception: ")
        return " ".join(cause.split())[:160]
    raise SystemExit("Spark started on the broken checkpoint, although it should have refused")


def count_output(spark: SparkSession, home: Path) -> int:
    return spark.read.parquet(str(home / "unique")).count()


def balance(spark: SparkSession, home: Path) -> tuple[int, int, int]:
    """Return the numbers of orders lost, duplicated and sent."""
    sent = {
        json.loads(line)["id"]
        for path in (home / "orders").glob("*.json")
        for line in path.read_text().splitlines()
    }
    written = [row.id for row in spark.read.parquet(str(home / "unique")).select("id").collect()]
    return len(sent - set(written)), len(written) - len(set(written)), len(sent)


def epochal(*words: str | Path, expect: int = 0) -> None:
    """Run the command as a user would, and stop if its exit status is not the expected one."""
    command = ["epochal", *map(str, words)]
    print(f"\n$ {' '.join(command)}", flush=True)
    run = subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]])
    if run.returncode != expect:
        raise SystemExit(f"{' '.join(command)} exited with {run.returncode}, not {expect}")


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
