"""The responses that the page gets, for a checkpoint that Spark wrote and a run with a journal."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route
from tests.golden.library import Golden, unpack
from tests.unit.dashboard.asgi import Answer, ask
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.dashboard.app import SCRIPTS, STATIC, Dashboard
from epochal.dashboard.board import Board
from epochal.dashboard.health import Health, HealthMonitor
from epochal.metrics.run_journal import JournalWriter
from epochal.metrics.run_records import RunEnded
from epochal.testing.clock import ManualClock

Tree = dict[str, tuple[int, int, int]]


def tree(root: Path) -> Tree:
    """Every file and directory with its size, times and inode."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        stat = os.lstat(path)
        found[str(path)] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


class World:
    """A running query on a golden checkpoint, a second checkpoint, and the page over both."""

    def __init__(self, tmp_path: Path, case: str = "chained") -> None:
        self.checkpoint = unpack(Golden("4.3.0", case), tmp_path / "one").checkpoint
        self.other = unpack(Golden("4.3.0", "rate"), tmp_path / "two").checkpoint
        self.runs, self.clock = tmp_path / "runs", ManualClock()
        run = msgspec.structs.replace(RUN, checkpoint=str(self.checkpoint))
        self.writer = JournalWriter(self.runs, run)
        self.writer.write([epoch(0), epoch(1), progress()])
        self.board = Board([str(self.other)], self.runs, self.clock)
        self.look()
        self.app = Dashboard(self.board, self.clock, follow="orders").app()

    def look(self) -> None:
        self.board.read_runs()
        self.board.check_health()

    def ask(self, path: str) -> Answer:
        return ask(self.app, path)

    def query(self, path: str = "", number: int = 0) -> Any:
        return self.ask(f"/api/queries/{self.keys()[number]}/{path}").json()

    def keys(self) -> list[str]:
        return [each["key"] for each in self.ask("/api/queries").json()["queries"]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.writer.close()


def test_running_queries_come_first_then_checkpoints(world: World) -> None:
    answer = world.ask("/api/queries").json()
    assert answer["follow"] == "orders"
    shown = [(each["name"], each["state"], each["health"]) for each in answer["queries"]]
    assert shown == [("orders", "running", "healthy"), ("two", "checkpoint", "healthy")]
    assert [each["unit"] for each in answer["queries"]] == ["epoch", "batch"]
    assert [each["group"] for each in answer["queries"]] == ["running", "idle"]
    assert answer["queries"][1]["query_id"] is not None
    assert answer["runs"] == str(world.runs)


def test_a_checkpoint_with_a_young_batch_is_active(world: World) -> None:
    (other,) = (each for each in world.board.summaries() if each["name"] == "two")
    world.clock.advance((other["newest_ms"] - world.clock.now_ms()) / 1000 + 59)
    assert [each["state"] for each in world.board.summaries()] == ["running", "active"]
    world.clock.advance(2)
    assert [each["state"] for each in world.board.summaries()] == ["running", "checkpoint"]


def test_a_run_that_is_forgotten_leaves_the_board(world: World) -> None:
    for path in world.runs.iterdir():
        path.unlink()
    world.look()
    assert [each["state"] for each in world.ask("/api/queries").json()["queries"]] == ["checkpoint"]


def test_offsets_are_paged_from_the_newest(world: World) -> None:
    newest = world.query("offsets?limit=3")
    ids = [each["batch_id"] for each in newest["batches"]]
    assert ids == [newest["newest"] - back for back in range(3)]
    older = world.query(f"offsets?limit=500&before={newest['older']}")
    assert [each["batch_id"] for each in older["batches"]] == list(range(ids[-1] - 1, -1, -1))
    assert older["older"] is None
    assert all(each["committed"] and each["offsets"] for each in older["batches"])


def test_an_entry_that_cannot_be_read_says_why_in_its_place(world: World) -> None:
    (world.checkpoint / "offsets" / "3").write_text("v1\nbroken")
    found = {each["batch_id"]: each for each in world.query("offsets?limit=500")["batches"]}
    assert "offsets/3" in found[3]["problem"]
    assert "problem" not in found[2]


def test_state_is_paged(world: World) -> None:
    everything = world.query("state")["rows"]
    assert len(everything) > 3
    pages: list[Any] = []
    number = 0
    while True:
        page = world.query(f"state?size=2&page={number}")
        pages += page["rows"]
        number += 1
        if not page["more"]:
            break
    assert pages == everything
    assert number == -(-len(everything) // 2)


def test_figures_that_were_dear_are_not_made_anew_at_once(world: World) -> None:
    before = world.query("stats")
    for path in (world.checkpoint / "state").rglob("*.delta"):
        path.unlink()
    assert world.query("stats") == before
    world.clock.advance(60)
    assert "problem" in world.query("stats")


@pytest.mark.parametrize("path", ["state", "stores", "stats", "history", "lag", "offsets"])
def test_a_checkpoint_that_cannot_be_read_is_an_answer_and_no_failed_request(
    world: World, path: str
) -> None:
    for file in world.checkpoint.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert world.ask(f"/api/queries/{world.keys()[0]}/{path}").status == 200


@pytest.mark.parametrize(
    "store", ["../../../offsets", "../default", "/etc/passwd", "default/../default", "nowhere", ""]
)
def test_a_store_that_the_checkpoint_does_not_list_is_refused(world: World, store: str) -> None:
    answer = world.ask(f"/api/queries/{world.keys()[0]}/state?store={store}")
    assert answer.status == 400
    assert "has no" in answer.json()["error"]


@pytest.mark.parametrize("number", ["-1", "1e3", "0x10", "٣", "9" * 30, "1;drop"])
def test_what_is_no_number_is_refused(world: World, number: str) -> None:
    from urllib.parse import quote

    for name in ("batch", "operator", "partition", "page"):
        path = f"/api/queries/{world.keys()[0]}/state?{name}={quote(number)}"
        assert world.ask(path).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../app.py",
        "/app.py",
        "/api/queries/..%2f..%2fetc/offsets",
        "/api/queries/%2Fetc/offsets",
        "/api/queries/000000000000/state",
        "/api/queries/000000000000/health",
    ],
)
def test_nothing_but_known_names_is_served(world: World, path: str) -> None:
    assert world.ask(path).status == 404


