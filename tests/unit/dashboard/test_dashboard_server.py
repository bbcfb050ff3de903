"""Which requests the dashboard accepts, how it is served, and the health of what it serves."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.golden.library import Golden, unpack
from tests.unit.dashboard.asgi import Answer, ask

from epochal.cli.main import main
from epochal.dashboard import board as module
from epochal.dashboard.board import find_checkpoints
from epochal.dashboard.dashboard_server import (
    HEADERS,
    Guard,
    host_rule,
    is_loopback,
    serve_dashboard,
)
from epochal.dashboard.health import HealthMonitor
from epochal.errors import OptionError
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.tools.verify.findings import Depth, Finding, finding
from epochal.tools.verify.verify import Report


def test_a_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    links: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port}"):
            serve_dashboard(
                [], follow=None, host="127.0.0.1", port=port, runs=tmp_path, ready=links.append
            )
    assert links == []


def test_a_checkpoint_on_a_storage_that_nobody_knows_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dashboard", "--checkpoint", "gopher://x/y"]) == 2
    assert "gopher" in capsys.readouterr().err


TOKEN = "correct-horse-battery-staple"
COOKIE = {"cookie": f"other=1; epochal-8000={TOKEN}"}


def guarded(bound: str = "127.0.0.1", *names: str) -> Guard:
    page = PlainTextResponse("the page")
    return Guard(page, token=TOKEN, hosts=host_rule(bound, names), cookie="epochal-8000")


def status(**headers: str) -> int:
    return ask(guarded(), "/api/queries", headers={**COOKIE, **headers}).status


def test_without_a_token_nothing_is_shown() -> None:
    for path in ("/", "/app.js", "/api/queries", "/metrics", "/nowhere"):
        answer = ask(guarded(), path)
        assert answer.status == 401
        assert b"the page" not in answer.body


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä"])
def test_a_wrong_token_is_refused_wherever_it_is(token: str) -> None:
    assert ask(guarded(), f"/?token={token}").status == 401
    assert ask(guarded(), "/", headers={"cookie": "epochal-8000=" + token.strip("ä")}).status == 401
    assert ask(guarded(), "/", headers={"authorization": f"Bearer {token}"}).status == 401


def test_the_link_gives_a_cookie_and_leads_to_an_address_without_the_token() -> None:
    answer = ask(guarded(), f"/?token={TOKEN}")
    assert answer.status == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"epochal-8000={TOKEN};")
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()


def test_the_cookie_and_a_bearer_token_open_the_page() -> None:
    assert ask(guarded(), "/", headers=COOKIE).body == b"the page"
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert ask(guarded(), "/metrics", headers=bearer).body == b"the page"


def test_a_token_in_the_address_of_anything_but_the_page_counts_for_nothing() -> None:
    assert ask(guarded(), f"/api/queries?token={TOKEN}").status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
def test_only_reading_methods_pass(method: str) -> None:
    assert ask(guarded(), "/", method=method, headers=COOKIE).status == 405


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("", "192.168.1.5:8000", "127.0.0.1@evil.example", "[::2]:8000"),
    ],
)
def test_a_name_that_is_not_ours_is_refused_with_the_right_token_too(host: str) -> None:
    assert status(host=host) == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_names_of_this_machine_are_ours(host: str) -> None:
    assert status(host=host) == 200


def test_bound_to_all_addresses_any_address_will_do_and_no_name_but_those_given() -> None:
    rule = host_rule("0.0.0.0", ["Driver.corp"])
    assert rule.allows("192.168.1.5:8000")
    assert rule.allows("[fe80::1]:8000")
    assert rule.allows("driver.corp:8000")
    assert not rule.allows("evil.example:8000")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_asks_for_is_refused(site: str) -> None:
    assert status(**{"sec-fetch-site": site}) == 403
    assert status(**{"sec-fetch-site": "same-origin"}) == 200


def test_every_answer_carries_a_policy_that_allows_nothing_from_elsewhere() -> None:
    answers: list[Answer] = [
        ask(guarded(), "/", headers=COOKIE),
        ask(guarded(), "/"),
        ask(guarded(), "/", method="POST"),
        ask(guarded(), "/", headers={"host": "evil.example"}),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_websockets_are_not_answered() -> None:
    reached: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    guard = Guard(app, token=TOKEN, hosts=host_rule("127.0.0.1"), cookie="c")

    async def nothing(message: Any = None) -> Any:
        return {}

    asyncio.run(guard({"type": "websocket", "path": "/"}, nothing, nothing))
    assert reached == []


def test_loopback_is_told_from_other_addresses() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.1.2.3", "::1", "localhost")] == [
        *(True, True, True, True)
    ]
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("10.0.0.1")


def checkpoint(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(unpack(Golden("4.3.0", "rate"), tmp_path).checkpoint))


class Looks:
    """Stands in for `verify`: returns prepared results, each after a given time."""

    def __init__(self, clock: ManualClock, *answers: list[Finding], seconds: float = 0.01) -> None:
        self._clock, self._answers, self._seconds = clock, list(answers), seconds
        self.depths: list[Depth] = []

    def __call__(self, files: Any, *, depth: Depth) -> Report:
        self.depths.append(depth)
        self._clock.advance(self._seconds)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Report(files.url, tuple(found), 1, 1, depth)


BROKEN = finding("LOG_ENTRY_UNREADABLE", "offsets/3", "it is empty")


def test_a_finding_counts_when_a_second_look_finds_it_too(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    looks = Looks(clock, [BROKEN], [])
    assert HealthMonitor(files, clock, looks).check().findings == ()
    looks = Looks(clock, [BROKEN], [BROKEN])
    assert HealthMonitor(files, clock, looks).check().findings == (BROKEN,)
    assert len(looks.depths) == 2


def test_a_finding_that_is_known_needs_no_second_look(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    looks = Looks(clock, [BROKEN])
    monitor = HealthMonitor(files, clock, looks)
    monitor.check()
    before = len(looks.depths)
    monitor.check()
    assert len(looks.depths) == before + 1


def test_a_slow_checkpoint_is_looked_at_rarely(tmp_path: Path) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    quick = HealthMonitor(files, clock, Looks(clock, [], seconds=0.01))
    quick.check()
    assert 0.4 < quick.due - clock.monotonic() < 0.6
    looks = Looks(clock, [], seconds=3.0)
    slow = HealthMonitor(files, clock, looks)
    slow.check()
    for _ in range(20):
        clock.advance(slow.due - clock.monotonic())
        slow.check()
    assert clock.monotonic() > 20 * 3 / 0.4
    assert {Depth.QUICK, Depth.NORMAL} == set(looks.depths)


def test_what_only_reading_everything_shows_stays_until_everything_is_read_again(
    tmp_path: Path,
) -> None:
    files, clock = checkpoint(tmp_path), ManualClock()
    deep = finding("STATE_FILE_UNREADABLE", "state/0/0/3.delta", "its checksum is wrong")
    looks = Looks(clock, [deep], [deep], [], [], seconds=0.2)
    monitor = HealthMonitor(files, clock, looks)
    monitor.check()
    clock.advance(0.6)
    assert monitor.check().findings == (deep,)
    assert looks.depths == [Depth.NORMAL, Depth.NORMAL, Depth.QUICK]
    clock.advance(2.0)
    assert monitor.check().findings == ()
    assert looks.depths[3:] == [Depth.NORMAL]


def new_checkpoint(path: Path) -> str:
    (path / "offsets").mkdir(parents=True)
    (path / "metadata").write_text("{}")
    return str(path)


def found(path: Path) -> list[str]:
    return find_checkpoints(LocalFiles(path))


def test_all_checkpoints_below_a_directory_are_found_in_order(tmp_path: Path) -> None:
    made = [new_checkpoint(tmp_path / name) for name in ("a", "b/c/checkpoint", "b/checkpoint")]
    new_checkpoint(tmp_path / "much" / "too" / "far" / "below")
    assert found(tmp_path) == made


def test_tables_and_output_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "data" / "day=1").mkdir(parents=True)
    new_checkpoint(tmp_path / "delta" / "_delta_log")
    new_checkpoint(tmp_path / "parquet" / "day=2")
    new_checkpoint(tmp_path / ".hidden")
    assert found(tmp_path) == [str(tmp_path)], "nothing is found: the page says so"


def test_a_directory_that_does_not_exist_is_shown_as_it_was_given(tmp_path: Path) -> None:
    assert found(tmp_path / "gone") == [str(tmp_path / "gone")]


def test_a_large_tree_is_searched_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [new_checkpoint(tmp_path / f"q{number}") for number in range(9)]
    monkeypatch.setattr(module, "MAX_DIRECTORIES", 5)
    assert found(tmp_path) == made[:4]
