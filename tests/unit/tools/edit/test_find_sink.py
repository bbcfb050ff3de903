"""The sink of a query is found where the checkpoint records it; otherwise the caller is asked."""

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
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.find_sink import FILE_SINK, find_sink
from epochal.tools.edit.offsets.offset_targets import ShiftBy
from epochal.tools.edit.offsets.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey


class Roots:
    """Opens the output directory by its own location, and nothing else."""

    def __init__(self, output: MemoryFiles) -> None:
        self._output = output

    def __call__(self, location: str) -> Files:
        if location == self._output.url:
            return self._output
        return MemoryFiles(prefix="elsewhere")


def test_the_manifests_of_a_continuous_query_lead_to_its_sink() -> None:
    files, output = checkpoint(6), sink(6)
    entry: OffsetEntry = OFFSET_FORMAT.deserialize(files.read("offsets/4"), "")
    message = msgspec.json.encode([sink_status(4)])
    manifest = Manifest(4, 0, "run", (), (b"[]", message), ())
    extra = {MANIFEST_KEY: manifest_to_json(manifest)}
    files.replace("offsets/4", OFFSET_FORMAT.serialize(replace(entry, extra=extra, keys=None)))
    found = find_sink(survey(files), None, Roots(output))
    assert found is not None
    assert found.files.url == output.url


def test_an_edit_that_named_the_sink_is_remembered_until_it_is_undone() -> None:
    files, output = checkpoint(6), sink(6)
    roots = Roots(output)
    assert find_sink(survey(files), None, roots) is None
    plan = plan_set_offsets(survey(files), "0", ShiftBy(0), sink=survey_sink(output))
    journal = Journal(files, open_root=roots)
    journal.execute(plan)
    found = find_sink(survey(files), None, roots)
    assert found is not None
    assert found.files.url == output.url
    journal.undo()
    assert find_sink(survey(files), None, roots) is None


def test_a_recorded_sink_whose_log_is_behind_is_of_another_time() -> None:
    files, output = checkpoint(6), sink(6)
    roots = Roots(output)
    journal = Journal(files, open_root=roots)
    journal.execute(plan_set_offsets(survey(files), "0", ShiftBy(0), sink=survey_sink(output)))
    output.delete("_spark_metadata/6")
    assert find_sink(survey(files), None, roots) is None


def test_a_file_sink_that_the_commit_log_names_without_its_path_must_be_given() -> None:
    files = checkpoint(6)
    named = {"archive": SinkMetadata("archive", "-", FILE_SINK, "DSv1", True)}
    files.replace("commits/5", COMMIT_FORMAT.serialize(CommitEntry(3, 6000, sink_metadata=named)))
    with pytest.raises(EditError, match=r"commits/5 says .* file sink.*Pass .* with --sink"):
        find_sink(survey(files), None)
    assert find_sink(survey(files), None, required=False) is None
