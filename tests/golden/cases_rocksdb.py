"""RocksDB state: zip only, changelogs, unique ids, and several operators on them."""

from tests.golden.cases_aggregate import distinct_in_time, sessions, windowed_counts
from tests.golden.inputs import over_events
from tests.golden.shape import CHANGELOG, ROCKSDB, UNIQUE_IDS, Read

CASES = (
    over_events(
        "rocksdb_zip",
        "RocksDB, every version a zip",
        windowed_counts,
        conf=ROCKSDB,
        reads=(Read(),),
    ),
    over_events(
        "rocksdb_changelog",
        "RocksDB with changelogs and a zip every few versions",
        windowed_counts,
        conf=CHANGELOG,
    ),
    over_events(
        "rocksdb_v2",
        "RocksDB checkpoint format 2: unique ids in names and in the commit log, changelogs",
        windowed_counts,
        conf={**CHANGELOG, **UNIQUE_IDS},
        since="4.0",
    ),
    over_events(
        "rocksdb_v2_zip",
        "RocksDB checkpoint format 2 without changelogs",
        windowed_counts,
        conf={**ROCKSDB, **UNIQUE_IDS},
        reads=(Read(),),
        since="4.0",
    ),
    over_events(
        "rocksdb_retention",
        "as `rocksdb_changelog`, keeping 2 batches: old zips, SSTs and changelogs are gone",
        windowed_counts,
        conf={
            **CHANGELOG,
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
        },
        reads=(Read(),),
    ),
    over_events(
        "rocksdb_checksum",
        "RocksDB with changelogs and a checksum in every row",
        windowed_counts,
        conf={**CHANGELOG, "spark.sql.streaming.stateStore.rowChecksum.enabled": "true"},
        since="4.1",
    ),
    over_events(
        "rocksdb_zstd",
        "RocksDB changelogs compressed by zstd",
        windowed_counts,
        conf={**CHANGELOG, "spark.sql.streaming.stateStore.compression.codec": "zstd"},
    ),
    over_events(
        "rocksdb_session",
        "session windows on RocksDB: keys stored for prefix scans",
        sessions,
        session_keys=1,
        conf=CHANGELOG,
    ),
    over_events(
        "rocksdb_dedup",
        "dropDuplicates with eviction on RocksDB, without changelogs",
        distinct_in_time,
        conf=ROCKSDB,
        reads=(Read(),),
    ),
)
