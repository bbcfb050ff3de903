"""The rules, applied to listings made by hand: what is legal, how severe the rest, what to do."""

from __future__ import annotations

import shlex
import zlib
from pathlib import Path

import pytest
from tests.golden.obeying import commands_in

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import CommitEntry, OffsetEntry, QueryMetadata
from epochal.checkpoint.file_log import FileEntry, SinkFileStatus
from epochal.checkpoint.metadata_log import listed, missing_runs, runs_of
from epochal.files.local import LocalFiles
from epochal.state.files.rocksdb_changelog import Changelog, LineageItem
from epochal.state.store.rocksdb_directory import file_name
from epochal.testing.files import MemoryFiles
from epochal.tools.inspect.listing import CheckpointListing, Directories, Directory, LogListing
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing, operators_of
from epochal.tools.verify.check_files import (
    contradictions,
    crc_agrees,
    file_log_rules,
    orphan_rules,
)
from epochal.tools.verify.check_logs import log_rules
from epochal.tools.verify.check_rocksdb import lineage_rules
from epochal.tools.verify.check_state import StateFacts, operator_rules
from epochal.tools.verify.findings import Finding, Severity, by_weight, finding, is_healthy
from epochal.tools.verify.remedy_commands import commands_to_run, with_places
from epochal.tools.verify.verify import escaped, state_facts, unescaped, verify

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CONF = {PARTITIONS: "2", PROVIDER: "HDFS"}


def listing(
    offsets: list[int], commits: list[int], *, stateful: bool = False, **changes: OffsetEntry
) -> CheckpointListing:
    """Logs with these ids. `changes` replaces entries: `_5=...` that of batch 5."""
    folders = ("offsets", "commits", *(["state"] if stateful else []))
    directories = Directories({"": Directory(folders, ("metadata",))})
    if stateful:
        directories.by_path["state"] = Directory(("0",))
    entries = {n: OffsetEntry(1, (str(n),), n, n, CONF) for n in offsets}
    entries |= {int(name[1:]): entry for name, entry in changes.items()}
    return CheckpointListing(
        MemoryFiles(),
        directories,
        QueryMetadata("53b62e34-0476-452d-8313-c1786e091891"),
        b"",
        LogListing("offsets", Directory(), entries),
        LogListing("commits", Directory(), {n: CommitEntry() for n in commits}),
    )


def found(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(each.code, each.severity.value, each.path) for each in by_weight(findings)]


