"""RocksDB state: zip only, changelogs, unique ids, and several operators on them."""

from tests.golden.cases_aggregate import distinct_in_time, sessions, windowed_counts
from tests.golden.inputs import events
from tests.golden.shape import CHANGELOG, ROCKSDB, UNIQUE_IDS, Case, Read

CASES = (
    Case(
        name="rocksdb_zip",
        about="RocksDB, every version a zip",
        query=windowed_counts,
        files=events("events"),
        conf=ROCKSDB,
        reads=(Read(),),
    ),
    Case(
        name="rocksdb_changelog",
        about="RocksDB with changelogs and a zip every few versions",
        query=windowed_counts,
        files=events("events"),
        conf=CHANGELOG,
        reads=(Read(changes=True),),
    ),
    Case(
        name="rocksdb_v2",
        about="RocksDB checkpoint format 2: unique ids in names and in the commit log, changelogs",
        query=windowed_counts,
        files=events("events"),
        conf={**CHANGELOG, **UNIQUE_IDS},
        reads=(Read(changes=True),),
        since="4.0",
    ),
    Case(
        name="rocksdb_v2_zip",
        about="RocksDB checkpoint format 2 without changelogs",
        query=windowed_counts,
        files=events("events"),
        conf={**ROCKSDB, **UNIQUE_IDS},
        reads=(Read(),),
        since="4.0",
    ),
    Case(
        name="rocksdb_retention",
        about="as `rocksdb_changelog`, keeping 2 batches: old zips, SSTs and changelogs are gone",
        query=windowed_counts,
        files=events("events"),
        conf={
            **CHANGELOG,
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
        },
        reads=(Read(),),
    ),
    Case(
        name="rocksdb_checksum",
        about="RocksDB with changelogs and a checksum in every row",
        query=windowed_counts,
        files=events("events"),
        conf={**CHANGELOG, "spark.sql.streaming.stateStore.rowChecksum.enabled": "true"},
        reads=(Read(changes=True),),
        since="4.1",
    ),
    Case(
        name="rocksdb_zstd",
        about="RocksDB changelogs compressed by zstd",
        query=windowed_counts,
        files=events("events"),
        conf={**CHANGELOG, "spark.sql.streaming.stateStore.compression.codec": "zstd"},
        reads=(Read(changes=True),),
    ),
    Case(
        name="rocksdb_session",
        about="session windows on RocksDB: keys stored for prefix scans",
        query=sessions,
        session_keys=1,
        files=events("events"),
        conf=CHANGELOG,
        reads=(Read(changes=True),),
    ),
    Case(
        name="rocksdb_dedup",
        about="dropDuplicates with eviction on RocksDB, without changelogs",
        query=distinct_in_time,
        files=events("events"),
        conf=ROCKSDB,
        reads=(Read(),),
    ),
)
