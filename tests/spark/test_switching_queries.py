"""A continuous query is cloned while it runs, compared with its clone, switched over and back."""

from __future__ import annotations

import itertools
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.waiting import eventually

import epochal
from epochal.cli.main import main
from epochal.errors import CheckpointSwitchedError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]

EXECUTE = ("--execute", "--settle-seconds", "0")


def write_words(folder: Path, name: str, words: str) -> None:
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f'{{"word":"{word}"}}\n' for word in words.split()))
    hidden.rename(folder / name)


def counts(spark: SparkSession, tmp_path: Path) -> DataFrame:
    words = spark.readStream.schema("word string").json(str(tmp_path / "in"))
    return words.groupBy("word").count()


def start(frame: DataFrame, checkpoint: Path, table: Path) -> Any:
    writer = epochal.write_stream(frame).format("delta").outputMode("update")
    writer.option("mergeKeys", "word").option("checkpointLocation", str(checkpoint))
    writer.option("parallelism", 1)  # two queries run at once
    return writer.trigger(epoch="50 milliseconds").start(str(table))


def words_in(table: Path) -> dict[str, int]:
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["word"] for row in found}) == len(found)
    return {row["word"]: row["count"] for row in found}


def run(*words: str, status: int = 0) -> None:
    assert main(words) == status, words


def test_a_running_query_is_stopped_by_a_request_and_switched_over(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, table = tmp_path / "old", tmp_path / "new", tmp_path / "table"
    write_words(tmp_path / "in", "0", "a b a")
    query = start(counts(spark, tmp_path), old, table)
    query.processAllAvailable()
    run("switch", str(old), "--to", str(old / "inside"), "--stop", *EXECUTE, status=2)
    assert query.isActive  # a target that cannot be used is no reason to stop
    run("switch", str(old), "--to", str(new), "--stop", *EXECUTE)
    assert not query.isActive
    assert query.exception() is None
    assert "The query has stopped after epoch" in capsys.readouterr().out
    write_words(tmp_path / "in", "1", "b c")
    query = start(counts(spark, tmp_path), new, table)
    query.processAllAvailable()
    assert words_in(table) == {"a": 2, "b": 2, "c": 1}

    run("stop", str(new), "--json")
    assert not query.isActive
    assert json.loads(capsys.readouterr().out)["ending"] == "stopped"
    run("checkpoint", "verify", str(new), "--deep")  # Spark could go on: all state is published
    run("stop", str(new))
    assert "No query runs on" in capsys.readouterr().out
    assert not list((new / ".epochal" / "stop").glob("*"))


def test_the_way_back_continues_where_the_switch_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, table = tmp_path / "old", tmp_path / "new", tmp_path / "table"
    write_words(tmp_path / "in", "0", "a b a")
    query = start(counts(spark, tmp_path), old, table)
    query.processAllAvailable()
    query.stop()
    run("switch", str(old), "--to", str(new), *EXECUTE)
    write_words(tmp_path / "in", "1", "b c")
    query = start(counts(spark, tmp_path), new, table)
    query.processAllAvailable()
    query.stop()
    assert words_in(table) == {"a": 2, "b": 2, "c": 1}

    back = ("switch", str(old), "--back", str(new), "--sink", str(table), *EXECUTE)
    capsys.readouterr()
    run(*back, status=2)  # the table has rows of the new query
    restore = re.search(r"restore it to version (\d+) of", capsys.readouterr().err)
    assert restore is not None
    DeltaTable(table).restore(int(restore[1]))
    assert words_in(table) == {"a": 2, "b": 1}
    run(*back, "--output-restored")
    with pytest.raises(CheckpointSwitchedError):
        start(counts(spark, tmp_path), new, table)
    query = start(counts(spark, tmp_path), old, table)
    query.processAllAvailable()
    query.stop()
    assert words_in(table) == {"a": 2, "b": 2, "c": 1}


def newest_commit(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))


def test_clones_of_a_busy_query_are_whole(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, done = tmp_path / "old", threading.Event()
    write_words(tmp_path / "in", "first", "a b a")
    query = start(counts(spark, tmp_path), old, tmp_path / "table")
    query.processAllAvailable()

    def write() -> None:
        for number in itertools.count():
            if done.wait(0.02):
                return
            write_words(tmp_path / "in", f"{number:04}", f"a w{number % 7} w{number % 11}")

    writer = threading.Thread(target=write)
    writer.start()
    clones = [tmp_path / f"clone-{number}" for number in range(5)]
    epochs = [-1]
    try:
        for clone in clones:
            eventually(lambda: newest_commit(old) > epochs[-1], "the query goes on")
            run("checkpoint", "clone", str(old), str(clone), "--no-file-sink", "--execute")
            epochs.append(newest_commit(clone))
    finally:
        done.set()
        writer.join()
    query.processAllAvailable()
    query.stop()
    for clone in clones:
        run("checkpoint", "verify", str(clone), "--deep")
    second = start(counts(spark, tmp_path), clones[-1], tmp_path / "shadow")
    second.processAllAvailable()
    second.stop()
    outputs = ("--output-a", str(tmp_path / "table"), "--output-b", str(tmp_path / "shadow"))
    capsys.readouterr()
    run("shadow", str(old), str(clones[-1]), *outputs, "--key", "word", "--json")
    assert json.loads(capsys.readouterr().out)["verdict"] == "same"
    whole = words_in(tmp_path / "table")
    assert {word: whole[word] for word in words_in(tmp_path / "shadow")} == words_in(
        tmp_path / "shadow"
    )