@pytest.mark.parametrize(
    ("offsets", "commits", "expected"),
    [
        ([], [], []),
        ([0], [], []),
        ([0, 1, 2], [0, 1, 2], []),
        ([0, 1, 2], [0, 1], []),
        ([55, 56, 57], [55, 56], []),
        ([56, 57], [55, 56], []),
        # Asynchronous progress tracking leaves the same ids in both logs.
        ([0, 3, 7], [0, 3, 7], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([8, 12], [8, 12], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([0, 3], [0], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([0, 2, 5], [0, 2], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([0, 2], [0], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([3], [], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        ([0, 1, 2, 5, 6], [0, 1, 2, 5, 6], [("OFFSETS_GAP_ASYNC", "info", "offsets")]),
        # Dense, then one gap before a batch that is not committed: probably a lost file.
        ([0, 1, 2, 4], [0, 1, 2], [("OFFSETS_GAP", "warning", "offsets/3")]),
        # Missing from one log only: asynchronous progress does not explain that.
        ([0, 1, 3, 4], [0, 1, 2, 3, 4], [
            ("COMMIT_WITHOUT_OFFSETS", "error", "commits/2"),
            ("OFFSETS_GAP", "warning", "offsets/2"),
        ]),
        ([0, 1, 2, 4], [0, 1, 2, 3, 4], [
            ("COMMIT_WITHOUT_OFFSETS", "error", "commits/3"),
            ("OFFSETS_GAP", "error", "offsets/3"),
        ]),
        ([0, 1, 2, 3], [0, 1, 3], [("COMMITS_GAP", "warning", "commits/2")]),
        ([0, 1, 2, 3], [0, 1], [("COMMITS_BEHIND", "warning", "commits")]),
        ([0, 1, 2], [], [("COMMITS_BEHIND", "warning", "commits")]),
        ([0, 1], [0, 1, 2], [("COMMIT_WITHOUT_OFFSETS", "error", "commits/2")]),
    ],
)  # fmt: skip
def test_judges_gaps_of_a_stateless_query(
    offsets: list[int], commits: list[int], expected: list[tuple[str, str, str]]
) -> None:
    assert found(list(log_rules(listing(offsets, commits)))) == expected


def test_a_newer_release_may_pin_more_settings_and_an_older_one_fewer() -> None:
    more = CONF | {"spark.sql.streaming.stateStore.rowChecksum.enabled": "false"}
    upgraded = listing([0, 1], [0], stateful=True, _1=OffsetEntry(1, ("1",), 1, 1, more))
    downgraded = listing([0, 1], [0], stateful=True, _0=OffsetEntry(1, ("0",), 0, 0, more))
    assert found(list(log_rules(upgraded))) == []
    assert found(list(log_rules(downgraded))) == []


def test_a_repartition_repeats_the_batch_before_it() -> None:
    other = CONF | {PARTITIONS: "5"}
    done = listing([0, 1], [0, 1], stateful=True, _1=OffsetEntry(1, ("0",), 0, 0, other))
    assert found(list(log_rules(done))) == []
    reads = listing([0, 1], [0, 1], stateful=True, _1=OffsetEntry(1, ("1",), 0, 0, other))
    assert found(list(log_rules(reads))) == [("PARTITIONS_CHANGED", "error", "offsets/1")]
    idle = listing([0, 1], [0, 1], stateful=True, _1=OffsetEntry(1, ("0",), 0, 9, other))
    assert found(list(log_rules(idle))) == [("PARTITIONS_CHANGED", "error", "offsets/1")]


@pytest.mark.parametrize(
    ("offsets", "commits", "restart", "newest"),
    [([], [], 0, None), ([0], [], 0, 1), ([0], [0], 1, 1), ([0, 1], [0], 1, 2),
     ([4, 5], [4, 5], 6, 6), ([4, 5], [3], 5, 6)],
)  # fmt: skip
def test_a_restart_needs_the_state_before_the_batch_it_runs(
    offsets: list[int], commits: list[int], restart: int, newest: int | None
) -> None:
    facts = state_facts(listing(offsets, commits, stateful=True))
    assert (facts.restart_version, facts.newest_version) == (restart, newest)


def operator(*partitions: list[str]) -> OperatorListing:
    """One operator whose partitions have these files."""
    directories = {
        "state": Directory(("0",)),
        "state/0": Directory(tuple(str(n) for n in range(len(partitions)))),
    }
    for number, names in enumerate(partitions):
        directories[f"state/0/{number}"] = Directory((), tuple(sorted(names)))
    [only] = operators_of(Directories(directories))
    return only


def facts_of(restart: int, *, partitions: int = 1, from_the_start: bool = True) -> StateFacts:
    return StateFacts(restart, restart, from_the_start, partitions)


def deltas(*versions: int) -> list[str]:
    return [f"{version}.delta" for version in versions]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (deltas(1, 2, 3, 4), []),
        ([*deltas(1, 2, 4), "3.snapshot"], []),
        ([*deltas(4), "3.snapshot"], []),
        # Cleanup has removed a snapshot and left an older delta.
        ([*deltas(1, 4), "3.snapshot", "..4.delta.x.tmp.crc"], [("STATE_HOLE", "2.delta")]),
        (deltas(1, 2, 4), [("STATE_CHAIN_BROKEN", "3.delta")]),
        (deltas(2, 3, 4), [("STATE_CHAIN_BROKEN", "1.delta")]),
        ([*deltas(1, 3, 4), "3.snapshot"], [("STATE_HOLE", "2.delta")]),
        (deltas(1, 2, 3), [("STATE_BEHIND", "")]),
        ([], [("STATE_BEHIND", "")]),
        (deltas(1, 2, 3, 4, 5, 6), [("STATE_AHEAD", "5.delta")]),
        ([*deltas(1, 2, 3, 4), "9.snapshot"], [("STATE_SNAPSHOT_AHEAD", "9.snapshot")]),
        ([*deltas(1, 2, 3, 4), "007.delta"], [("STATE_STRAY_FILE", "007.delta")]),
        ([*deltas(1, 2, 3, 4), "².delta"], [("STATE_STRAY_FILE", "².delta")]),
        ([*deltas(1, 2, 3, 4), "x.snapshot"], [("STATE_STRAY_SNAPSHOT", "x.snapshot")]),
        ([*deltas(1, 2, 3, 4), "4.delta.prepared-a1", ".9.delta.crc", "_x"], []),
        (["1.zip", "2.zip", "3.zip", "4.zip"], []),
        (["2.zip", "3.changelog", "4.changelog"], []),
        (["2.zip", "4.changelog"], [("STATE_CHAIN_BROKEN", "3.changelog")]),
    ],
)
def test_judges_the_files_of_a_store_whose_restart_needs_version_4(
    names: list[str], expected: list[tuple[str, str]]
) -> None:
    findings = list(operator_rules(operator(names), facts_of(4), is_keyed=None))
    paths = [(each.code, each.path.removeprefix("state/0/0").lstrip("/")) for each in findings]
    assert paths == expected


@pytest.mark.parametrize(("is_keyed", "missing"), [(False, []), (None, []), (True, ["state/0/1"])])
def test_only_an_operator_without_key_columns_may_have_one_partition_of_many(
    is_keyed: bool | None, missing: list[str]
) -> None:
    only_one = operator(deltas(1))
    findings = list(operator_rules(only_one, facts_of(1, partitions=2), is_keyed=is_keyed))
    assert [each.path for each in findings] == missing


def test_partitions_that_a_repartition_left_behind_need_no_new_versions() -> None:
    shrunk = operator(deltas(1, 2, 3), deltas(1, 2))
    assert list(operator_rules(shrunk, facts_of(3, partitions=1), is_keyed=True)) == []


def test_nothing_is_needed_before_the_first_batch_is_done() -> None:
    begun = operator(deltas(1), [])
    facts = StateFacts(0, 1, True, partitions=3)
    assert list(operator_rules(begun, facts, is_keyed=True)) == []


def test_tells_whether_a_hadoop_checksum_fits() -> None:
    data = bytes(range(256)) * 5
    chunks = [data[at : at + 512] for at in range(0, len(data), 512)]
    crc = b"crc\0" + (512).to_bytes(4, "big") + b"".join(
        zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks
    )  # fmt: skip
    assert crc_agrees(data, crc) is True
    assert crc_agrees(data + b"!", crc) is False
    assert crc_agrees(data, crc[:-4]) is False
    assert crc_agrees(b"!" + data[1:], crc) is False
    assert crc_agrees(b"", crc[:8]) is True
    assert crc_agrees(data, b"") is None
    assert crc_agrees(data, b"other" + crc[5:]) is None


def test_an_orphan_checksum_is_worse_where_spark_is_going_to_write() -> None:
    directory = Directory((), (".2.crc", ".9.crc", "..3.x.tmp.crc", ".3.crc", "3"))
    findings = list(orphan_rules("offsets", directory, newest=3))
    assert [(each.path, each.severity) for each in findings] == [
        ("offsets/.2.crc", Severity.WARNING),
        ("offsets/.9.crc", Severity.ERROR),
    ]


def file_log(*names: str) -> LogListing[tuple[object, ...]]:
    log: LogListing[tuple[object, ...]] = LogListing("sources/0", Directory((), names))
    for name in names:
        log.entries[int(name.removesuffix(".compact"))] = ()
    return log


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("0", "1", "2"), []),
        (("0", "1", "2.compact", "3", "4", "5.compact", "6"), []),
        (("5.compact", "6"), []),
        (tuple(map(str, range(15))), []),  # the interval may be above 15
        ((*map(str, range(39)), "39.compact", "40"), []),  # one compact file does not determine it
        (("1", "2"), [("FILE_LOG_HOLE", "sources/0/0")]),
        (("2.compact", "4"), [("FILE_LOG_HOLE", "sources/0/3")]),
        (("2.compact", "5.compact", "6", "7", "8"), [("FILE_LOG_COMPACT_NAME", "sources/0/8")]),
    ],
)
def test_judges_the_names_of_a_file_log(
    names: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    findings = list(file_log_rules(file_log(*names)))
    assert [(each.code, each.path) for each in findings] == expected


def sink_entry(path: str, time: int = 0) -> SinkFileStatus:
    return SinkFileStatus(path, 1, False, time, 1, 1, "add")


def source_entry(path: str, batch_id: int) -> FileEntry:
    return FileEntry(path, 0, batch_id)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"0": "a", "1": "", "2.compact": "ab", "3": "c"}, []),
        ({"0": "a", "1": "b", "2.compact": "a"}, ["2.compact"]),  # torn
        ({"1": "b", "2.compact": "ba", "3": "b"}, ["3"]),
        ({"0": "a", "1": "b", "2": "b"}, ["2"]),
        ({"1.compact": "ab", "3.compact": "ab"}, []),  # batches that wrote nothing
        ({"2.compact": "ab", "3.compact": "ab", "4": "c"}, ["3.compact"]),
        ({"2.compact": "ab", "3": "c", "3.compact": "ab"}, ["3.compact"]),
        ({"2.compact": "ab", "3": "c", "3.compact": "abc"}, []),
    ],
)
def test_a_file_belongs_to_one_batch_of_a_sink(files: dict[str, str], expected: list[str]) -> None:
    log = {name: tuple(map(sink_entry, paths)) for name, paths in files.items()}
    assert [name for name, _ in contradictions(log)] == expected


