"""The PostgreSQL sink with a real server: fencing, markers, outages, and tables that do not fit."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from tests.contract.sinks import Logging, written
from tests.rigs.lossy_proxy import lossy_proxy
from tests.rigs.postgres import Postgres, running_postgres

from epochal.connectors.contract import Sink
from epochal.connectors.postgres import postgres_table
from epochal.connectors.postgres.postgres_sink import POSTGRES_OUTPUT
from epochal.connectors.postgres.postgres_table import FoundTable, TableName, find_table
from epochal.connectors.registry import open_sink
from epochal.connectors.staging.epoch_marker import Marker, token_of, unpack
from epochal.errors import (
    MarkerError,
    PostgresFencedError,
    PostgresRejectedError,
    PostgresRowError,
    PostgresUnavailableError,
    TableMismatchError,
)
from epochal.files.local import LocalFiles

COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string()}
ROWS = pa.schema(COLUMNS)
Row = Mapping[str, Any]


class Place:
    """A table, a checkpoint, and the query that uses them."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.server, self.query = server, str(uuid4())
        self.table = f"t_{uuid4().hex[:12]}"
        self.folder, self.checkpoint = folder, LocalFiles(folder, durable=False)

    def open(self, schema: pa.Schema = ROWS, mode: str = "append", /, **options: str) -> Sink:
        given = {"url": self.server.url, "dbtable": self.table, **options}
        sink = open_sink(
            *("postgres", given, schema),
            output_mode=mode,
            checkpoint=self.checkpoint,
            query_id=self.query,
        )
        return cast(Sink, Logging(sink, self.checkpoint))

    @contextmanager
    def started(
        self, attempt: int, schema: pa.Schema = ROWS, mode: str = "append", /, **options: str
    ) -> Iterator[Sink]:
        """A sink of this attempt."""
        with closing(self.open(schema, mode, **options)) as sink:
            sink.fence(attempt)
            yield sink

    def rows(self) -> list[str]:
        return sorted(self.server.rows(f'SELECT * FROM "{self.table}"'))

    def marker(self) -> str:
        found = "SELECT attempt, epoch, table_name FROM epochal_markers WHERE query_id = "
        return self.server.psql(f"{found}'{self.query}'")


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> Place:
    return Place(postgres, tmp_path)


def prepared(
    sink: Sink,
    epoch: int,
    *tasks: Sequence[Row],
    attempt: int = 1,
    schema: pa.Schema = ROWS,
    idle: bool = False,
) -> list[bytes]:
    """Write rows as tasks, with or without input; return their reports."""
    return written(sink, epoch, tasks, schema, attempt=attempt, idle=idle)


def row(number: int, name: str = "a") -> Row:
    return {"id": number, "name": name}


def test_an_attempt_that_is_shut_out_shows_nothing(place: Place) -> None:
    with closing(place.open()) as old, closing(place.open()) as new:
        old.fence(1)
        old.commit(0, prepared(old, 0, [row(0)]))
        new.fence(2)
        with pytest.raises(PostgresFencedError, match="another run has claimed"):
            old.commit(1, prepared(old, 1, [row(9)]))
        with pytest.raises(PostgresFencedError, match="has attempt 2, and this is attempt 1"):
            old.fence(1)
        assert not new.decided(1)
    assert place.rows() == ["0|a"]


def test_a_copy_of_the_checkpoint_with_the_same_attempt_is_shut_out_too(place: Place) -> None:
    with closing(place.open()) as one, closing(place.open()) as other:
        one.fence(1)
        other.fence(1)
        with pytest.raises(PostgresFencedError):
            one.commit(0, prepared(one, 0, [row(9)]))
        other.commit(0, prepared(other, 0, [row(0)]))
    assert place.rows() == ["0|a"]


