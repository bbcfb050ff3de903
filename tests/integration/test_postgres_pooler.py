"""The PostgreSQL sink behind a real PgBouncer, whose clients share the server's sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from tests.integration.test_postgres_sink import (
    ROWS,
    Place,
    outlive_a_hanging_driver,
    prepared,
    row,
)
from tests.rigs.pgbouncer import running_pgbouncer
from tests.rigs.postgres import Postgres

from epochal.errors import PostgresFencedError

SESSIONS = {"transaction": 1, "session": 10}
"""In transaction mode all clients of these tests have one session of the server together."""


@pytest.fixture(scope="module", params=SESSIONS)
def pooler(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[str]:
    mode = str(request.param)
    with running_pgbouncer(postgres, mode, sessions=SESSIONS[mode]) as url:
        yield url


def test_queries_that_share_sessions_write_all_their_epochs(
    postgres: Postgres, pooler: str, tmp_path: Path
) -> None:
    """Two queries of each mode take turns, and a client of its own leaves the session untidy."""
    modes = {"append": "", "update": "id", "complete": ""}
    with ExitStack() as stack:
        opened = []
        for number, (mode, keys) in enumerate([*modes.items(), *modes.items()]):
            folder = tmp_path / str(number)
            folder.mkdir()
            place = Place(postgres, folder)
            options = {"url": pooler, **({"mergeKeys": keys} if keys else {})}
            sink = stack.enter_context(closing(place.open(ROWS, mode, **options)))
            sink.fence(1)
            opened.append((mode, place, sink))
        for epoch in range(4):
            for _, _, sink in opened:
                rows = [row(epoch), row(9, f"v{epoch}")]
                sink.commit(epoch, prepared(sink, epoch, rows, [row(-1 - epoch)]))
            with psycopg.connect(pooler, autocommit=True) as other:
                other.execute("SELECT 1")
    for mode, place, _ in opened:
        found = place.rows()
        if mode == "append":
            assert found == sorted(
                f"{number}|{name}"
                for epoch in range(4)
                for number, name in ((epoch, "a"), (9, f"v{epoch}"), (-1 - epoch, "a"))
            )
        elif mode == "update":
            numbers = [*range(4), *range(-4, 0)]
            assert found == sorted(["9|v3", *(f"{number}|a" for number in numbers)])
        else:
            assert found == ["-4|a", "3|a", "9|v3"]
        assert place.marker() == f"1|3|public.{place.table}"


def test_an_earlier_attempt_behind_the_pooler_is_shut_out(
    postgres: Postgres, pooler: str, tmp_path: Path
) -> None:
    place = Place(postgres, tmp_path)
    with closing(place.open(url=pooler)) as old, closing(place.open(url=pooler)) as new:
        old.fence(1)
        old.commit(0, prepared(old, 0, [row(0)]))
        new.fence(2)
        with pytest.raises(PostgresFencedError):
            old.commit(1, prepared(old, 1, [row(100)]))
        new.commit(1, prepared(new, 1, [row(1)], attempt=2))
    assert place.rows() == ["0|a", "1|a"]


def test_a_driver_that_hangs_behind_the_pooler_is_ended(
    postgres: Postgres, pooler: str, tmp_path: Path
) -> None:
    # The driver that hangs has the only session of the pooler in transaction mode, so its successor
    # comes directly, as it would through another pooler.
    outlive_a_hanging_driver(Place(postgres, tmp_path), pooler)
