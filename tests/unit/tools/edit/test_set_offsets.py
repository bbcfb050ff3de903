"""Moving a source adds a batch with other offsets, the same settings and state; log version 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

import pytest
from tests.unit.checkpoint.samples import CONF, EMPTY_DELTA, checkpoint, content, source_batch

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry
from epochal.checkpoint.restart import SOURCE_EVOLUTION
from epochal.errors import EditError, OptionError
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import LineageItem, parse_changelog
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import FileRef, Plan
from epochal.tools.edit.migrate_offsets import plan_migrate
from epochal.tools.edit.offset_targets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    goes_back,
    move,
)
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey

KAFKA = '{"t":{"0":10,"1":20}}'


def ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


def created(plan: Plan) -> list[str]:
    assert all(change.action == "create" for change in plan.changes)
    return [change.path for change in plan.changes if not change.root]


def written(plan: Plan, path: str) -> bytes:
    found = next(change.after for change in plan.changes if change.path == path)
    assert isinstance(found, bytes)
    return found


def test_one_batch_is_added_with_a_delta_for_every_store() -> None:
    files = checkpoint(6, source_offsets=[KAFKA])
    plan = plan_set_offsets(survey(files), "0", ToOffset(("t:0:99",)))
    assert created(plan) == ["state/0/0/7.delta", "state/0/1/7.delta", "offsets/6", "commits/6"]
    assert written(plan, "state/0/1/7.delta") == EMPTY_DELTA


def test_the_batch_copies_settings_and_goes_on_with_the_watermark() -> None:
    files = checkpoint(6, source_offsets=[KAFKA, None])
    plan = plan_set_offsets(survey(files), "0", ToOffset(("t:0:99",)))
    last = OFFSET_FORMAT.deserialize(files.read("offsets/5"), "")
    added = OFFSET_FORMAT.deserialize(written(plan, "offsets/6"), "")
    assert added.offsets == ('{"t":{"0":99,"1":20}}', None)
    assert (added.conf, added.timestamp_ms) == (last.conf, last.timestamp_ms)
    assert added.watermark_ms == 6000
    commit = COMMIT_FORMAT.deserialize(written(plan, "commits/6"), "")
    assert commit == CommitEntry(1, 6000)


def test_a_file_source_goes_back_in_two_batches_because_spark_asks_it_for_the_last_again() -> None:
    files = checkpoint(6)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(-3))
    assert created(plan)[-4:] == ["offsets/6", "commits/6", "offsets/7", "commits/7"]
    assert "state/0/1/8.delta" in created(plan)
    assert written(plan, "offsets/6") == written(plan, "offsets/7")
    assert "rows will be read again, and the state will count them again" in plan.warnings[0]


def test_a_batch_that_is_under_way_is_not_overtaken() -> None:
    with pytest.raises(
        EditError, match=r"batch 5 has started but is not committed.*--to-batch 4 --sink OUTPUT`"
    ):
        plan_set_offsets(survey(checkpoint(6, uncommitted=True)), "0", ShiftBy(0))


def test_a_state_that_cannot_be_loaded_is_not_built_upon() -> None:
    files = checkpoint(6)
    files.delete("state/0/1/6.delta")
    with pytest.raises(EditError, match=r"needs state/0/1/6\.delta"):
        plan_set_offsets(survey(files), "0", ShiftBy(0))


def rocks(commit: bytes, names: dict[str, bytes]) -> MemoryFiles:
    files = checkpoint(3, stateful=False, source_offsets=[KAFKA])
    files.replace("commits/2", commit)
    for name, data in names.items():
        files.create(f"state/0/0/{name}", data)
    return files


def test_a_rocksdb_snapshot_is_taken_over_under_the_next_version() -> None:
    files = rocks(COMMIT_FORMAT.serialize(CommitEntry()), {"3.zip": b"zip"})
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1))
    assert [(each.path, each.after) for each in plan.changes[:1]] == [
        ("state/0/0/4.zip", FileRef("", "state/0/0/3.zip", 3))
    ]


def test_a_rocksdb_changelog_is_followed_by_an_empty_one_of_the_same_layout() -> None:
    tagged = compress(b"\0\2v2\0", "lz4")
    names = {f"{version}.changelog": tagged for version in (1, 2, 3)}
    files = rocks(COMMIT_FORMAT.serialize(CommitEntry()), names)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1))
    assert decompress(written(plan, "state/0/0/4.changelog"), "lz4") == b"\0\2v2\0"


def test_unique_ids_get_a_new_one_with_the_lineage_of_the_last_and_the_commit_names_it() -> None:
    lineage = b'[{"version":2,"checkpointUniqueId":"b"}]'
    plain = b"\0\2v3" + len(lineage).to_bytes(2, "big") + lineage + b"\xff\xff\xff\xff"
    commit = CommitEntry(2, 7, {0: (("c",),)})
    files = rocks(
        COMMIT_FORMAT.serialize(commit),
        {"2_b.zip": b"zip", "3_c.changelog": compress(plain, "lz4"), "3_lost.changelog": b""},
    )
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1), new_id=ids())
    assert created(plan) == ["state/0/0/4_id-1.changelog", "offsets/3", "commits/3"]
    made = parse_changelog(decompress(written(plan, "state/0/0/4_id-1.changelog"), "lz4"), "")
    assert (made.layout, made.records) == (3, ())
    assert made.lineage == (LineageItem(2, "b"), LineageItem(3, "c"))
    added = COMMIT_FORMAT.deserialize(written(plan, "commits/3"), "")
    assert added.state_unique_ids == {0: (("id-1",),)}


TOPICS = '{"a":{"0":10,"1":20},"b":{"0":5}}'


FILES, OTHER = '{"logOffset":7}', '{"offset":15,"timestamp":3000}'


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        # Of Kafka's partitions only those that are named move.
        (TOPICS, ToOffset(('{"a":{"0":1}}',)), '{"a":{"0":1,"1":20},"b":{"0":5}}'),
        (TOPICS, ToOffset(("a:1:7", "b:0:0")), '{"a":{"0":10,"1":7},"b":{"0":0}}'),
        (TOPICS, ToOffset(("c:2:9",)), '{"a":{"0":10,"1":20},"b":{"0":5},"c":{"2":9}}'),
        (TOPICS, ShiftBy(-7), '{"a":{"0":3,"1":13},"b":{"0":0}}'),
        (TOPICS, ShiftBy(3), '{"a":{"0":13,"1":23},"b":{"0":8}}'),
        (FILES, ToOffset(("4",)), '{"logOffset":4}'),
        (FILES, ToOffset(('{"logOffset":4}',)), '{"logOffset":4}'),
        (FILES, ShiftBy(-2), '{"logOffset":5}'),
        (FILES, ShiftBy(-100), '{"logOffset":-1}'),
        (FILES, ToEarliest(), '{"logOffset":-1}'),
        (FILES, ToLatest(), '{"logOffset":9}'),
        ("7", ToOffset(("3",)), "3"),
        ("7", ShiftBy(-2), "5"),
        ("7", ToEarliest(), "0"),
        # What has another form, or no offset yet, can only be replaced whole.
        (OTHER, ToOffset(('{"offset":5,"timestamp":1000}',)), '{"offset":5,"timestamp":1000}'),
        (None, ToOffset(('{"logOffset":1}',)), '{"logOffset":1}'),
    ],
)
def test_an_offset_moves_in_its_own_form(
    current: str | None, target: Target, expected: str
) -> None:
    assert move(current, target, latest_log_batch=9) == expected


@pytest.mark.parametrize(
    ("current", "target", "reason"),
    [
        (FILES, ShiftBy(5), "log ends at 9, so the source cannot continue from 12"),
        (OTHER, ShiftBy(1), "give the complete new offset"),
        (None, ShiftBy(1), "has no offset yet"),
        (TOPICS, ToEarliest(), "--bootstrap-servers"),
        *(
            (TOPICS, ToOffset((value,)), "--to-offset")
            for value in (
                "a:1",
                "a:x:1",
                "a:1:-5",
                ":0:1",
                "a:\u00b2:1",
                f"a:0:{9:9<5000}",
                "{",
                '{"a":[1]}',
            )
        ),
    ],
)
def test_a_move_that_cannot_be_made_is_refused_with_the_reason(
    current: str | None, target: Target, reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        move(current, target, latest_log_batch=9)


@pytest.mark.parametrize("target", [ToEarliest(), ToLatest(), ToTime(1_700_000_000_000)])
def test_kafkas_ends_and_moments_are_the_brokers_to_say(target: Target) -> None:
    asked: list[object] = []

    def ask(
        partitions: Mapping[str, tuple[int, ...]], what: object
    ) -> Mapping[str, Mapping[int, int]]:
        asked.append((dict(partitions), what))
        return {"a": {0: 100, 1: 101}, "b": {0: 102}, "unasked": {0: 1}}

    moved = move(TOPICS, target, ask_broker=ask)
    assert moved == '{"a":{"0":100,"1":101},"b":{"0":102}}'
    assert asked == [({"a": (0, 1), "b": (0,)}, target)]


def test_a_partition_that_the_broker_does_not_know_is_named() -> None:
    with pytest.raises(OptionError, match="did not answer for a:1"):
        move(TOPICS, ToLatest(), ask_broker=lambda _, __: {"a": {0: 1}, "b": {0: 1}})


@pytest.mark.parametrize(
    ("current", "moved", "back"),
    [
        (TOPICS, '{"a":{"0":10,"1":20},"b":{"0":5}}', False),
        (TOPICS, '{"a":{"0":11,"1":19},"b":{"0":5}}', True),
        ('{"logOffset":7}', '{"logOffset":6}', True),
        ('{"logOffset":7}', '{"logOffset":8}', False),
        ("7", "6", True),
        (None, "6", False),
    ],
)
def test_going_back_is_noticed(current: str | None, moved: str, back: bool) -> None:
    assert goes_back(current, moved) is back


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
