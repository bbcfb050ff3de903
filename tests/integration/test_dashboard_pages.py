"""The dashboard over checkpoints that Spark wrote, in a real browser: no query runs.

Sixty checkpoints: two are broken, and one has lost a file that it does not need. The tests save
screenshots in `build/screenshots`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.golden.library import Golden, unpack
from tests.rigs.browser import Page, running_browser, violations
from tests.rigs.dashboard import choose, running_dashboard
from tests.spark.sessions import ROOT

SCREENSHOTS = ROOT / "build" / "screenshots"
TEAMS = ("billing", "catalog", "fraud", "logistics", "search", "web")
CASES = (
    *("windowed", "chained", "dedup", "rate", "several_sources", "session"),
    *("rocksdb_changelog", "file_sink", "join_inner", "limit"),
)
NONE = "\N{EN DASH}"
WIDTHS = (390, 900, 1440)
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten cases for each of six teams."""
    base = tmp_path_factory.mktemp("dashboard")
    for case in CASES:
        made = unpack(Golden("4.3.0", case), base / "made" / case).checkpoint
        for team in TEAMS:
            shutil.copytree(made, base / "data" / team / case / "checkpoint")
    broken = base / "data" / "fraud"
    for batch in range(2, 6):
        (broken / "windowed" / "checkpoint" / "commits" / f"{batch}").unlink()
        (broken / "windowed" / "checkpoint" / "commits" / f".{batch}.crc").unlink()
    (broken / "chained" / "checkpoint" / "offsets" / "3").write_text("v1\nbroken")
    (broken / "dedup" / "checkpoint" / "state" / "0" / "0" / "11.delta").write_bytes(b"garbage")
    return base / "data"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with running_browser() as page:
        yield page


@pytest.fixture(scope="module")
def many(browser: Page, checkpoints: Path) -> Iterator[Page]:
    """The page over all checkpoints, after every one was checked."""
    arguments = ("--runs", checkpoints.parent / "runs", "--checkpoint", checkpoints)
    with running_dashboard(checkpoints.parent, *arguments) as (link, _):
        browser.look(1440, 900, "light")
        browser.open(link)
        browser.wait("document.querySelectorAll('#queries button').length === 60")
        unchecked = "[...document.querySelectorAll('#queries h3')].map((each) => each.innerText)"
        browser.wait(f"!{unchecked}.join().includes('Not checked')", what="all are checked")
        yield browser
        browser.open("about:blank")


@pytest.fixture
def page(many: Page) -> Iterator[Page]:
    """The same page, with nothing searched for and no complaints so far."""
    search(many, "")
    many.evaluate("document.activeElement.blur()")
    yield many
    many.look(1440, 900, "light")
    assert many.errors == []


def search(page: Page, text: str) -> None:
    page.evaluate(
        f"(() => {{ const at = document.getElementById('search'); at.value = {json.dumps(text)};"
        " at.dispatchEvent(new Event('input')); })()"
    )


def group(page: Page, by: str) -> None:
    page.evaluate(
        f"(() => {{ const at = document.getElementById('grouping'); at.value = {json.dumps(by)};"
        " at.dispatchEvent(new Event('change')); })()"
    )


def names(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#queries .who')].map((each) => each.innerText)"
    )
    return found


def groups(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#queries h3')].map((each) => each.innerText)"
    )
    return [" ".join(each.split()) for each in found]


def test_dozens_are_grouped_by_status_with_what_needs_attention_first(page: Page) -> None:
    assert page.text("#tally") == "60 queries, 2 need attention"
    assert groups(page) == ["Needs attention 2", "Not active 58"]
    assert names(page)[:2] == ["fraud/dedup", "fraud/windowed"]
    assert len(set(names(page))) == 60, "each has a name of its own"


