"""A clone of a golden checkpoint is healthy, and has the same state in as few files as possible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.library import Golden, Unpacked, cases, unpack
from tests.golden.planted import in_an_epoch_file
from tests.golden.test_state_golden import opened, ours

from epochal.checkpoint.entries import OFFSET_FORMAT, QueryMetadata
from epochal.checkpoint.restart import RestartAction
from epochal.cli.main import main
from epochal.epoch.manifest import MANIFEST_KEY, manifest_of, manifest_to_json
from epochal.errors import EditError
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.survey import last_committed, survey
from epochal.tools.inspect.show import inspect
from epochal.tools.read_state.read import read_state
from epochal.tools.switch.clone import CloneOptions, plan_clone
from epochal.tools.verify.findings import Depth, Severity
from epochal.tools.verify.verify import verify

NEW_ID = "0c6c1b9e-7a52-4f3e-9d0e-5a2f0f4d8f11"


class Cloned(Unpacked):
    """The same case, with the clone as its checkpoint."""

    @property
    def checkpoint(self) -> Path:
        return self.base / "clone"


def cloned(place: Unpacked, at: int | None = None, until: int | None = None) -> LocalFiles:
    """Clone with a plan of our own, so that the id is known."""
    origin, target = LocalFiles(place.checkpoint), LocalFiles(place.base / "clone", durable=False)
    options = CloneOptions(query_id=NEW_ID, at=at, until=until)
    Journal(target).execute(plan_clone(survey(origin), target, options))
    return target


@pytest.mark.parametrize("golden", cases(), ids=str)
def test_a_clone_is_healthy_and_has_the_same_state(golden: Golden, tmp_path: Path) -> None:
    place = unpack(golden, tmp_path, relocate=True)
    surveyed = survey(LocalFiles(place.checkpoint))
    batch = last_committed(surveyed)
    clone = cloned(place)
    found = verify(clone, depth=Depth.DEEP).findings
    assert [each for each in found if each.severity is Severity.ERROR] == []
    view = inspect(clone)
    assert (view.restart.action, view.restart.batch_id) == (RestartAction.CONTINUE, batch + 1)
    assert QueryMetadata.read(clone) == QueryMetadata(NEW_ID)
    there = Cloned(place.base, golden, place.facts)
    for fact in place.facts.get("state", []):
        if "rows" in fact and fact["batch_id"] == batch:
            asked = (fact["options"], batch)
            assert ours(opened(there, *asked)) == ours(opened(place, *asked)), asked


@pytest.mark.parametrize("case", ["windowed", "rocksdb_zip", "rocksdb_v2", "join_rocksdb_ids"])
def test_a_clone_at_an_earlier_epoch_has_its_state_and_no_later_file(
    case: str, tmp_path: Path
) -> None:
    place = unpack(Golden("4.3.0", case), tmp_path, relocate=True)
    clone = cloned(place, at=6)
    assert inspect(clone).batches[-1].batch_id == 6
    versions = {
        int(path.rpartition("/")[2].partition(".")[0].partition("_")[0])
        for path, _ in clone.walk("state")
        if path.endswith((".delta", ".snapshot", ".changelog", ".zip"))
    }
    assert max(versions) == 7
    found = verify(clone, depth=Depth.DEEP).findings
    assert [each for each in found if each.severity is Severity.ERROR] == []
    if case == "windowed":
        expected = read_state(str(place.checkpoint), batch_id=6).to_pylist()
        assert read_state(clone.url, batch_id=6).to_pylist() == expected != []


def test_the_first_epoch_of_a_clone_can_be_planned(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True)
    origin = survey(LocalFiles(place.checkpoint))
    clone = cloned(place, at=4, until=7)
    planned = survey(clone).offsets[5]
    assert planned.by_source == origin.offsets[7].by_source
    assert planned.watermark_ms == origin.offsets[5].watermark_ms
    view = inspect(clone)
    assert (view.restart.action, view.restart.batch_id) == (RestartAction.RERUN, 5)


def test_an_epoch_whose_state_is_gone_is_refused_with_those_that_are_left(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "retention"), tmp_path, relocate=True)
    with pytest.raises(EditError, match=r"no query can go on after epoch 1: .*epochs \d+ to \d+"):
        cloned(place, at=1)


def test_state_in_epoch_files_is_cloned_without_what_belongs_to_the_sink(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True)
    in_an_epoch_file(place.checkpoint)
    files = LocalFiles(place.checkpoint)
    newest = last_committed(survey(files))
    entry = survey(files).offsets[newest]
    decided = manifest_of(entry, "", newest)
    assert decided is not None
    told = manifest_to_json(replace(decided, messages=(b"rows of the sink",)))
    files.replace(
        f"offsets/{newest}", OFFSET_FORMAT.serialize(replace(entry, extra={MANIFEST_KEY: told}))
    )
    clone = cloned(place)
    manifest = manifest_of(survey(clone).offsets[newest], "", newest)
    assert manifest is not None
    assert (manifest.messages, manifest.chain is not None) == ((), True)
    origin, mine = (read_state(str(each)) for each in (place.checkpoint, clone.url))
    assert mine.to_pylist() == origin.to_pylist() != []
    assert main(("checkpoint", "publish", clone.url, "--execute", "--settle-seconds", "0")) == 0
    assert [each.code for each in verify(clone).findings if each.severity is Severity.ERROR] == []


def test_undo_removes_a_clone_and_refuses_once_it_has_run(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True)
    clone = cloned(place)
    clone.create("offsets/99", clone.read("offsets/10"))
    with pytest.raises(EditError, match="offsets/99"):
        Journal(clone).undo()
    clone.delete("offsets/99")
    Journal(clone).undo()
    assert [path for path, _ in clone.walk() if not path.startswith(".epochal/journal")] == []
