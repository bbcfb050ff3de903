"""The caller names the file sink; what the checkpoint says of it is offered, and never opened."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.checkpoint.samples import checkpoint, sink, sink_status

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    SinkMetadata,
)
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.errors import EditError
from epochal.files import Files
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_file_log import FILE_SINK, NamedSink, find_sink
from epochal.tools.edit.offset_targets import ShiftBy
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey

NOTHING_SAID = NamedSink()
NO_FILE_SINK = NamedSink(is_absent=True)


def with_manifest(path: str) -> Files:
    """A checkpoint of a continuous query that wrote a file in its epoch 4."""
    files = checkpoint(6)
    entry: OffsetEntry = OFFSET_FORMAT.deserialize(files.read("offsets/4"), "")
    message = msgspec.json.encode([msgspec.structs.replace(sink_status(4), path=path)])
    manifest = Manifest(4, 0, "run", (), (b"[]", message), ())
    extra = {MANIFEST_KEY: manifest_to_json(manifest)}
    files.replace("offsets/4", OFFSET_FORMAT.serialize(replace(entry, extra=extra, keys=None)))
    return files


def test_the_sink_that_the_caller_names_is_read() -> None:
    output = sink(6)
    found = find_sink(survey(checkpoint(6)), NamedSink(output))
    assert found is not None
    assert found.files is output


def test_a_sink_that_a_manifest_names_is_offered_and_not_opened() -> None:
    files = with_manifest("webhdfs://attacker:9870/out/day=1/part-0.parquet")
    with pytest.raises(
        EditError, match=r"offsets/4 lists files in webhdfs://attacker:9870/out\. .*--sink"
    ):
        find_sink(survey(files), NOTHING_SAID)
    assert find_sink(survey(files), NO_FILE_SINK) is None


SILENT = "does not say where its query writes.*--sink, or --no-file-sink"


def test_a_sink_that_an_earlier_edit_changed_is_offered_until_the_edit_is_undone() -> None:
    files, output = checkpoint(6), sink(6)
    with pytest.raises(EditError, match=SILENT):
        find_sink(survey(files), NOTHING_SAID)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(0), sink=survey_sink(output))
    journal = Journal(files)
    journal.execute(plan)
    with pytest.raises(EditError, match=f"earlier edit changed the file sink in {output.url}"):
        find_sink(survey(files), NOTHING_SAID)
    journal.undo()
    with pytest.raises(EditError, match=SILENT):
        find_sink(survey(files), NOTHING_SAID)


def test_a_file_sink_that_the_commit_log_names_without_its_path_must_be_named() -> None:
    files = checkpoint(6)
    named = {"archive": SinkMetadata("archive", "-", FILE_SINK, "DSv1", True)}
    files.replace("commits/5", COMMIT_FORMAT.serialize(CommitEntry(3, 6000, sink_metadata=named)))
    with pytest.raises(EditError, match=r"commits/5 says .* file sink.*pass .* with --sink"):
        find_sink(survey(files), NOTHING_SAID)
    assert find_sink(survey(files), NO_FILE_SINK) is None