def test_a_compaction_of_a_sink_may_forget_old_files_but_no_new_ones() -> None:
    old, young = sink_entry("old", 1), sink_entry("young", 9)
    assert list(contradictions({"0": (old,), "1.compact": (young,)})) == []
    assert list(contradictions({"0": (young,), "1.compact": (old,)})) != []


def test_a_compact_file_of_a_source_has_files_of_every_batch() -> None:
    whole = tuple(source_entry(f"f{n}", n) for n in range(4))
    assert list(contradictions({"1": whole[1:2], "3.compact": whole, "4": ()})) == []
    [(name, message)] = contradictions({"5.compact": whole})
    assert (name, message) == (
        "5.compact",
        "it lacks the files of batch 4..5: it is torn, or a copy",
    )


def test_runs_never_count_up_to_an_id() -> None:
    far = 2**63 - 1
    assert missing_runs([0, 1, far], 0, far) == [range(2, far)]
    assert listed(missing_runs([0, 2, 3, 9], 0, 9)) == "1, 4..8"
    assert listed(runs_of([5, 3, 4, 9])) == "3..5, 9"
    assert listed([range(n, n + 1) for n in range(0, 40, 2)]) == "0, 2, 4, 6, …, 34, 36, 38"


def test_only_info_is_healthy_and_the_worst_comes_first() -> None:
    info, warning, error = (
        finding(code, "p", "m") for code in ("STATE_HOLE", "STATE_AHEAD", "STATE_BEHIND")
    )
    assert is_healthy([info])
    assert not is_healthy([info, warning])
    assert by_weight([info, warning, error]) == [error, warning, info]


