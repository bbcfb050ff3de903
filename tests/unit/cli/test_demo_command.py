"""`epochal demo` says what is not installed before it starts anything."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from epochal.cli.main import main


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