def test_nothing_is_written_to_a_checkpoint_whatever_is_asked(world: World) -> None:
    before = tree(world.checkpoint), tree(world.other)
    paths = ["offsets", "stores", "state", "stats", "health", "state?batch=0", "stats?x=1"]
    paths += ["history", "lag"]
    for number in range(2):
        for path in paths:
            world.query(path, number)
    for path in (*STATIC, "/api/queries", "/metrics"):
        assert world.ask(path).status == 200
    world.clock.advance(60)
    world.look()
    assert (tree(world.checkpoint), tree(world.other)) == before


def test_every_route_only_reads(world: World) -> None:
    app: Starlette = world.app
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert {method for route in routes for method in route.methods or ()} == {"GET", "HEAD"}


def test_the_metrics_are_those_of_the_runs(world: World) -> None:
    families = {
        f.name: f for f in text_string_to_metric_families(world.ask("/metrics").body.decode())
    }
    (sample,) = families["epochal_epochs_committed"].samples
    assert (sample.value, sample.labels["query"]) == (2, "orders")


def static(name: str) -> str:
    return (resources("epochal.dashboard") / "static" / name).read_text()


@pytest.mark.parametrize("name", [name for name, _ in STATIC.values()])
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = static(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//cdn|@import|url\(", text)


def test_the_page_has_no_inline_script_or_style() -> None:
    page = static("index.html")
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", page) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_never_turn_text_into_markup(name: str) -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", static(f"{name}.js")
    )


def events(world: World, key: str, wanted: int) -> list[tuple[str, Any]]:
    """The first events that a page receives."""

    async def listen() -> list[tuple[str, Any]]:
        heard: list[tuple[str, Any]] = []
        dashboard = Dashboard(world.board, world.clock)
        async for text in dashboard._event_stream(key):
            for event in text.strip().split("\n\n"):
                name, _, data = event.partition("\n")
                heard.append((name.removeprefix("event: "), json.loads(data[len("data: ") :])))
            if len(heard) >= wanted:
                return heard
            epoch_now = 2 + len(heard)
            world.writer.write([epoch(epoch_now)])
            world.look()
        return heard

    return asyncio.run(listen())