def test_they_can_be_grouped_by_directory(page: Page, checkpoints: Path) -> None:
    group(page, "place")
    try:
        assert groups(page) == [f"{checkpoints}/{team} 10" for team in TEAMS]
        assert names(page)[20:23] == ["fraud/dedup", "fraud/windowed", "fraud/chained"]
    finally:
        group(page, "status")


def test_a_search_finds_names_directories_and_states(page: Page) -> None:
    search(page, "web JOIN")
    assert names(page) == ["web/join_inner"]
    assert page.text("#tally") == "1 of 60 match"
    search(page, "unhealthy")
    assert names(page) == ["fraud/dedup", "fraud/windowed"]
    search(page, "nowhere")
    assert names(page) == []


def test_a_checkpoint_of_spark_has_batches_and_its_own_charts(page: Page) -> None:
    choose(page, "web/windowed")
    page.wait("document.querySelectorAll('#growth-rows circle').length === 11", what="state")
    for panel in ("duration", "input", "watermark"):
        page.wait(f"document.querySelector('#{panel} .line')", what=panel)
    text = page.text("#detail")
    assert "epoch" not in text.lower()
    assert page.text("#tile-newest-batch") == "10"
    assert page.text("#tile-state-rows") == "5"
    assert "No problem was found" in text
    assert "A restart would continue with batch 11." in text
    row = page.text("#sources tbody tr").split("\t")
    assert [each.strip() for each in row[:4]] == ["file", "8", NONE, NONE]
    assert "not where new files arrive" in row[4]
    for panel in ("epochs", "latency", "rate"):
        assert page.evaluate(f"document.getElementById('{panel}').hidden"), "nothing is empty"


def test_each_source_has_its_unit_and_the_reason_why_its_lag_is_unknown(page: Page) -> None:
    choose(page, "web/several_sources")
    page.wait("document.querySelectorAll('#sources tbody tr').length === 3")
    notes = page.evaluate(
        "[...document.querySelectorAll('#sources td:last-child')].map((each) => each.innerText)"
    )
    assert len(notes) == 3
    assert all(notes), "each says why"
    page.wait("document.querySelectorAll('#input-charts .chart svg').length === 2")
    assert page.evaluate(
        "[...document.querySelectorAll('#input-charts .legend')].map((each) => each.innerText)"
    ) == ["file 0\nfile 1", "rows"]
    assert page.evaluate(
        "[...document.querySelectorAll('#sources td:first-child')].map((each) => each.innerText)"
    ) == ["file 0", "file 1", "rate"]
    assert page.text("#tile-input") == "2 + 0"
    assert page.text("#tile-input + .more") == "files + rows in the newest batch"
    axis = page.evaluate(
        "[...document.querySelectorAll('#input-charts svg text')].map((each) => each.textContent)"
    )
    assert not [each for each in axis if "." in each], "files and rows are whole numbers"


def test_the_newest_batch_is_named_even_if_its_offsets_cannot_be_read(
    page: Page, checkpoints: Path
) -> None:
    choose(page, "web/limit")
    page.wait("/\\d/.test(document.getElementById('tile-newest-batch')?.innerText)")
    newest = page.text("#tile-newest-batch")
    file = checkpoints / "web" / "limit" / "checkpoint" / "offsets" / newest
    before = file.read_bytes()
    file.write_text("v1\n")
    try:
        told = "document.querySelector('#tile-newest-batch + .more').innerText"
        page.wait(f"{told} === 'without readable offsets'", what="it says why there is no time")
        assert page.text("#tile-newest-batch") == newest
    finally:
        file.write_bytes(before)
    page.wait("document.getElementById('health').dataset.value === 'healthy'")


def test_a_restart_is_not_promised_if_the_state_cannot_be_loaded(page: Page) -> None:
    choose(page, "fraud/dedup")
    page.wait("document.querySelector('#findings .finding')", what="a finding")
    told = "A restart would continue with batch 11, unless it fails to load the state."
    assert told in page.text("#verdict")
    choose(page, "web/dedup")
    page.wait("document.getElementById('verdict').innerText.includes('No problem was found')")
    assert "A restart would continue with batch 11. " in page.text("#verdict")


