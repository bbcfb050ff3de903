"""Advice that was obeyed to the letter and left a broken query: each case again, with Spark.

One child resumes all cases. A case must end with the output of the run that nobody disturbed.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.random_damage import AT_ONCE, Case, digest, epochal, findings, obey
from tests.spark.releases import RELEASES, run_child
from tests.spark.test_random_damage import counted

from epochal.dashboard.health import HealthMonitor
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock

Prepare = Callable[[Unpacked], None]


def newest(place: Unpacked) -> int:
    return max(int(path.name) for path in place.checkpoint.glob("offsets/[0-9]*"))


def lose(*paths: Path) -> None:
    for path in paths:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def obeyed(place: Unpacked) -> list[str]:
    """Do what `verify` prints until it has nothing to say; the commands."""
    case = Case(0, place)
    obey(case, page=False)
    assert case.outcome == "healthy", str(case)
    return [step.partition(" ")[0] for step in case.steps]


def the_rewind_of_the_dashboard(place: Unpacked) -> None:
    """It left the sink out: exit status 0, `verify` was content, and two windows were missing."""
    lose(*place.checkpoint.glob(f"state/0/1/{newest(place) + 1}.delta"))
    health = HealthMonitor(LocalFiles(place.checkpoint), ManualClock()).check().as_json()
    [command] = {command for each in health["findings"] for command in each["commands"]}
    before = digest(place)
    assert epochal(*shlex.split(command)[1:])[0] == 2  # OUTPUT is for the user to fill in
    filled_in = command.replace("OUTPUT", shlex.quote(str(place.output)))
    assert digest(place) == before
    assert epochal(*shlex.split(filled_in)[1:], "--settle-seconds", "0")[0] == 0


def switched_to_a_clone(place: Unpacked) -> None:
    """The clone had one batch more: the output could not be read any more."""
    old, new, sink = place.base / "old", str(place.checkpoint), ("--sink", str(place.output))
    place.checkpoint.rename(old)
    assert epochal("checkpoint", "clone", str(old), new, "--no-file-sink", "--execute")[0] == 0
    edit = ("--partitions", "3", "--no-file-sink", *AT_ONCE)
    assert epochal("state", "repartition", new, *edit)[0] == 0
    switch = ("switch", str(old), "--to", new)
    status, told = epochal(*switch, *AT_ONCE)
    assert (status, "--sink, or --no-file-sink" in told) == (2, True)
    assert epochal(*switch, "--no-file-sink", *AT_ONCE)[0] == 0  # which is not true
    status, told = epochal("checkpoint", "verify", new, *sink)
    assert (status, "FILE_LOG_HOLE" in told) == (1, True)
    assert obeyed(place) == ["repair"]


def a_hole_in_the_log_of_the_sink(place: Unpacked) -> None:
    """`verify`, `repair` and a rewind without the checkpoint's name led in a circle."""
    lose(place.output / "_spark_metadata" / str(newest(place)))
    assert obeyed(place) == ["rewind"]


def the_newest_offsets_are_lost(place: Unpacked) -> None:
    """A repair ended with status 0, and Spark failed for want of the state of the next batch."""
    lose(place.checkpoint / "offsets" / str(newest(place)))
    assert obeyed(place) == ["rewind"]


def a_torn_commit(place: Unpacked) -> None:
    """It was a warning about a checksum: Spark reads the watermark 0 from it."""
    (place.checkpoint / "commits" / str(newest(place))).write_bytes(b"v1")
    status, told = epochal("checkpoint", "verify", str(place.checkpoint), "--no-file-sink")
    assert (status, "error: LOG_ENTRY_UNREADABLE" in told) == (1, True)
    assert obeyed(place) == ["repair"]


def a_repair_after_which_nothing_needs_to_be_done(place: Unpacked) -> None:
    """It said so, and ended with status 1."""
    (place.checkpoint / "offsets/3").write_bytes(b"")
    lose(place.checkpoint / "metadata")
    repair = ("checkpoint", "repair", str(place.checkpoint), "--sink", str(place.output))
    status, told = epochal(*repair, "--query-id", place.facts["query_id"], *AT_ONCE)
    assert (status, "left:" in told) == (0, False)


PREPARED: tuple[Prepare, ...] = (
    the_rewind_of_the_dashboard,
    switched_to_a_clone,
    a_hole_in_the_log_of_the_sink,
    the_newest_offsets_are_lost,
    a_torn_commit,
    a_repair_after_which_nothing_needs_to_be_done,
)


def a_new_checkpoint_over_an_old_output(place: Unpacked) -> None:
    """The input that was read is removed, as it is where it lands for some days only."""
    shutil.rmtree(place.checkpoint)
    for path in place.input.rglob("*.json"):
        path.unlink()


def started_where_the_query_was_switched_away(place: Unpacked) -> None:
    words = ("switch", str(place.checkpoint), "--to", str(place.base / "new"), *AT_ONCE)
    assert epochal(*words)[0] == 0


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Unpacked, Any]]:
    base = tmp_path_factory.mktemp("obeyed")
    places: dict[str, Unpacked] = {}
    for each in (
        *PREPARED,
        a_new_checkpoint_over_an_old_output,
        started_where_the_query_was_switched_away,
    ):
        # Spark fails on the state of a batch that it skips, so only a stateless query loses rows.
        case = "file_sink" if each is a_new_checkpoint_over_an_old_output else "file_sink_counts"
        golden = Golden(RELEASES[-1], case)
        place = places[each.__name__] = unpack(golden, base / each.__name__, relocate=True)
        each(place)
    jobs = [
        {
            "case": each.golden.case,
            "base": str(each.base.resolve()),
            "answer": f"{base}/{name}.json",
        }
        for name, each in places.items()
    ]
    run_child(RELEASES[-1], "resume", jobs, base / "spark")
    answers = [json.loads(Path(job["answer"]).read_text(encoding="utf-8")) for job in jobs]
    return dict(zip(places, zip(places.values(), answers, strict=True), strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("prepare", PREPARED, ids=lambda each: each.__name__)
def test_the_query_ends_with_the_output_of_an_undisturbed_run(
    prepare: Prepare, resumed: dict[str, tuple[Unpacked, Any]]
) -> None:
    place, answer = resumed[prepare.__name__]
    assert "failure" not in answer, answer
    assert counted(answer["output"]) == counted(place.facts["undisturbed"]["output"])
    assert findings(Case(0, place), page=False) == []


def test_rows_that_spark_skips_over_an_old_output_are_found(
    resumed: dict[str, tuple[Unpacked, Any]],
) -> None:
    place, answer = resumed[a_new_checkpoint_over_an_old_output.__name__]
    assert "failure" not in answer  # silently
    written, expected = (
        counted(answer["output"]),
        counted(place.facts["undisturbed"]["output"]),
    )
    assert (expected - written).total() > 0
    words = ("checkpoint", "verify", str(place.checkpoint), "--sink", str(place.output))
    status, told = epochal(*words)
    assert (status, told.count("error: SINK_OF_ANOTHER_QUERY")) == (1, 1)
    assert "remedy: Epochal cannot repair this: the skipped rows are nowhere." in told


def test_spark_says_where_a_query_went_that_was_switched_away(
    resumed: dict[str, tuple[Unpacked, Any]],
) -> None:
    place, answer = resumed[started_where_the_query_was_switched_away.__name__]
    assert "The query was switched after epoch" in answer["failure"]
    assert str(place.base / "new") in answer["failure"]
