"""Names and settings of a state store, as Spark spells them."""

from __future__ import annotations

import pytest

from epochal.errors import OptionError
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId


def test_ids_are_written_as_spark_writes_them() -> None:
    store = StateStoreId("/c/state", 0, 1)
    assert str(store) == "StateStoreId[ operatorId=0, partitionId=1, storeName=default ]"
    assert str(StateStoreProviderId(store, "53b62e34-0476-452d-8313-c1786e091891")) == (
        "StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=1, "
        "storeName=default ], queryRunId=53b62e34-0476-452d-8313-c1786e091891 ]"
    )


def test_settings_are_read_by_sparks_keys() -> None:
    conf = StateStoreConf.from_spark(
        {
            "spark.sql.streaming.stateStore.compression.codec": "zstd",
            "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
            "spark.sql.streaming.minBatchesToRetain": "7",
            "spark.sql.streaming.stateStore.maintenanceInterval": "30s",
        }
    )
    assert conf == StateStoreConf(
        compression_codec="zstd",
        row_checksum_enabled=True,
        min_deltas_for_snapshot=3,
        min_versions_to_retain=7,
        maintenance_interval_ms=30_000,
    )


def test_a_codec_may_be_named_by_its_class() -> None:
    key = "spark.sql.streaming.stateStore.compression.codec"
    conf = StateStoreConf.from_spark({key: "org.apache.spark.io.SnappyCompressionCodec"})
    assert conf.compression_codec == "snappy"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.streaming.stateStore.compression.codec", "brotli"),
        ("spark.sql.streaming.stateStore.rowChecksum.enabled", "yes"),
        ("spark.sql.streaming.stateStore.minDeltasForSnapshot", "ten"),
        ("spark.sql.streaming.stateStore.maintenanceInterval", "1 fortnight"),
        ("spark.sql.streaming.minBatchesToRetain", "0"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(key: str, value: str) -> None:
    with pytest.raises(OptionError):
        StateStoreConf.from_spark({key: value})