def test_commands_in_messages_are_shown_as_such(page: Page) -> None:
    choose(page, "fraud/chained")
    page.wait("document.querySelector('#offsets-table .chip code')", what="a command")
    page.wait("document.querySelector('#findings .remedy')", what="a remedy")
    assert page.text("#offsets-table .chip code") == "epochal checkpoint verify"
    assert "`" not in page.text("#detail")


def test_what_is_selected_stays_selected_until_it_is_copied(page: Page) -> None:
    choose(page, "web/rate")
    page.wait("document.querySelector('#offsets-table pre')", what="offsets")
    page.evaluate(
        "(() => { window.kept = document.querySelector('#offsets-table pre');"
        " getSelection().selectAllChildren(window.kept);"
        " const ask = window.fetch; window.asked = 0;"
        " window.fetch = (at, ...more) => { window.asked += at.includes('/offsets');"
        " return ask(at, ...more); }; })()"
    )
    page.wait("window.asked > 2", what="the page has asked again")
    assert page.evaluate("window.kept.isConnected && getSelection().toString()") == "[11]"
    page.evaluate("getSelection().removeAllRanges()")
    page.wait("!window.kept.isConnected", what="it is drawn again")


def test_an_answer_about_a_query_that_is_no_longer_shown_is_ignored(page: Page) -> None:
    choose(page, "web/rate")
    page.evaluate(
        "(() => { const ask = window.fetch; window.held = [];"
        " window.release = () => { window.fetch = ask; window.held.forEach((go) => go()); };"
        " window.fetch = async (at, ...more) => { const found = await ask(at, ...more);"
        " if (at.includes('/stores')) await new Promise((go) => window.held.push(go));"
        " return found; }; })()"
    )
    choose(page, "web/windowed")
    page.wait("window.held.length > 0", what="its stores are known")
    choose(page, "web/join_inner")
    page.wait("window.held.length > 1")
    page.evaluate("window.release()")
    stores = "document.getElementById('state-store').textContent"
    page.wait(f"{stores}.includes('left-keyToNumValues')", what="the stores of the join")
    assert page.errors == [], "the stores of one query are not asked of another"


