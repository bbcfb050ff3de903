"""The examples of docs/extending.md do what the page says. `test_sinks` runs the one of a sink."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.extending import example, lines_of
from tests.contract.sinks import QUERY_ID, SqliteWorld
from tests.golden.library import Golden, unpack
from typer.testing import CliRunner

from epochal.connectors.registry import open_sink
from epochal.continuous.operators.expressions.evaluate import FUNCTIONS, evaluate
from epochal.continuous.operators.expressions.expr import AskSpark, Call, Column
from epochal.errors import MarkerError, OptionError
from epochal.files import open_files
from epochal.tools.verify.findings import RULES, Severity


def test_the_sink_is_short() -> None:
    assert lines_of("sink") < 150


def test_an_older_attempt_of_the_sink_is_fenced(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path)
    with closing(world.open()) as old, closing(world.open()) as new:
        old.fence(1)
        new.fence(2)
        with pytest.raises(MarkerError, match="attempt 2 has claimed it, and this is attempt 1"):
            old.fence(1)


@pytest.mark.parametrize(
    ("kind", "mode", "reason"),
    [(pa.int8(), "append", "cast column n"), (pa.int64(), "complete", "output mode complete")],
)
def test_the_sink_refuses_what_it_cannot_do_before_it_creates_anything(
    kind: Any, mode: str, reason: str, tmp_path: Path
) -> None:
    options = {"path": str(tmp_path / "db"), "table": "t"}
    schema, files = pa.schema([pa.field("n", kind)]), open_files(str(tmp_path))
    with pytest.raises(OptionError, match=reason):
        open_sink(
            example("sink").SQLITE,
            options,
            schema,
            output_mode=mode,
            checkpoint=files,
            query_id=QUERY_ID,
        )
    assert not (tmp_path / "db").exists()


def test_the_source_counts() -> None:
    source = example("source").NUMBERS
    with closing(source.readers.open({"1": "7"})) as reader:
        batch = reader.read(3)
        assert batch.to_pydict() == {"partition": [1, 1, 1], "number": [7, 8, 9]}
        assert reader.positions() == {"1": "10"}


def test_the_function_counts_bytes_and_leaves_binaries_to_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FUNCTIONS, "OctetLength", None)  # so that it is removed in the end
    example("function")
    texts = pa.record_batch({"text": ["a", "ü", None, ""]})
    call = Call("OctetLength", (Column(0),), pa.int32())
    assert evaluate(call, texts).to_pylist() == [1, 2, None, 0]
    with pytest.raises(AskSpark):
        evaluate(call, pa.record_batch({"bytes": [b"a"]}))


def test_the_finding_has_the_severity_and_the_remedy_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.tools.verify.findings.RULES", dict(RULES))
    rules, files = example("finding").note_rules, open_files(str(tmp_path))
    assert list(rules(files)) == []
    (tmp_path / "NOTES").touch()
    (found,) = rules(files)
    assert (found.code, found.severity) == ("NOTES_FOUND", Severity.INFO)
    assert found.remedy == "Nothing needs to be done."


def test_the_command_counts_batches(tmp_path: Path) -> None:
    golden = unpack(Golden("4.3.0", "file_sink_counts"), tmp_path)
    done = CliRunner().invoke(example("command").app, [str(golden.base / "checkpoint")])
    assert done.exit_code == 0
    assert int(done.output) == len(list((golden.base / "checkpoint" / "offsets").glob("[0-9]*")))
