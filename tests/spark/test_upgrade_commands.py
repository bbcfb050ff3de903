"""The commands that a check prints are run, and then the changed query gives the right rows."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.golden.planted import in_an_epoch_file
from tests.spark.upgrade_pairs import NAMED, ROCKS, columns_of, joined, marked, pairs_of, sums
from tests.spark.upgrade_processors import added
from tests.spark.upgrade_runs import Inputs, Rows, attempt, left_by, ordered, session

import epochal
from epochal.cli.main import main
from epochal.continuous.api.stream import Stream
from epochal.tools.upgrade.check_query import check
from epochal.tools.upgrade.upgrade_findings import AfterCommand, Outcome, Safe

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_left_running")]

PLACE = "it's a checkpoint"
"""A name that a shell would not take as it is."""
NO_FILE_SINK = ("--sink OUTPUT", "--no-file-sink")
"""What the report tells users to replace."""
SUMS = [("q", 8), ("x", 11), ("y", 5), ("z", 10)]
Make = Callable[[Inputs], "DataFrame | Stream"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change, the kinds of commands that it needs, and the rows of the changed query."""

    name: str
    before: Make
    after: Make
    commands: list[str]
    rows: Rows
    mode: str = "update"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Of the session after the change."""
    finally_: Make | None = None
    """The query as the report asks for it, if it needs more than the command."""
    ours: bool = False
    verdict: type = AfterCommand
    before_conf: Mapping[str, str] = field(default_factory=dict)
    """Of the session before it."""


def matched(s: Inputs, *, left: str = "v", right: str = "k") -> DataFrame:
    """A join on `k`, in which a column of each side has another name."""
    one, other = s.a.selectExpr("k", f"v AS {left}"), s.b.selectExpr(f"k AS {right}", "w")
    return (
        one.alias("one")
        .join(other.alias("other"), F.expr(f"one.k = other.{right}"))
        .select(F.col("one.k"), left, "w")
    )


def pairs_on_k(*left: str) -> Rows:
    """The new pairs of a join on `k` that keeps columns of the left side, and `w` of the right.

    A row of the first file has null in `d` because it was stored without it.
    """
    names = ("k", *left, "w")
    old, new = columns_of(0, *names), columns_of(1, *names)
    at = names.index("d") if "d" in names else None
    stored = [tuple(None if n == at else each for n, each in enumerate(row)) for row in old]
    right = [(row[0], row[-1]) for row in (*old, *new)]
    added = [(*row[:-1], w) for row in new for k, w in right if k == row[0]]
    return added + [(*row[:-1], w) for row in stored for k, w in right[len(old) :] if k == row[0]]


CHANGES = [
    Change(
        "the name of a key",
        lambda s: sums(s.a, "k"),
        lambda s: sums(s.a.toDF("my key", *"yvwdt"), "my key"),
        ["state evolve"],
        SUMS,
    ),
    Change(
        "the name of a key of a deduplication",
        lambda s: s.a.select("k").dropDuplicates(),
        lambda s: s.a.selectExpr("k AS j").dropDuplicates(),
        ["state evolve"],
        [("q",)],
        "append",
    ),
    Change(
        "one more count",
        lambda s: sums(s.a, "k"),
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")),
        ["state evolve"],
        [("q", 8, 1), ("x", 11, 2), ("y", 5, 1), ("z", 10, 1)],
    ),
    Change(
        "wider values",
        lambda s: s.a.groupBy("k").agg(F.max("v"), F.min("v")),
        lambda s: s.a.groupBy("k").agg(F.max(F.expr("bigint(v)")), F.min(F.expr("bigint(v)"))),
        ["state evolve"],
        [("q", 8, 8), ("x", 5, 1), ("y", 3, 2), ("z", 9, 1)],
    ),
    Change(
        "one more column of a join",
        lambda s: joined(s.a, s.b),
        lambda s: pairs_of(s, ["k", "v", "d"], ["w"]),
        ["state evolve"],
        pairs_on_k("v", "d"),
        "append",
    ),
    Change(
        "the names of columns of a join",
        lambda s: matched(s),
        lambda s: matched(s, left="x", right="j"),
        ["state evolve", "state evolve"],
        pairs_on_k("v"),
        "append",
    ),
    Change(
        "a timeout of groups",
        lambda s: added(s.a),
        lambda s: added(marked(s.a, "2 seconds"), timeout="EventTimeTimeout"),
        ["state evolve"],
        SUMS,
    ),
    Change(
        "names for sources",
        lambda s: s.a.select("k"),
        lambda s: s.read("a", "orders").select("k"),
        ["checkpoint migrate-offsets"],
        columns_of(1, "k"),
        "append",
        NAMED,
    ),
    Change(
        "one more source",
        lambda s: s.a.select("k"),
        lambda s: s.a.select("k").unionAll(s.b.select("k")),
        ["checkpoint migrate-offsets"],
        columns_of(0, "k") + columns_of(1, "k") * 2,
        "append",
        NAMED,
        lambda s: s.read("b", "new").select("k").unionAll(s.read("a", "source0").select("k")),
    ),
    Change(
        "one source less",
        lambda s: s.a.select("k").unionAll(s.b.select("k")),
        lambda s: s.b.select("k"),
        ["checkpoint migrate-offsets"],
        columns_of(1, "k"),
        "append",
        NAMED,
        lambda s: s.read("b", "source1").select("k"),
    ),
    Change(
        "more partitions",
        lambda s: sums(s.a, "k"),
        lambda s: sums(s.a, "k"),
        ["state repartition"],
        SUMS,
        conf={"spark.sql.shuffle.partitions": "5"},
        verdict=Safe,
    ),
    Change(
        "another provider",
        lambda s: sums(s.a, "k"),
        lambda s: sums(s.a, "k"),
        ["state convert"],
        SUMS,
        conf=ROCKS,
        verdict=Safe,
    ),
    Change(
        "one more count in RocksDB",
        lambda s: sums(s.a, "k"),
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")),
        ["state evolve"],
        [("q", 8, 1), ("x", 11, 2), ("y", 5, 1), ("z", 10, 1)],
        conf=ROCKS,
        before_conf=ROCKS,
    ),
    Change(
        "one more count in a DataFrame of our engine",
        lambda s: sums(s.a, "k"),
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")),
        ["state evolve"],
        [("q", 8, 1), ("x", 11, 2), ("y", 5, 1), ("z", 10, 1)],
        ours=True,
    ),
]


def verdicts(
    made: DataFrame | Stream, mode: str, at: Path, *, ours: bool
) -> list[AfterCommand | Safe]:
    """What a check says; it must have nothing but commands to say."""
    writer = epochal.write_stream(made) if ours and isinstance(made, DataFrame) else made
    found = check(writer, str(at), output_mode=mode).differences
    return [each.verdict for each in found if isinstance(each.verdict, AfterCommand | Safe)]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_after_the_printed_commands_the_changed_query_gives_the_right_rows(
    change: Change, tmp_path: Path
) -> None:
    checkpoint = left_by(
        change.before, tmp_path, PLACE, mode=change.mode, ours=change.ours, conf=change.before_conf
    )
    inputs = Inputs(session(change.conf), tmp_path)
    made = change.after(inputs if change.finally_ is None else Inputs(session({}), tmp_path))
    found = verdicts(made, change.mode, checkpoint, ours=change.ours)
    asked = [each.command for each in found if isinstance(each, change.verdict)]
    kinds = []
    for command in asked:
        program, *words = shlex.split(command.replace(*NO_FILE_SINK))
        assert (program, main([*words, "--settle-seconds", "0"])) == ("epochal", 0)
        kinds.append(" ".join(words[:2]))
    assert kinds == change.commands

    last = made if change.finally_ is None else change.finally_(inputs)
    left = verdicts(last, change.mode, checkpoint, ours=change.ours)
    assert not any(isinstance(each, AfterCommand) or each.command for each in left), left
    rows, refusal = attempt(last, change.mode, checkpoint, ours=change.ours)
    assert refusal is None
    assert rows == ordered(change.rows)


def test_a_printed_command_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    checkpoint = left_by(lambda s: sums(s.a, "k"), tmp_path, PLACE, mode="update", ours=False)
    changed = sums(Inputs(session({}), tmp_path).a.toDF("my $key", *"yvwdt"), "my $key")
    (found,) = verdicts(changed, "update", checkpoint, ours=False)
    program = shlex.join((sys.executable, "-m", "epochal.cli.main"))
    pasted = found.command.replace("epochal", program, 1).replace(*NO_FILE_SINK)
    subprocess.run(f"{pasted} --settle-seconds 0", shell=True, check=True, timeout=120)
    assert check(changed, str(checkpoint), output_mode="update").outcome is Outcome.SAFE


def test_spark_starts_on_the_state_of_a_killed_query_after_it_was_published(tmp_path: Path) -> None:
    checkpoint = left_by(lambda s: sums(s.a, "k"), tmp_path, PLACE, mode="update", ours=False)
    in_an_epoch_file(checkpoint)
    made = sums(Inputs(session({}), tmp_path).a, "k")
    report = check(made, str(checkpoint), output_mode="update")
    assert (report.outcome, report.starts) == (Outcome.NEEDS_ACTION, False)
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed)
    refusal = attempt(made, "update", killed)[1]
    assert refusal is not None
    assert report.differences[0].refusal in refusal

    (found,) = verdicts(made, "update", checkpoint, ours=False)
    program, *words = shlex.split(found.command)
    assert (program, main([*words, "--settle-seconds", "0"])) == ("epochal", 0)
    assert check(made, str(checkpoint), output_mode="update").outcome is Outcome.SAFE
    assert attempt(made, "update", checkpoint) == (ordered(SUMS), None)