QUERY = QueryMetadata("53b62e34-0476-452d-8313-c1786e091891")
LOGS = {
    "nothing": ((), True),
    "offsets": (("offsets/0",), False),
    "commits": (("commits/0",), False),
    "both": (("offsets/0", "commits/0"), False),
}


@pytest.mark.parametrize("there", LOGS)
@pytest.mark.parametrize("has_id", [True, False], ids=["with id", "without"])
def test_only_logs_need_the_query_s_id(there: str, has_id: bool) -> None:
    paths, may_lack = LOGS[there]
    files = MemoryFiles({path: (b"v1\n{}\n0" if "off" in path else b"v1\n{}", 0) for path in paths})
    files.create("sources/0/0", b"v1\n0")
    if has_id:
        QUERY.write(files)
    codes = [each.code for each in verify(files).findings]
    assert ("METADATA_MISSING" in codes) is (not has_id and not may_lack)
    condition = Checkpoint(files).plan_restart().condition
    assert (condition == "STREAMING_CHECKPOINT_MISSING_METADATA_FILE") is (
        not has_id and not may_lack
    )
    if has_id:
        assert Checkpoint(files).metadata() == QueryMetadata(QUERY.id)


SPECIAL = "chk %@#chk"
LEGACY = "chk%252520%252525@%252523chk"


def a_checkpoint(where: Path) -> None:
    (where / "offsets").mkdir(parents=True)
    (where / "metadata").write_text('{"id":"09be7fb3-49d8-48a6-840d-e9c2ad92a898"}')


def codes_at(where: Path) -> list[tuple[str, str]]:
    return [(each.code, each.path) for each in verify(LocalFiles(where)).findings]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (f"/a/{SPECIAL}", f"/a/{LEGACY}"),
        ("/foo/bar", "/foo/bar"),
        ("hdfs://b ar:1/foo/bär", "hdfs://b ar:1/foo/bär"),
        ("s3://bucket/b ar/c", "s3://bucket/b%252520ar/c"),
    ],
)
def test_only_special_characters_of_the_path_were_escaped(location: str, expected: str) -> None:
    assert escaped(location, 3) == expected
    assert unescaped(expected, 3) == (None if location == expected else location)


@pytest.mark.parametrize("location", ["/a/b%20c", "/a/%25", "/a/plain", "/a/b%252520c d"])
def test_a_name_that_the_old_spark_never_made_stands_for_nothing_else(location: str) -> None:
    assert unescaped(location, 3) is None


