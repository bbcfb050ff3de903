"""The logs of the Kafka and rate sources, and operator metadata."""

from __future__ import annotations

import pytest

from epochal.checkpoint.file_log import (
    KAFKA_INITIAL_OFFSET_FORMAT,
    RATE_FORMAT,
    FileSourceLog,
    KafkaInitialOffsetLog,
    KafkaInitialOffsets,
    RateLog,
    open_source_log,
)
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    OperatorMetadataLog,
    StoreMetadata,
    list_operators,
    newest_at,
    read_operator,
)
from epochal.errors import MalformedFileError, OptionError, UnsupportedVersionError
from epochal.testing.files import MemoryFiles

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
