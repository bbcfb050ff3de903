"""Offset log version 1 becomes version 2, with sources by number or by name."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.samples import CONF, checkpoint, content, source_batch

from epochal.checkpoint.entries import OFFSET_FORMAT
from epochal.checkpoint.restart import SOURCE_EVOLUTION
from epochal.errors import EditError, OptionError
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.migrate_offsets import plan_migrate
from epochal.tools.edit.survey import survey


def two_sources() -> MemoryFiles:
    files = checkpoint(3, source_offsets=['{"logOffset":2}', None])
    for path, data in source_batch(0, interval=10, directory="sources/1").items():
        files.create(path, data)
    return files


def test_every_entry_is_rewritten_and_says_the_same() -> None:
    files = two_sources()
    old = survey(files).offsets
    plan = plan_migrate(survey(files), {})
    assert [(each.action, each.path) for each in plan.changes] == [
        ("replace", f"offsets/{batch_id}") for batch_id in range(3)
    ]
    Journal(files).execute(plan)
    for batch_id, entry in survey(files).offsets.items():
        assert (entry.version, entry.offsets) == (2, {"0": '{"logOffset":2}'})
        assert entry.watermark_ms == old[batch_id].watermark_ms
        assert entry.timestamp_ms == old[batch_id].timestamp_ms
        assert entry.conf == CONF


def test_the_bytes_are_those_that_spark_writes() -> None:
    files = checkpoint(1, source_offsets=["7"], stateful=False)
    plan = plan_migrate(survey(files), {})
    raw = plan.changes[0].after
    assert isinstance(raw, bytes)
    version, metadata, *lines = raw.decode().split("\n")
    assert (version, lines) == ("v2", ["0:7"])
    assert metadata.endswith(',"sourceMetadataInfo":{}}')
    assert OFFSET_FORMAT.serialize(OFFSET_FORMAT.deserialize(raw, "")) == raw


def test_naming_sources_moves_their_logs_and_enables_evolution() -> None:
    files = two_sources()
    before = content(files)
    plan = plan_migrate(survey(files), {0: "orders", 1: "returns"})
    journal = Journal(files)
    journal.execute(plan)
    entry = survey(files).offsets[2]
    assert entry.offsets == {"orders": '{"logOffset":2}'}
    assert entry.conf[SOURCE_EVOLUTION] == "true"
    after = content(files)
    moved = {"0": "orders", "1": "returns"}
    for path, data in before.items():
        place, _, name = path.removeprefix("sources/").partition("/")
        if path.startswith("sources/") and not name.startswith("."):
            assert after[f"sources/{moved[place]}/{name}"] == data
    assert not [path for path in after if path.startswith(("sources/0", "sources/1"))]
    journal.undo()
    assert content(files) == before


def test_a_directory_that_spark_has_named_already_stays() -> None:
    files = checkpoint(1, source_offsets=['{"logOffset":0}'], stateful=False)
    for path in [path for path in content(files) if path.startswith("sources/0/")]:
        files.create(path.replace("sources/0/", "sources/orders/"), files.read(path))
        files.delete(path)
    Journal(files).execute(plan_migrate(survey(files), {0: "orders"}))
    assert survey(files).offsets[0].offsets == {"orders": '{"logOffset":0}'}
    assert any(path.startswith("sources/orders/") for path in content(files))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({0: "a"}, "The offset log has 2 sources"),
        ({0: "a", 1: "a"}, "Two sources have the same name"),
        ({0: "a", 1: "b-c"}, "'b-c' is not a valid name"),
        ({0: "1", 1: "b"}, "sources/1 exists already"),
    ],
)
def test_names_that_spark_would_refuse_are_refused(names: dict[int, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        plan_migrate(survey(two_sources()), names)


def test_a_converted_log_is_left_alone_and_cannot_be_named_again() -> None:
    files = two_sources()
    Journal(files).execute(plan_migrate(survey(files), {}))
    assert plan_migrate(survey(files), {}).changes == ()
    with pytest.raises(EditError, match="version 2 already"):
        plan_migrate(survey(files), {0: "a", 1: "b"})


def test_a_log_that_cannot_be_read_is_not_converted() -> None:
    files = two_sources()
    files.replace("offsets/1", b"v1")
    with pytest.raises(EditError, match="offsets/1 cannot be read"):
        plan_migrate(survey(files), {})