def test_a_checkpoint_whose_escaped_twin_is_there_is_not_healthy(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / SPECIAL)
    assert codes_at(tmp_path / SPECIAL) == []
    a_checkpoint(tmp_path / LEGACY)
    assert codes_at(tmp_path / SPECIAL) == [("PATH_ESCAPED", ".")]


def test_the_twin_is_named_where_the_checkpoint_itself_is_not_there(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / LEGACY)
    report = verify(LocalFiles(tmp_path / SPECIAL))
    assert [each.code for each in report.findings] == ["PATH_ESCAPED"]
    assert LEGACY in report.findings[0].message
    assert not (tmp_path / SPECIAL).exists()
    with pytest.raises(FileNotFoundError):
        verify(LocalFiles(tmp_path / "another one"))


def test_an_escaped_checkpoint_says_whose_it_is(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / LEGACY)
    (found,) = verify(LocalFiles(tmp_path / LEGACY)).findings
    assert found.code == "PATH_ESCAPED"
    assert str(tmp_path / SPECIAL) in found.message


def test_the_log_of_a_sink_was_escaped_once(tmp_path: Path) -> None:
    a_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "out put").mkdir()
    (tmp_path / "out%20put" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out%20put" / "_spark_metadata" / "0").write_text("v1")
    report = verify(LocalFiles(tmp_path / "checkpoint"), sink=LocalFiles(tmp_path / "out put"))
    assert [(each.code, each.path) for each in report.findings] == [
        ("PATH_ESCAPED", "_spark_metadata")
    ]


def listing_of(*names: str) -> StoreListing:
    folders = {
        "": Directory(("state",)),
        "state": Directory(("0",)),
        "state/0": Directory(("0",)),
        "state/0/0": Directory((), names),
    }
    return operators_of(Directories(folders))[0].stores[0]


def item(version: int) -> LineageItem:
    return LineageItem(version, f"id{version}")


def test_verify_reports_a_changelog_that_the_lineage_names_and_that_is_gone() -> None:
    store = listing_of("1_id1.changelog", "3_id3.changelog")
    (found,) = lineage_rules(store, item(3), Changelog(3, (item(1), item(2)), ()))
    assert found.path == "state/0/0/2_id2.changelog"


def test_verify_reports_a_lineage_that_starts_at_a_snapshot_which_is_gone() -> None:
    names = [file_name(item(each), "changelog") for each in (3, 4)]
    changelog = Changelog(3, (item(3),), ())
    (found,) = lineage_rules(listing_of(*names), item(4), changelog)
    assert found.path == "state/0/0/4_id4.changelog"
    assert "1..2" in found.message
    assert not list(lineage_rules(listing_of(*names, "3_id3.zip"), item(4), changelog))


@pytest.mark.parametrize("path", ["/data/my orders", "/data/$(reboot)", "/data/a;b", "/data/it's"])
def test_a_shell_takes_the_path_as_one_word(path: str) -> None:
    (command,) = commands_to_run("`epochal checkpoint repair CHECKPOINT`", path)
    assert shlex.split(command) == ["epochal", "checkpoint", "repair", path, "--execute"]


def test_alternatives_are_all_named_in_their_order() -> None:
    remedy = (
        "If the file is right, use `epochal checkpoint repair CHECKPOINT --code X`. Otherwise use "
        "`epochal checkpoint rewind CHECKPOINT --to-batch 7 --sink OUTPUT`."
    )
    assert commands_to_run(remedy, "c") == [
        "epochal checkpoint repair c --code X --execute",
        "epochal checkpoint rewind c --to-batch 7 --sink OUTPUT --execute",
    ]


def test_a_command_whose_batch_is_not_known_is_not_offered() -> None:
    remedy = "Use `epochal checkpoint rewind CHECKPOINT --to-batch N` to a batch."
    assert len(commands_in(remedy)) == 1
    assert commands_to_run(remedy, "c") == []


def test_a_remedy_for_people_names_their_directories_in_its_commands_only() -> None:
    remedy = (
        "Restore the CHECKPOINT, or use `epochal checkpoint rewind CHECKPOINT --to-batch 7 --sink "
        "OUTPUT`."
    )
    assert with_places(remedy, "my dir", "out") == (
        "Restore the CHECKPOINT, or use `epochal checkpoint rewind 'my dir' --to-batch 7 --sink "
        "out`."
    )
    assert with_places(remedy, "here").endswith("rewind here --to-batch 7 --sink OUTPUT`.")