def outlive_a_hanging_driver(place: Place, url: str) -> None:
    """A driver hangs in a transaction at `url`; its successor ends it and goes on."""
    with place.started(1, url=url) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
    with psycopg.connect(url) as zombie:
        lock = "SELECT 1 FROM epochal_markers WHERE query_id = %s FOR UPDATE"
        zombie.execute(lock, [place.query])
        zombie.execute(f"INSERT INTO {place.table} VALUES (9, 'zombie')")
        with place.started(2, lockTimeout="200 ms") as sink:
            sink.commit(1, prepared(sink, 1, [row(1)], attempt=2))
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
    assert place.rows() == ["0|a", "1|a"]


def test_a_driver_that_hangs_inside_its_transaction_is_ended(place: Place) -> None:
    outlive_a_hanging_driver(place, place.server.url)


def test_two_drivers_race_and_each_epoch_is_written_once(place: Place) -> None:
    """Both claim again and again; whoever has the claim writes epochs until it is shut out."""
    epochs = 40
    failures: list[BaseException] = []
    attempts = itertools.count(1)

    def drive(seed: int) -> None:
        rng = Random(seed)
        try:
            with closing(place.open()) as sink:
                transactions = cast(Any, sink)._sink._transactions
                newest = -1
                while newest < epochs - 1 and not failures:
                    with suppress(PostgresFencedError):
                        attempt = next(attempts)
                        found = transactions.claim(attempt)
                        newest = -1 if found is None else found.epoch
                        for epoch in range(newest + 1, epochs):
                            (message,) = prepared(sink, epoch, [row(epoch)], attempt=attempt)
                            staged = unpack(message, POSTGRES_OUTPUT.magic)
                            marker = Marker(epoch, token_of([message]))
                            transactions.write(marker, place.checkpoint, [staged])
                            newest = epoch
                    time.sleep(rng.uniform(0, 0.03))  # take over at a random time
        except BaseException as error:  # noqa: BLE001  raised by the test's thread
            failures.append(error)

    threads = [threading.Thread(target=drive, args=[seed]) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert place.rows() == sorted(f"{epoch}|a" for epoch in range(epochs))
    assert next(attempts) > 4, "both had their turns"


def test_a_table_that_another_driver_has_just_created_is_not_missing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()

    def look(connection: Any, name: TableName) -> FoundTable | None:
        found = find_table(connection, name)
        if next(looks) == 0:  # the other driver starts and writes right after our first look
            with place.started(1) as other:
                other.commit(0, prepared(other, 0, [row(0)]))
        return found

    monkeypatch.setattr(postgres_table, "find_table", look)
    with place.started(2) as sink:
        sink.commit(1, prepared(sink, 1, [row(1)], attempt=2))
    assert place.rows() == ["0|a", "1|a"]


def test_complete_mode_replaces_all_rows_and_readers_never_see_none(place: Place) -> None:
    with closing(place.open(ROWS, "complete")) as sink, psycopg.connect(place.server.url) as reader:
        sink.fence(1)
        sink.commit(0, prepared(sink, 0, [row(1), row(2)]))
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        count = f"SELECT count(*) FROM {place.table}"
        assert reader.execute(count).fetchone() == (2,)
        sink.commit(1, prepared(sink, 1, [row(1, "b")], [row(5)]))
        assert place.rows() == ["1|b", "5|a"]
        assert reader.execute(count).fetchone() == (2,), "an older snapshot keeps its rows"
        for epoch, tasks in enumerate(([], [row(1, "b"), row(5)]), start=2):
            sink.commit(epoch, prepared(sink, epoch, tasks, idle=True))
            assert place.rows() == ["1|b", "5|a"], "without input the result is the same"
            assert place.marker() == f"1|1|public.{place.table}"
        messages = prepared(sink, 4, [], [])
        assert not sink.decided(4)
        sink.commit(4, messages)
        assert (place.rows(), place.marker()) == ([], f"1|4|public.{place.table}")
        sink.commit(4, messages)
        sink.commit(5, prepared(sink, 5, [row(7)]))
        assert place.rows() == ["7|a"]


def test_a_missing_marker_stops_the_query_and_says_how_to_go_on(place: Place) -> None:
    with place.started(1) as sink:
        for epoch in range(3):
            sink.commit(epoch, prepared(sink, epoch, [row(epoch)]))
    place.server.psql(f"DELETE FROM epochal_markers WHERE query_id = '{place.query}'")
    with closing(place.open()) as sink:
        for _ in range(2):
            with pytest.raises(MarkerError, match=r"missing(.|\n)*resetMarker=2"):
                sink.fence(2)
    with closing(place.open(resetMarker="1")) as sink, pytest.raises(MarkerError):
        sink.fence(2)
    with place.started(2, resetMarker="2") as sink:
        sink.commit(3, prepared(sink, 3, [row(3)], attempt=2))
    assert place.rows() == ["0|a", "1|a", "2|a", "3|a"]


def test_a_server_that_has_lost_a_transaction_stops_the_query(place: Place) -> None:
    with place.started(1) as sink:
        for epoch in range(2):
            sink.commit(epoch, prepared(sink, epoch, [row(epoch)]))
        place.server.psql(
            f"UPDATE epochal_markers SET epoch = 0 WHERE query_id = '{place.query}';"
            f"DELETE FROM {place.table} WHERE id = 1"
        )
        with pytest.raises(MarkerError, match=r"shows epoch 0, but this run has written epoch 1"):
            sink.commit(2, prepared(sink, 2, [row(2)]))
    with closing(place.open()) as sink, pytest.raises(MarkerError, match=r"restored from a backup"):
        sink.fence(2)
    assert place.rows() == ["0|a"]


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that tests may kill."""
    with running_postgres() as running:
        yield running


def test_a_commit_waits_for_a_server_that_restarts(mortal: Postgres, tmp_path: Path) -> None:
    place = Place(mortal, tmp_path)
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
        mortal.kill()
        restart = threading.Timer(0.5, mortal.start)
        restart.start()
        sink.commit(1, prepared(sink, 1, [row(1)]))
        restart.join()
        sink.commit(2, prepared(sink, 2, [row(2)]))
    assert place.rows() == ["0|a", "1|a", "2|a"]


def test_a_server_that_stays_away_is_an_error_after_a_while(
    mortal: Postgres, tmp_path: Path
) -> None:
    place = Place(mortal, tmp_path)
    with place.started(1, serverTimeout="300 ms") as sink:
        mortal.kill()
        try:
            with pytest.raises(PostgresUnavailableError, match="is unavailable"):
                sink.commit(0, prepared(sink, 0, [row(0)]))
            with pytest.raises(PostgresUnavailableError, match="is unavailable"):
                place.open(serverTimeout="300 ms")
        finally:
            mortal.start()
        sink.fence(2)
        sink.commit(0, prepared(sink, 0, [row(0)], attempt=2))
    assert place.rows() == ["0|a"]


def test_a_start_waits_for_a_server_that_is_not_up_yet(mortal: Postgres, tmp_path: Path) -> None:
    place = Place(mortal, tmp_path)
    mortal.kill()
    start = threading.Timer(0.5, mortal.start)
    start.start()
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
    start.join()
    assert place.rows() == ["0|a"]


def test_an_answer_that_was_lost_does_not_repeat_the_epoch(place: Place) -> None:
    with lossy_proxy(place.server.port) as proxy:
        url = place.server.url.replace(str(place.server.port), str(proxy.port))
        with place.started(1, url=url) as sink:
            sink.commit(0, prepared(sink, 0, [row(0)]))
            proxy.lose(b"COMMIT")
            sink.commit(1, prepared(sink, 1, [row(1)]))
            assert proxy.lost == 1
            proxy.lose(b"COPY")
            sink.commit(2, prepared(sink, 2, [row(2)]))
            assert proxy.lost == 2
    assert place.rows() == ["0|a", "1|a", "2|a"]


def test_a_session_that_the_server_ends_is_replaced(place: Place) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
    with place.started(1, **{"connection.application_name": place.table}) as sink:
        for epoch in range(3):
            sink.commit(epoch, prepared(sink, epoch, [row(epoch)]))
            place.server.psql(f"{end}'{place.table}'")
    assert place.rows() == ["0|a", "1|a", "2|a"]


def test_a_table_that_was_dropped_is_not_made_again_without_its_rows(place: Place) -> None:
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
        place.server.psql(f"DROP TABLE {place.table}")
        with pytest.raises(PostgresRejectedError, match=r"does not exist.*Was it dropped"):
            sink.commit(1, prepared(sink, 1, [row(1)]))
    with pytest.raises(PostgresRejectedError, match=r"does not exist, but .* epochs up to 0"):
        place.open()
    place.server.psql(f"CREATE TABLE {place.table} (id bigint, name text)")
    with place.started(2) as sink:
        sink.commit(1, prepared(sink, 1, [row(1)], attempt=2))
    assert place.rows() == ["1|a"]


def test_a_table_that_does_not_fit_is_refused_at_the_start(place: Place) -> None:
    with pytest.raises(PostgresRejectedError, match="does not exist, and createTable is false"):
        place.open(createTable="false")
    place.server.psql(f"CREATE TABLE {place.table} (id integer, other text NOT NULL)")
    with pytest.raises(TableMismatchError) as refusal:
        place.open()
    for part in (
        "but integer in the table",
        "name (text) does not exist",
        "other (text) must have",
    ):
        assert part in str(refusal.value)
    place.server.psql(f"DROP TABLE {place.table}; CREATE VIEW {place.table} AS SELECT 1 AS id")
    with pytest.raises(PostgresRejectedError, match="is a view"):
        place.open()


def test_keys_without_a_unique_index_are_refused_at_the_start(place: Place) -> None:
    place.server.psql(
        f"CREATE TABLE {place.table} (id bigint, name text);"
        f"CREATE UNIQUE INDEX ON {place.table} (id) WHERE id > 0;"
        f"CREATE UNIQUE INDEX ON {place.table} (id, name)"
    )
    with pytest.raises(PostgresRejectedError, match=r"CREATE UNIQUE INDEX ON .* \(\"id\"\)"):
        place.open(ROWS, "update", mergeKeys="id")
    place.server.psql(f"CREATE UNIQUE INDEX ON {place.table} (id) INCLUDE (name)")
    place.open(ROWS, "update", mergeKeys="id").close()


def test_a_row_that_breaks_a_constraint_is_named_and_nothing_is_written(place: Place) -> None:
    place.server.psql(
        f"CREATE TABLE {place.table} (id bigint PRIMARY KEY, name varchar(3) CHECK (name <> 'no'))"
    )
    cases = {
        r"Key \(id\)=\(0\) already exists(.|\n)*mergeKeys": row(0),
        r"Failing row contains \(7, no\)": row(7, "no"),
    }
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
        for said, bad in cases.items():
            messages = prepared(sink, 1, [row(1)], [bad])
            with pytest.raises(PostgresRowError, match=said) as refusal:
                cast(Any, sink)._sink.commit(1, messages)
            assert place.table in str(refusal.value)
            assert place.rows() == ["0|a"]
        for said, bad in {
            r"column name is 'a\\x00b'.*no zero byte": row(1, "a\0b"),
            r"column name is 'long', which is too long for character varying\(3\)": row(1, "long"),
            r"column id is null": {"id": None, "name": "a"},
        }.items():
            with pytest.raises(PostgresRowError, match=said):
                prepared(sink, 1, [bad])
        sink.commit(1, prepared(sink, 1, [row(1)]))
    assert place.rows() == ["0|a", "1|a"]


def test_a_user_with_few_rights_is_told_which_are_missing(place: Place) -> None:
    user = f"u_{uuid4().hex[:8]}"
    url, table = place.server.url_of(user), place.table
    place.server.psql(f"CREATE ROLE {user} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    markers = f"m_{uuid4().hex[:8]}"
    with pytest.raises(PostgresRejectedError, match="permission denied for schema public"):
        place.open(url=url, markerTable=markers)
    with closing(place.open(markerTable=markers)) as sink:  # the owner makes both tables
        sink.fence(0)
    with pytest.raises(PostgresRejectedError, match=f"lacks INSERT on table public.{table}"):
        place.open(url=url, markerTable=markers)
    place.server.psql(f"GRANT INSERT ON {table} TO {user}")
    denied = pytest.raises(PostgresRejectedError, match=f"permission denied for table {markers}")
    with closing(place.open(url=url, markerTable=markers)) as sink, denied:
        sink.fence(1)
    place.server.psql(f"GRANT SELECT, INSERT, UPDATE ON {markers} TO {user}")
    with place.started(1, url=url, markerTable=markers) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
    with pytest.raises(PostgresRejectedError, match=f"lacks DELETE on table public.{table}"):
        place.open(ROWS, "complete", url=url, markerTable=markers)
    assert place.rows() == ["0|a"]


def test_a_wrong_password_ends_the_start_and_is_nowhere_to_be_read(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.server.psql(
        "DO $$ BEGIN CREATE ROLE asked LOGIN SUPERUSER PASSWORD 's3cret'; "
        "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    file = place.folder.parent / f"password-{uuid4().hex}"
    with pytest.raises(PostgresRejectedError, match="password authentication failed") as refusal:
        place.open(url=place.server.url_of("asked"), password="wr0ng")
    file.write_text("s3cret\n")
    with place.started(1, url=place.server.url_of("asked"), passwordFile=str(file)) as sink:
        sink.commit(0, prepared(sink, 0, [row(0)] * 5_000, [row(1)]))
        sink.commit(1, prepared(sink, 1, [row(2)]))
    told = [str(refusal.value), caplog.text]
    kept = [path.read_bytes() for path in place.folder.rglob("*") if path.is_file()]
    assert kept
    for secret in ("s3cret", "wr0ng"):
        assert not any(secret in text for text in told)
        assert not any(secret.encode() in data for data in kept)


TYPES: dict[str, tuple[pa.DataType, Any, str]] = {
    "i1": (pa.int8(), -128, "-128"),
    "i2": (pa.int16(), 32767, "32767"),
    "i4": (pa.int32(), -(2**31), "-2147483648"),
    "i8": (pa.int64(), 2**63 - 1, "9223372036854775807"),
    "f4": (pa.float32(), 1.5, "1.5"),
    "f8": (pa.float64(), 0.1, "0.1"),
    "nan": (pa.float64(), float("nan"), "NaN"),
    "inf": (pa.float64(), float("-inf"), "-Infinity"),
    "dec": (pa.decimal128(38, 18), Decimal("-1.000000000000000001"), "-1.000000000000000001"),
    "small": (pa.decimal128(10, 9), Decimal("0.000000001"), "0.000000001"),
    "s": (pa.string(), 'é "quoted", \\. back\\slash', 'é "quoted", \\. back\\slash'),
    "empty": (pa.string(), "", ""),
    "null": (pa.string(), None, "∅"),
    "b": (pa.binary(), b"\x00\xff\\", "\\x00ff5c"),
    "yes": (pa.bool_(), True, "true"),
    "d": (pa.date32(), date(2026, 2, 28), "2026-02-28"),
    "late": (pa.date32(), date(9999, 12, 31), "9999-12-31"),
    "ts": (
        pa.timestamp("us", "Europe/Berlin"),
        datetime(2026, 7, 1, 12, 0, 0, 123456, UTC),
        "2026-07-01 12:00:00.123456+00",
    ),
    "ntz": (pa.timestamp("us"), datetime(1, 1, 1), "0001-01-01 00:00:00"),  # noqa: DTZ001
    "tm": (pa.time64("us"), time_of_day(23, 59, 59, 999999), "23:59:59.999999"),
    "iv": (pa.duration("us"), timedelta(days=-3, microseconds=5), "-71:59:59.999995"),
    "ints": (pa.list_(pa.int64()), [1, None, 3], "{1,NULL,3}"),
    "texts": (pa.list_(pa.string()), ['a"b', "c\\d", "", None, "NULL"], ""),
    "times": (pa.list_(pa.date32()), [date(2026, 1, 1)], "{2026-01-01}"),
    "raws": (pa.list_(pa.binary()), [b"\x01"], '{"\\\\x01"}'),
    "nested": (pa.list_(pa.list_(pa.int32())), [[1], [2, 3]], "[[1], [2, 3]]"),
    "st": (
        pa.struct([("x", pa.int32()), ("s", pa.string()), ("dec", pa.decimal128(5, 2))]),
        {"x": 1, "s": "\n\"'", "dec": Decimal("1.50")},
        '{"s": "\\n\\"\'", "x": 1, "dec": 1.50}',
    ),
    "m": (pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)], '{"k": 1, "l": null}'),
}


def test_every_type_arrives_as_it_was(place: Place) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _, _) in TYPES.items()])
    values = {name: value for name, (_, value, _) in TYPES.items()}
    nulls = dict.fromkeys(TYPES)
    with place.started(1, schema) as sink:
        sink.commit(0, prepared(sink, 0, [values], [nulls, values], schema=schema))
    with psycopg.connect(place.server.url) as reader:
        reader.execute("SET TimeZone = 'UTC'")
        reader.execute("SET IntervalStyle = 'postgres'")
        columns = ", ".join(f"coalesce(\"{name}\"::text, '∅')" for name in TYPES)
        found = reader.execute(f"SELECT {columns} FROM {place.table}").fetchall()
        texts = reader.execute(f"SELECT texts FROM {place.table}").fetchall()
    expected = {name: text for name, (_, _, text) in TYPES.items()}
    for number in (0, 2):
        assert {**dict(zip(TYPES, found[number], strict=True)), "texts": ""} == expected
    assert set(found[1]) == {"∅"}
    assert texts[0] == (['a"b', "c\\d", "", None, "NULL"],)


def test_rows_fit_existing_columns_of_other_types(place: Place) -> None:
    place.server.psql(
        f"CREATE TYPE mood_{place.table} AS ENUM ('ok');"
        f"CREATE DOMAIN word_{place.table} AS text CHECK (value <> 'x');"
        f"CREATE TABLE {place.table} (n bigserial, j jsonb, l json, u uuid, m mood_{place.table},"
        f' w word_{place.table}, "Big" numeric, at timestamptz DEFAULT now())'
    )
    kinds: dict[str, pa.DataType] = {
        "u": pa.string(),
        "m": pa.string(),
        "w": pa.string(),
        "big": pa.int64(),
        "j": pa.string(),
        "l": pa.list_(pa.int32()),
    }
    schema = pa.schema(kinds)
    given = {"u": str(uuid4()), "m": "ok", "w": "y", "big": 7, "j": '{"a": [1]}', "l": [1, None]}
    with place.started(1, schema, "append", dbtable=f'public."{place.table}"') as sink:
        sink.commit(0, prepared(sink, 0, [given, {**given, "big": 8}], schema=schema))
    read = f'SELECT json_build_array(n, j, l, u, m, w, "Big") FROM {place.table} ORDER BY n LIMIT 1'
    assert json.loads(place.server.psql(read)) == [
        *(1, {"a": [1]}, [1, None], given["u"], "ok", "y", 7)
    ]


def test_a_full_disk_is_waited_for_and_then_told(place: Place) -> None:
    """A trigger that raises the server's own error stands for the disk."""
    with place.started(1, serverTimeout="300 ms") as sink:
        sink.commit(0, prepared(sink, 0, [row(0)]))
        place.server.psql(
            f"CREATE FUNCTION full_{place.table}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'could not extend file: No space left on device' "
            "USING ERRCODE = 'disk_full'; END $$;"
            f"CREATE TRIGGER no_room BEFORE INSERT ON {place.table} FOR EACH ROW "
            f"EXECUTE FUNCTION full_{place.table}()"
        )
        with pytest.raises(PostgresUnavailableError, match="No space left"):
            cast(Any, sink)._sink.commit(1, prepared(sink, 1, [row(1)]))
        place.server.psql(f"DROP TRIGGER no_room ON {place.table}")
        sink.commit(1, prepared(sink, 1, [row(1)]))
    assert place.rows() == ["0|a", "1|a"]
