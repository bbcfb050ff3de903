"""Offsets, commits, metadata and logs of sources: the same bytes as Spark's, in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    CommitLog,
    ControlBatch,
    OffsetEntry,
    OffsetLog,
    QueryMetadata,
    SinkMetadata,
    SourceMetadata,
)
from epochal.checkpoint.file_log import (
    KAFKA_INITIAL_OFFSET_FORMAT,
    RATE_FORMAT,
    FileSourceLog,
    KafkaInitialOffsetLog,
    KafkaInitialOffsets,
    RateLog,
    open_source_log,
)
from epochal.checkpoint.layout import JOIN_STORES, StoreKey
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    OperatorMetadataLog,
    StoreMetadata,
    list_operators,
    newest_at,
    read_operator,
)
from epochal.checkpoint.spark_json import to_json
from epochal.errors import (
    ConcurrentUpdateError,
    MalformedFileError,
    OptionError,
    UnsupportedVersionError,
)
from epochal.testing.files import MemoryFiles

OFFSETS_OF_2_1 = (
    b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1480981499528}\n'
    b'{"logOffset":345}\n{"topic-0":{"0":1}}'
)
OFFSETS_V1 = (
    b'v1\n{"batchWatermarkMs":1704067298000,"batchTimestampMs":1794772329947,'
    b'"conf":{"spark.sql.shuffle.partitions":"2","spark.sql.streaming.stateStore.compression.codec"'
    b':"lz4","a":"b"}}\n{"logOffset":3}\n-\n{"offset":15,"timestamp":3000}'
)
OFFSETS_V2 = (
    b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1794772388113,"conf":{"k":"v"},'
    b'"sourceMetadataInfo":{}}\n0:0\n2:{"logOffset":0}\nsrcA:{"logOffset":1}'
)
OFFSETS_V2_FULL = (
    b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{},"sourceMetadataInfo":'
    b'{"srcA":{"sourceId":"srcA","providerName":"kafka","apiVersion":"DSv2"}},'
    b'"controlBatchInfo":{"operationType":"repartition","operationInfo":"5 to 3"}}\nsrcA:-'
)
OFFSETS_V2_WITHOUT_SOURCES = (
    b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1758651405232,"conf":{"k":"5"}}\n0:3'
)
OFFSETS_WITHOUT_METADATA = b"v1\n\n0\n1"
COMMIT_V1 = b'v1\n{"nextBatchWatermarkMs":1704067178000}'
COMMIT_OF_2_2 = b"v1\n{}"
COMMIT_V2 = (
    b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["unique_id1","unique_id2"],'
    b'["unique_id3","unique_id4"]],"1":[["unique_id5","unique_id6"],["unique_id7","unique_id8"]]}}'
)
COMMIT_V2_EMPTY = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'
COMMIT_V2_NONE = b'v2\n{"nextBatchWatermarkMs":0}'
COMMIT_V3 = (
    b'v3\n{"nextBatchWatermarkMs":0,"sinkMetadataMap":{"mysink":{"sinkName":"mysink",'
    b'"commitOffset":"-","providerName":"org.example.NoopTable$","apiVersion":"DSv2",'
    b'"isActive":true}}}'
)


@pytest.mark.parametrize(
    "data",
    [
        OFFSETS_OF_2_1,
        OFFSETS_V1,
        OFFSETS_V2,
        OFFSETS_V2_FULL,
        OFFSETS_V2_WITHOUT_SOURCES,
        OFFSETS_WITHOUT_METADATA,
        b"v1\n{}\n0",
        b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{},"epochal":{"attempt":3}}\n0',
    ],
)
def test_an_offset_file_read_and_written_again_is_the_same_bytes(data: bytes) -> None:
    assert OFFSET_FORMAT.serialize(OFFSET_FORMAT.deserialize(data, "offsets/0")) == data


@pytest.mark.parametrize(
    "data",
    [
        COMMIT_V1,
        COMMIT_OF_2_2,
        COMMIT_V2,
        COMMIT_V2_EMPTY,
        COMMIT_V2_NONE,
        COMMIT_V3,
        b"v1",
        b'v1\n{"nextBatchWatermarkMs":1,"stateUniqueIds":{"0":[["x"]]},"more":[1,null]}',
    ],
)
def test_a_commit_file_read_and_written_again_is_the_same_bytes(data: bytes) -> None:
    assert COMMIT_FORMAT.serialize(COMMIT_FORMAT.deserialize(data, "commits/0")) == data


@pytest.mark.parametrize(
    "text", [b'v1\n{}\n{"', b'v1\n{}\n{"logOffset":8}\n{"a":', b'v2\n{}\n0:["x"', b'v1\n{}\n"x']
)
def test_an_offset_that_is_cut_off_makes_the_entry_malformed(text: bytes) -> None:
    with pytest.raises(MalformedFileError, match="invalid JSON"):
        OFFSET_FORMAT.deserialize(text, "offsets/0")


def test_a_commit_has_one_id_for_each_store_and_takes_others_in_their_place() -> None:
    joined = ("lc", "lr", "rc", "rr")
    entry = CommitEntry(version=2, state_unique_ids={1: (("a",), ("b",)), 0: (joined,)})
    names = [StoreKey(0, 0, name) for name in JOIN_STORES]
    ids = entry.store_ids()
    assert list(ids.items()) == [
        (StoreKey(1, 0), "a"),
        (StoreKey(1, 1), "b"),
        *zip(names, joined, strict=True),
    ]
    assert entry.with_store_ids(ids) == entry
    assert entry.with_store_ids({StoreKey(2, 0): "c"}).state_unique_ids == {2: (("c",),)}
    assert CommitEntry().with_store_ids(ids) == CommitEntry()


def test_version_2_carries_sources_and_control_batches() -> None:
    entry = OFFSET_FORMAT.deserialize(OFFSETS_V2_FULL, "")
    assert entry.source_metadata_info == {"srcA": SourceMetadata("srcA", "kafka", "DSv2")}
    assert entry.control_batch_info == ControlBatch("repartition", "5 to 3")
    assert entry.offsets == {"srcA": None}


def test_a_new_entry_is_written_as_spark_orders_it() -> None:
    entry = OffsetEntry(1, ("7", None), 5, 6, {"k": "v"}, extra={"epochal": {"attempt": 1}})
    assert OFFSET_FORMAT.serialize(entry) == (
        b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":6,"conf":{"k":"v"},"epochal":{"attempt":1}}'
        b"\n7\n-"
    )
    keyed = OffsetEntry(2, {"a": "1"}, 5, 6, {"k": "v"})
    assert OFFSET_FORMAT.serialize(keyed) == (
        b'v2\n{"batchWatermarkMs":5,"batchTimestampMs":6,"conf":{"k":"v"},"sourceMetadataInfo":{}}'
        b"\na:1"
    )


def test_a_changed_entry_keeps_the_order_of_keys_and_gains_what_it_needs() -> None:
    entry = OFFSET_FORMAT.deserialize(b'v1\n{"conf":{"k":"v"},"x":1,"batchTimestampMs":4}\n0', "")
    assert OFFSET_FORMAT.serialize(replace(entry, watermark_ms=9)) == (
        b'v1\n{"conf":{"k":"v"},"x":1,"batchTimestampMs":4,"batchWatermarkMs":9}\n0'
    )
    old = OFFSET_FORMAT.deserialize(OFFSETS_WITHOUT_METADATA, "")
    assert OFFSET_FORMAT.serialize(replace(old, timestamp_ms=3)) == (
        b'v1\n{"batchTimestampMs":3}\n0\n1'
    )


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("{}", (0, 0, {})),
        ('{"conf": {"p":2}}', (0, 0, {"p": "2"})),
        ('{"batchWatermarkMs":1,"batchTimestampMs":2,"conf": {"p":3}}', (1, 2, {"p": "3"})),
        ('{"batchWatermarkMs":1,"batchTimestampMs":2,"conf": {"p":3}},"u":1', (1, 2, {"p": "3"})),
        ("  \t", (0, 0, {})),
        ('{"conf":{"f":1.5,"g":1e3}}', (0, 0, {"f": "1.5", "g": "1000.0"})),
        ('{"batchWatermarkMs":null,"conf":null}', (0, 0, {})),
    ],
)
def test_metadata_has_defaults_and_conf_becomes_strings(
    metadata: str, expected: tuple[int, int, dict[str, str]]
) -> None:
    entry = OFFSET_FORMAT.deserialize(f"v1\n{metadata}\n0".encode(), "")
    assert (entry.watermark_ms, entry.timestamp_ms, entry.conf) == expected


def test_carriage_returns_end_lines_too() -> None:
    crlf = OFFSETS_V1.replace(b"\n", b"\r\n") + b"\r\n"
    assert OFFSET_FORMAT.deserialize(crlf, "") == OFFSET_FORMAT.deserialize(OFFSETS_V1, "")
    assert COMMIT_FORMAT.deserialize(b'v1\r{"nextBatchWatermarkMs":3}', "").next_watermark_ms == 3


def test_unicode_line_separators_do_not_end_lines() -> None:
    offsets = ('{"path":"a\u2028b\x85c"}', "c\x1cd")  # the last one must be escaped in JSON
    data = OFFSET_FORMAT.serialize(OffsetEntry(1, offsets))
    assert OFFSET_FORMAT.deserialize(data, "").offsets == offsets


def test_a_future_version_names_what_is_known_and_what_was_found() -> None:
    log = OffsetLog(MemoryFiles({"0": (b"v99999", 0)}))
    with pytest.raises(UnsupportedVersionError, match="newer release of Spark") as caught:
        log.get(0)
    assert (caught.value.version, caught.value.newest) == (99999, 2)
    commits = CommitLog(MemoryFiles({"0": (b"v4\n{}", 0)}))
    with pytest.raises(UnsupportedVersionError) as caught:
        commits.get(0)
    assert (caught.value.version, caught.value.newest) == (4, 3)


def test_no_part_of_an_offset_entry_may_break_its_line() -> None:
    for bad in ("1\n2", "1\r2"):
        with pytest.raises(OptionError, match="line break"):
            OffsetEntry(1, (bad,))
    for name in ("a:b", "a\nb"):
        with pytest.raises(OptionError, match="colon"):
            OffsetEntry(2, {name: "1"})
    assert OffsetEntry(2, {"a": '{"t":{"0":1}}'}).offsets == {"a": '{"t":{"0":1}}'}


def test_a_commit_of_version_3_has_one_active_sink_and_its_past() -> None:
    entry = COMMIT_FORMAT.deserialize(COMMIT_V3, "")
    assert entry.active_sink == SinkMetadata("mysink", "-", "org.example.NoopTable$", "DSv2")
    past = SinkMetadata("old", '{"logOffset":1}', "org.example.Old", "DSv1", is_active=False)
    both = CommitEntry(3, 7, None, {"old": past, "mysink": entry.active_sink})
    again = COMMIT_FORMAT.deserialize(COMMIT_FORMAT.serialize(both), "")
    assert again == both
    assert again.active_sink == entry.active_sink


@pytest.mark.parametrize("active", [(), (False,), (True, True)])
def test_a_commit_of_version_3_without_exactly_one_active_sink_is_refused(
    active: tuple[bool, ...],
) -> None:
    sinks = {str(i): SinkMetadata(str(i), "-", "p", "DSv2", on) for i, on in enumerate(active)}
    with pytest.raises(OptionError, match="exactly one active sink"):
        CommitEntry(3, 0, None, sinks)


@pytest.mark.parametrize("sinks", [b"", b',"sinkMetadataMap":{}'])
def test_a_file_of_version_3_without_a_sink_is_malformed(sinks: bytes) -> None:
    with pytest.raises(MalformedFileError, match="exactly one active sink"):
        COMMIT_FORMAT.deserialize(b'v3\n{"nextBatchWatermarkMs":0' + sinks + b"}", "commits/0")


def test_a_commit_of_version_1_takes_no_state_ids_but_none_or_empty() -> None:
    with pytest.raises(OptionError, match="version 1 cannot hold state ids"):
        CommitEntry(1, 0, {0: (("a",),)})
    assert CommitEntry(1, 0, None).version == CommitEntry(1, 0, {}).version == 1
    assert COMMIT_FORMAT.serialize(CommitEntry(1, 3, {})) == b'v1\n{"nextBatchWatermarkMs":3}'
    with pytest.raises(OptionError, match="cannot hold sinks"):
        CommitEntry(2, 0, None, {"a": SinkMetadata("a", "-", "p", "DSv2")})
    with pytest.raises(OptionError, match="1, 2 or 3"):
        CommitEntry(4)


def test_a_commit_may_be_its_version_alone() -> None:
    for data in (b"v1", b"v1\n", b" v1 \n{}"):
        assert COMMIT_FORMAT.deserialize(data, "") == CommitEntry(1, 0)


MALFORMED = {
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbf" + OFFSETS_V1,
    "NaN": b'v1\n{"batchWatermarkMs":NaN,"nextBatchWatermarkMs":NaN}',
    "infinite": b'v1\n{"batchWatermarkMs":1e999,"nextBatchWatermarkMs":1e999}',
    "beyond 64 bits": b'v1\n{"batchWatermarkMs":9223372036854775808,'
    b'"nextBatchWatermarkMs":9223372036854775808}',
    "too many digits": b'v1\n{"x":' + b"1" * 5000 + b"}",
    "nested deeply": b'v1\n{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "half a surrogate": b'v1\n{"x":"\\ud800"}',
    "text for a number": b'v1\n{"batchWatermarkMs":"1","nextBatchWatermarkMs":"1"}',
    "a key twice": b'v1\n{"x":1,"x":2}',
    "truth for a number": b'v1\n{"batchWatermarkMs":true,"nextBatchWatermarkMs":true}',
}


@pytest.mark.parametrize("what", MALFORMED)
def test_bad_bytes_are_a_malformed_file_that_is_named(what: str) -> None:
    for log in (OffsetLog, CommitLog):
        files = MemoryFiles({"7": (MALFORMED[what], 0)})
        with pytest.raises(MalformedFileError) as caught:
            log(files).get(7)
        assert caught.value.path == "memory:/7"
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "data",
    [
        b"v1",
        b'v1\n{"conf":[]}',
        b'v1\n{"conf":{"k":null}}',
        b'v1\n{"conf":{"k":true}}',
        b'v1\n{"conf":{"k":{}}}',
        b"v2\n\n0:1",
        b"v2\n{}\nno colon",
        b'v2\n{"sourceMetadataInfo":{"a":1}}\n0:1',
        b'v2\n{"sourceMetadataInfo":{"a":{"sourceId":1}}}\n0:1',
        b'v2\n{"controlBatchInfo":{}}\n0:1',
        b'v2\n{"controlBatchInfo":[]}\n0:1',
    ],
)
def test_an_offset_file_that_breaks_a_rule_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        OFFSET_FORMAT.deserialize(data, "offsets/0")


@pytest.mark.parametrize(
    "data",
    [
        b"v1\n\n",
        b'v2\n{"stateUniqueIds":[]}',
        b'v2\n{"stateUniqueIds":{"x":[]}}',
        b'v2\n{"stateUniqueIds":{"0":1}}',
        b'v2\n{"stateUniqueIds":{"0":["a"]}}',
        b'v2\n{"stateUniqueIds":{"0":[[1]]}}',
        b'v3\n{"sinkMetadataMap":{"a":1}}',
        b'v3\n{"sinkMetadataMap":{"a":{"sinkName":"a"}}}',
        COMMIT_V3.replace(b"true", b'"yes"'),
    ],
)
def test_a_commit_file_that_breaks_a_rule_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        COMMIT_FORMAT.deserialize(data, "commits/0")


def test_json_is_escaped_as_jackson_escapes_it() -> None:
    assert to_json('"\\/\b\t\n\f\r\x00\x0b\x1f\x7fé\u2028😀 \\u001f') == (
        '"\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u000B\\u001F\x7fé\u2028😀 \\\\u001f"'
    )


def test_the_query_id_written_is_the_query_id_read() -> None:
    files = MemoryFiles()
    assert QueryMetadata.read(files) is None
    metadata = QueryMetadata("53b62e34-0476-452d-8313-c1786e091891")
    metadata.write(files)
    assert files.read("metadata") == b'{"id":"53b62e34-0476-452d-8313-c1786e091891"}'
    assert QueryMetadata.read(files) == metadata
    with pytest.raises(ConcurrentUpdateError):
        QueryMetadata("d366a8bf-db79-42ca-b5a4-d9ca0a11d63e").write(files)
    assert QueryMetadata.read(files) == metadata


@pytest.mark.parametrize("data", [b"", b"{}", b'{"id":1}', b'{"id":"x"}', b"\xff", b'{"id":null}'])
def test_a_query_id_that_is_none_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFileError, match="metadata"):
        QueryMetadata.read(MemoryFiles({"metadata": (data, 0)}))


OPERATOR_V1 = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"stateStoreInfo":'
    b'[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}'
)
OPERATOR_V2 = (
    b'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"transformWithStateInPandasExec"},'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3,'
    b'"stateSchemaFilePaths":["file:/ckpt/state/0/_stateSchema/default/0_abc"]}],'
    b'"operatorPropertiesJson":"{\\"timeMode\\":\\"ProcessingTime\\"}"}'
)


def test_initial_kafka_offsets_begin_with_a_zero_byte_and_a_version() -> None:
    log = KafkaInitialOffsetLog(MemoryFiles())
    entry = KafkaInitialOffsets({"topicA": {0: 23, 1: -1}})
    assert log.add(0, entry)
    assert log.files.read("0") == b'\x00v1\n{"topicA":{"0":23,"1":-1}}'
    assert log.get(0) == entry


def test_initial_kafka_offsets_of_spark_2_1_have_a_length_and_no_version() -> None:
    data = b'\x32{"kafka-initial-offset-2-1-0":{"2":2,"1":1,"0":0}}'
    entry = KAFKA_INITIAL_OFFSET_FORMAT.deserialize(data, "")
    assert entry == KafkaInitialOffsets(
        {"kafka-initial-offset-2-1-0": {2: 2, 1: 1, 0: 0}}, legacy=True
    )
    assert KAFKA_INITIAL_OFFSET_FORMAT.serialize(entry) == data


def test_kafka_offsets_of_a_future_version_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="v99999"):
        KAFKA_INITIAL_OFFSET_FORMAT.deserialize(b'0v99999\n{"t":{"0":0}}', "sources/0/0")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00v1",
        b"\x00vx\n{}",
        b"\x00v1\n",
        b"\x00v1\n[]",
        b'\x00v1\n{"t":1}',
        b'\x00v1\n{"t":{"x":1}}',
        b'\x00v1\n{"t":{"0":"1"}}',
        b'\x00v1\n{"t":{"0":true}}',
        b'\x00v1\n{"t":{"0":9223372036854775808}}',
        b"\x00v1\n\xff",
    ],
)
def test_bad_kafka_offsets_are_a_malformed_file_that_is_named(data: bytes) -> None:
    with pytest.raises(MalformedFileError) as caught:
        KAFKA_INITIAL_OFFSET_FORMAT.deserialize(data, "sources/0/0")
    assert caught.value.path == "sources/0/0"


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n", b"v1\nx", b"17", b"v1\n1.5", b"\xff"])
def test_a_bad_creation_time_is_a_malformed_file(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        RATE_FORMAT.deserialize(data, "sources/0/0")


def test_the_log_of_a_source_is_told_by_its_content() -> None:
    kafka = MemoryFiles({"0": (b'\x00v1\n{"t":{"0":1}}', 0)})
    assert isinstance(open_source_log(kafka), KafkaInitialOffsetLog)
    old_kafka = MemoryFiles({"0": (b'\x0d{"t":{"0":1}}', 0)})
    assert isinstance(open_source_log(old_kafka), KafkaInitialOffsetLog)
    rate = MemoryFiles({"0": (b"v1\n1794772382725", 0)})
    assert isinstance(open_source_log(rate), RateLog)
    line = b'v1\n{"path":"/a","timestamp":1,"batchId":0}'
    assert isinstance(open_source_log(MemoryFiles({"0": (line, 0)})), FileSourceLog)
    assert isinstance(open_source_log(MemoryFiles({"0": (b"v1", 0)})), FileSourceLog)
    assert isinstance(open_source_log(MemoryFiles({"0.compact": (line, 0)})), FileSourceLog)
    many = MemoryFiles({"4": (b"v1", 0), "9.compact": (line, 0)})
    assert isinstance(open_source_log(many), FileSourceLog)
    assert open_source_log(MemoryFiles()) is None


def test_keys_of_a_store_that_nobody_knows_stay_where_they_were() -> None:
    data = OPERATOR_V2.replace(
        b'"stateSchemaFilePaths":["file:/ckpt/state/0/_stateSchema/default/0_abc"]',
        b'"stateSchemaFilePath":"file:/ckpt/schema","numColsPrefixKey2":1',
    )
    assert OPERATOR_FORMAT.serialize(OPERATOR_FORMAT.deserialize(data, "")) == data


def test_operator_metadata_of_version_1_has_no_schema_paths() -> None:
    with pytest.raises(OptionError):
        OperatorMetadata(1, 0, "x", (), "{}")
    with pytest.raises(OptionError):
        OperatorMetadata(1, 0, "x", (StoreMetadata("default", 0, 1, ("a",)),))
    with pytest.raises(OptionError):
        OperatorMetadata(3, 0, "x", ())


def test_the_operator_metadata_in_force_is_the_newest_not_above_the_batch() -> None:
    assert newest_at([0, 4, 9], 8) == 4
    assert newest_at([0, 4, 9], None) == 9
    assert newest_at([4], 3) is None
    files = MemoryFiles()
    log = OperatorMetadataLog(files.at("state/0/_metadata/v2"))
    for batch_id in (0, 4):
        log.add(batch_id, OperatorMetadata(2, 0, f"as of {batch_id}", ()))
    files.create("state/1/_metadata/metadata", OPERATOR_V1)
    files.create("state/2/0/1.delta", b"")
    files.create("state/_odd/x", b"")
    assert list_operators(files) == [0, 1, 2]
    found = [read_operator(files, 0, batch_id) for batch_id in (3, 4, None)]
    assert [entry and entry.operator_name for entry in found] == ["as of 0", "as of 4", "as of 4"]
    assert read_operator(files, 1) == OPERATOR_FORMAT.deserialize(OPERATOR_V1, "")
    assert read_operator(files, 2) is None