def test_the_command_of_a_finding_can_be_copied_and_mends_it(page: Page, checkpoints: Path) -> None:
    choose(page, "fraud/windowed")
    page.wait("document.querySelector('.finding .copy')", what="a command")
    place = checkpoints / "fraud" / "windowed" / "checkpoint"
    shown = page.text(".finding .command code")
    assert shown == f"epochal checkpoint repair {place} --sink OUTPUT --execute"
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    page.evaluate("document.querySelector('.finding .copy').focus()")
    page.press("Enter")
    page.wait("document.querySelector('.finding .copy').innerText === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == shown
    told = copied.replace("--sink OUTPUT", "--no-file-sink")
    saved = shutil.copytree(place, checkpoints.parent / "before")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["/bin/sh", "-c", f"{told} --settle-seconds 0"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    page.wait("document.getElementById('health').dataset.value === 'healthy'", what="it is mended")
    shutil.rmtree(place)
    shutil.copytree(saved, place)
    page.wait("document.getElementById('health').dataset.value === 'unhealthy'")


@pytest.mark.parametrize("name", ["fraud/dedup", "fraud/chained"])
def test_a_broken_checkpoint_is_explained_without_a_failed_request(page: Page, name: str) -> None:
    choose(page, name)
    page.wait("document.querySelector('#findings .finding')", what="a finding")
    page.evaluate("document.getElementById('tab-state').click()")
    page.wait("document.getElementById('state-range').innerText !== ''", what="state, or why not")
    for batch in ("4", "999", "not a number", ""):
        page.evaluate(
            "(() => { const at = document.getElementById('state-batch');"
            f" at.value = {json.dumps(batch)}; at.dispatchEvent(new Event('change')); }})()"
        )
        page.evaluate("new Promise((done) => setTimeout(done, 300))")
    page.evaluate("document.getElementById('tab-offsets').click()")
    assert page.errors == []


def healthy(page: Page) -> None:
    choose(page, "web/windowed")
    page.wait("document.querySelector('#duration .line')")
    page.wait("document.querySelector('#partitions .bar')")


def sick(page: Page) -> None:
    choose(page, "fraud/windowed")
    page.wait("document.querySelector('.finding .copy')")


def rows_of_state(page: Page) -> None:
    healthy(page)
    page.evaluate("document.getElementById('tab-state').click()")
    page.wait("document.querySelector('#state-table td')")


def help_is_open(page: Page) -> None:
    page.evaluate("document.getElementById('help').showModal()")


def long_names(page: Page) -> None:
    choose(page, "web/join_inner")
    page.wait("document.querySelector('#partitions .bar')")


def unreadable_state(page: Page) -> None:
    choose(page, "fraud/dedup")
    page.wait("document.getElementById('skew').innerText.includes('11.delta')")


VIEWS: dict[str, Callable[[Page], None]] = {
    "healthy": healthy,
    "sick": sick,
    "join": long_names,
    "unreadable": unreadable_state,
    "state": rows_of_state,
    "help": help_is_open,
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits_the_screen_and_everyones_eyes(page: Page, width: int, scheme: Any) -> None:
    for name, show in VIEWS.items():
        page.look(width, 900, scheme)
        show(page)
        page.wait(f"innerWidth === {width}")
        page.evaluate("new Promise((done) => setTimeout(done, 300))")  # charts are drawn anew
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert violations(page) == [], name
        page.screenshot(SCREENSHOTS / f"checkpoint-{name}-{width}-{scheme}.png")
        page.evaluate("document.getElementById('help').close()")
        page.evaluate("document.getElementById('tab-offsets').click()")


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    for letter in "web/sess":
        page.press(letter)
    page.press("Enter")
    page.wait("document.getElementById('name').innerText === 'web/session'")
    page.press("Escape")
    search(page, "")
    page.press("j")
    page.wait("document.getElementById('name').innerText === 'web/several_sources'")
    page.press("k")
    page.wait("document.getElementById('name').innerText === 'web/session'")
    page.wait("document.querySelector('#duration .line')", what="a chart")
    page.press("2")
    assert page.evaluate("document.activeElement.id") == "duration"
    page.press("Tab")
    for key in ("ArrowLeft", "ArrowLeft"):
        page.press(key)
    tip = page.text("#duration .tip")
    newest = int(page.text("#tile-newest-batch"))
    assert tip.startswith(f"batch {newest - 1}, "), "the cursor is at the batch before the newest"
    page.press("Escape")
    assert page.evaluate("document.querySelector('#duration .tip').hidden")


def test_tab_reaches_everything_that_can_be_used(page: Page) -> None:
    sick(page)
    usable = page.evaluate(
        "[...document.querySelectorAll('main button, main input, main select, main summary')]"
        ".filter((each) => !each.disabled && each.tabIndex >= 0 && each.getClientRects().length)"
        ".map((each, index) => { each.dataset.reach = index; return index; }).length"
    )
    page.evaluate("document.querySelector('.skip').focus()")
    reached = set()
    for _ in range(usable + 60):
        page.press("Tab")
        at = page.evaluate("document.activeElement.dataset.reach ?? null")
        visible = page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            " || document.activeElement === document.body"
        )
        assert visible, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        if at is not None:
            reached.add(int(at))
        if len(reached) == usable:
            break
    assert reached == set(range(usable))


def test_without_queries_the_page_says_what_to_type(tmp_path: Path) -> None:
    arguments = ("--runs", tmp_path / "runs", "--follow", "orders")
    with running_dashboard(tmp_path, *arguments) as (link, _), running_browser() as page:
        page.open(link)
        page.wait("!document.getElementById('start').hidden")
        commands = page.evaluate(
            "[...document.querySelectorAll('#start .command code')].map((each) => each.innerText)"
        )
        assert commands[0] == "epochal dashboard --checkpoint /data/orders/checkpoint"
        words = page.evaluate(
            "[...document.querySelectorAll('#start .command .whole')].map((e) => e.innerText)"
        )
        assert "--bootstrap-servers" in words, "it is not broken after its hyphens"
        assert str(tmp_path / "runs") in page.text("#start")
        assert page.text("#waiting") == "Waiting for orders."
        for width in WIDTHS:
            for scheme in SCHEMES:
                page.look(width, 900, scheme)
                page.wait(f"innerWidth === {width}")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert violations(page) == []
                page.screenshot(SCREENSHOTS / f"start-{width}-{scheme}.png")
        assert page.errors == []


def test_a_checkpoint_that_is_not_there_or_has_no_batch_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "new" / "offsets").mkdir(parents=True)
    places = ("--checkpoint", tmp_path / "new", "--checkpoint", tmp_path / "gone")
    arguments = ("--runs", tmp_path / "runs", *places)
    with running_dashboard(tmp_path, *arguments) as (link, _), running_browser() as page:
        page.open(link)
        choose(page, "gone")
        problem = f"There is no directory {tmp_path / 'gone'}."
        page.wait(f"document.getElementById('verdict').innerText.includes({json.dumps(problem)})")
        assert "no checkpoint" in page.text("#health")
        choose(page, "new")
        page.wait("document.getElementById('verdict').innerText.includes('There is no batch yet')")
        page.wait("document.getElementById('duration').innerText.includes('Too few batches yet')")
        assert [page.text(f"#tile-{name}") for name in ("state-rows", "watermark")] == [NONE, NONE]
        assert page.errors == []


def test_a_dashboard_that_was_stopped_says_so_wherever_the_page_is_scrolled(
    tmp_path: Path, checkpoints: Path
) -> None:
    arguments = ("--runs", tmp_path / "runs", "--checkpoint", checkpoints / "web" / "rate")
    with running_browser() as page:
        page.look(390, 700, "light")
        with running_dashboard(tmp_path, *arguments) as (link, _):
            page.open(link)
            page.wait("document.getElementById('link').dataset.state === 'live'")
            page.wait("document.querySelector('#offsets-table td')")
            page.evaluate("document.getElementById('browse').scrollIntoView({behavior: 'instant'})")
        page.wait("document.getElementById('link').dataset.state === 'lost'")
        assert "does not respond" in page.text("#link")
        box = page.evaluate("document.getElementById('link').getBoundingClientRect().toJSON()")
        assert 0 <= box["top"] <= box["bottom"] <= 700
        assert 0 <= box["left"] <= box["right"] <= 390
        assert violations(page) == []


def test_a_request_that_fails_would_be_seen(many: Page) -> None:
    many.evaluate("fetch('/nowhere').then(() => true)")
    many.wait("true")
    assert any("404 (Not Found)" in each for each in many.errors)
    many.errors.clear()


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("image-alt", "document.querySelector('h1 img').removeAttribute('alt')"),
        ("color-contrast", "document.getElementById('name').style.color = '#e8e8e8'"),
        ("button-name", "document.querySelector('nav').append(document.createElement('button'))"),
        ("select-name", "document.getElementById('grouping').parentElement.replaceWith("
         "document.getElementById('grouping'))"),
    ],
)  # fmt: skip
def test_a_violation_would_be_seen(many: Page, rule: str, fault: str) -> None:
    choose(many, "web/windowed")
    assert violations(many) == []
    many.evaluate(f"{fault}; true")
    try:
        assert [each.split(":")[0] for each in violations(many)] == [rule]
    finally:
        many.open(many.evaluate("location.origin") + "/")
        many.wait("document.querySelectorAll('#queries button').length === 60")