def test_a_page_hears_all_that_is_known_and_then_what_is_new(world: World) -> None:
    heard = events(world, world.keys()[0], 5)
    assert [name for name, _ in heard[:3]] == ["queries", "health", "run"]
    first = heard[2][1]
    assert first["anew"]
    assert [each["epoch"] for each in first["epochs"]] == [0, 1]
    assert len(first["reports"]) == 1
    (news,) = [value for name, value in heard[3:] if name == "run"]
    assert not news["anew"]
    assert [each["epoch"] for each in news["epochs"]] == [5]


def test_a_page_without_a_query_hears_of_all(world: World) -> None:
    ((name, queries),) = events(world, "", 1)
    assert name == "queries"
    assert len(queries) == 2


def test_checkpoints_that_nobody_looks_at_are_left_alone(world: World) -> None:
    world.writer.write([RunEnded(99)])
    world.look()
    key = world.keys()[0]

    def looked_at() -> int:
        health = world.board.health(key)
        assert health is not None
        return health.checked_ms

    before = looked_at()
    world.clock.advance(5)
    world.look()
    assert looked_at() == before
    with world.board.watching(key):
        world.look()
    assert looked_at() > before


def prepared(place: Path, attack: str) -> None:
    """Make a checkpoint that a reader could wait for, or fail on."""
    target = place / "commits" / "0"
    target.unlink()
    match attack:
        case "pipe":
            os.mkfifo(target)
        case "device":
            target.symlink_to("/dev/zero")
        case "deep":
            target.write_bytes(b"v1\n" + b"[" * 100_000)
        case "huge":
            with open(target, "wb") as out:
                out.truncate(1 << 40)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ["pipe", "device", "deep", "huge"])
def test_one_prepared_checkpoint_does_not_stop_the_others(attack: str, tmp_path: Path) -> None:
    first = unpack(Golden("4.3.0", "rate"), tmp_path / "a").checkpoint
    second = unpack(Golden("4.3.0", "rate"), tmp_path / "b").checkpoint
    prepared(first, attack)
    board = Board([str(first), str(second)], tmp_path / "runs", ManualClock())
    board.check_health()
    app = Dashboard(board, ManualClock()).app()
    found = {each["checkpoint"]: each for each in ask(app, "/api/queries").json()["queries"]}
    assert found[str(second)]["health"] == "healthy"
    assert found[str(first)]["health"] not in ("healthy", "unknown")
    for path in ("health", "history", "offsets", "stores", "state", "stats"):
        for query in found.values():
            assert ask(app, f"/api/queries/{query['key']}/{path}").status in (200, 400)


def test_a_check_that_fails_for_any_reason_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: HealthMonitor) -> Health:
        if self._files.url == str(first):
            raise MemoryError
        return check(self)

    check = HealthMonitor.check
    monkeypatch.setattr(HealthMonitor, "check", fail)
    first = unpack(Golden("4.3.0", "rate"), tmp_path / "a").checkpoint
    second = unpack(Golden("4.3.0", "rate"), tmp_path / "b").checkpoint
    board = Board([str(first), str(second)], tmp_path / "runs", ManualClock())
    board.check_health()
    health = {each["checkpoint"]: each["health"] for each in board.summaries()}
    assert health == {str(first): "unknown", str(second): "healthy"}


def test_a_directory_whose_name_is_not_text_is_shown_like_others(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    unpack(Golden("4.3.0", "rate"), tmp_path / "plain").base.rename(odd)
    board = Board([str(tmp_path)], tmp_path / "runs", ManualClock())
    board.check_health()
    app = Dashboard(board, ManualClock()).app()
    [query] = ask(app, "/api/queries").json()["queries"]
    assert query["health"] == "healthy"
    assert query["checkpoint"] == str(odd / "checkpoint")
    for path in ("health", "history", "offsets", "stores"):
        assert ask(app, f"/api/queries/{query['key']}/{path}").status == 200
