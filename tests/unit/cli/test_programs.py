"""Commands that run programs: what they report before they start any, and what a check runs."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql.streaming import StreamingQuery as SparksQuery

from epochal.cli.main import main
from epochal.cli.run_program import MOST_LOOKS, EndOfProgram, NotStarted
from epochal.continuous.api.query_handle import StreamingQuery as OurQuery


def test_a_missing_program_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.endswith(
        "none.py is not a file. Name a Python program that starts queries.\n"
    )


@pytest.mark.parametrize("setting", ["spark.ui.enabled", "=false"])
def test_a_setting_without_a_name_or_a_value_is_rejected(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    assert main(["run", "--conf", setting, str(program)]) == 2
    assert "--conf takes KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [SparksQuery, OurQuery])
def test_it_can_be_asked_whatever_a_query_can_be_asked(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - set(dir(NotStarted("a name"))) == set()


@pytest.mark.parametrize(
    "loop",
    [
        "while query.last_progress is None: pass",
        "while query.lastProgress is None: query.awaitTermination(1)",
        "while not query.recent_progress: pass",
        "while query.exception() is None: query.process_all_available()",
        "while not query.status['isTriggerActive']: pass",
    ],
)
def test_a_program_that_waits_for_rows_is_ended(loop: str) -> None:
    guarded = f"try:\n    {loop}\nexcept Exception:\n    pass"
    with pytest.raises(EndOfProgram):
        exec(guarded, {"query": NotStarted("")})


def test_a_program_may_look_at_a_query_that_has_ended() -> None:
    query = NotStarted("sums")
    for _ in range(MOST_LOOKS):
        assert query.await_termination()
    query.stop()
    assert query.name == "sums"


@pytest.mark.parametrize(
    ("missing", "words", "named", "extras"),
    [
        ({"grpc"}, [], "grpc, which is", "spark,pubsub"),
        ({"pyspark", "grpc"}, [], "pyspark and grpc, which are", "spark,pubsub"),
        ({"confluent_kafka", "grpc"}, ["--kafka"], "confluent_kafka, which is", "spark,kafka"),
        ({"deltalake"}, ["--table", "delta"], "deltalake, which is", "spark,pubsub,delta"),
    ],
)
def test_names_missing_packages_and_what_installs_them_before_it_starts_spark(
    missing: set[str],
    words: list[str],
    named: str,
    extras: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in missing else found(name)

    monkeypatch.setattr("epochal.cli.demo.find_spec", find_spec)
    monkeypatch.setitem(sys.modules, "epochal.demo.demo_run", None)  # starting would fail
    directory = tmp_path / "orders"
    assert main(["demo", "--directory", str(directory), *words]) == 2
    printed, said = capsys.readouterr(), f"The demo needs {named} not installed."
    told = f"epochal: {said} Run `pip install 'epochal[{extras}]'`."
    assert (printed.out, " ".join(printed.err.split())) == ("", told)
    assert not directory.exists()
