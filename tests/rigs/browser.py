"""Runs a real headless browser for tests of the dashboard: Chromium, driven by its DevTools pipe.

It uses the `chromium` on PATH. Without one, it downloads a headless build from npm into the cache,
once. The protocol is JSON over two pipes, so it needs no driver and no open port. The browser ends
with this process, no matter how that ends.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from select import select
from typing import Any, Literal

from tests.rigs.npm_package import cached_package
from tests.waiting import SECONDS, eventually

from epochal.errors import ComponentError

PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
ON_PATH = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
ANSWER_SECONDS = 60.0

_FLAGS = (
    *("--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-default-apps", "--disable-sync", "--mute-audio"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)


@dataclass(frozen=True, slots=True)
class Chromium:
    """The command of a browser, and the environment variables that it needs."""

    command: str
    environment: Mapping[str, str]


def find_chromium() -> Chromium:
    """The browser of this machine, or the one in the cache, which is downloaded if necessary."""
    for name in ON_PATH:
        if (command := shutil.which(name)) is not None:
            return Chromium(command, {})
    home = cached_package(PACKAGE, VERSION, _unpack)
    return Chromium(
        str(home / "chromium"),
        {"LD_LIBRARY_PATH": str(home / "lib"), "FONTCONFIG_FILE": str(home / "fonts.conf")},
    )


class Page:
    """One tab of the browser."""

    def __init__(self, sent: int, received: int) -> None:
        self._sent, self._received = sent, received
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.errors: list[str] = []
        """Errors that the page logged or threw, and violations of its security policy."""

    def attach(self) -> None:
        """Attach to the tab."""
        targets = self.call("Target.getTargets")["targetInfos"]
        (target,) = (each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._sent, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise ComponentError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        """Open a URL and wait until the page is loaded."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", what=f"{url} is not loaded")

    def evaluate(self, script: str) -> Any:
        """Evaluate a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise ComponentError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str, *, seconds: float = SECONDS, what: str = "") -> None:
        """Wait until an expression is true."""

        def holds() -> bool:
            with suppress(ComponentError):  # while one page makes way for another there is none
                return bool(self.evaluate(f"!!({script})"))
            return False

        def failure() -> str:
            return f"{what or script} (errors of the page: {'; '.join(self.errors) or 'none'})"

        eventually(holds, failure, seconds, pause=0.05)

    def settle(self) -> None:
        """Wait until the page has drawn what it knows: until the second frame from now."""
        frame = "requestAnimationFrame"
        self.evaluate(f"new Promise((done) => {frame}(() => {frame}(() => done(true))))")

    def text(self, selector: str) -> str:
        """The visible text of an element; empty if there is no such element."""
        found: str = self.evaluate(
            f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        )
        return found

    def press(self, key: str) -> None:
        """Press and release a key."""
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38}
        codes |= {"ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "/": 191, "?": 191}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = codes.get(key) or ord(key.upper())
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def look(self, width: int, height: int, scheme: Literal["light", "dark"]) -> None:
        """Emulate a screen of this size and a user with this colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save a screenshot of the whole page, or of the part that a screen shows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        captured = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(captured["data"]))

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select([self._received], [], [], left)[0]:
                raise ComponentError(f"the browser did not answer {what} in {ANSWER_SECONDS} s")
            data = os.read(self._received, 1 << 20)
            if not data:
                raise ComponentError(f"the browser ended before it answered {what}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                thrown = details.get("exception", {}).get("description")
                self.errors.append(thrown or details["text"])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}".rstrip())


@contextmanager
def running_browser() -> Iterator[Page]:
    """Start a browser with one empty tab. It ends with the block."""
    chromium = find_chromium()
    with tempfile.TemporaryDirectory(prefix="epochal-browser-") as profile:
        to_browser, sent = os.pipe()
        received, from_browser = os.pipe()
        command = [chromium.command, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        with open(Path(profile, "log"), "wb") as log:
            process = subprocess.Popen(
                # The browser reads from descriptor 3 and writes to 4.
                ["/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null 1>&2', "sh", *command],
                stdin=to_browser,
                stdout=from_browser,
                stderr=log,
                env={**os.environ, **chromium.environment},
            )
        os.close(to_browser)
        os.close(from_browser)
        try:
            page = Page(sent, received)
            page.attach()
            yield page
        finally:
            os.close(sent)
            os.close(received)
            process.kill()
            process.wait()
            _remove(Path(profile))


def _remove(profile: Path) -> None:
    # Helper processes of the browser end after it and write to the profile until then.
    def is_removed() -> bool:
        with suppress(OSError):
            shutil.rmtree(profile)
            profile.mkdir()
            return True
        return False

    eventually(is_removed, f"{profile} is removed", pause=0.1)


def _unpack(package: Path, filled: Path, target: Path) -> None:
    import cramjam

    def content(archive: tarfile.TarFile, name: str) -> bytes:
        member = archive.extractfile(f"package/bin/{name}.br")
        assert member is not None
        return bytes(cramjam.brotli.decompress(member.read()))

    with tarfile.open(package) as archive:
        browser = filled / "chromium"
        browser.write_bytes(content(archive, "chromium"))
        browser.chmod(0o755)
        for name in ("al2023.tar", "fonts.tar"):
            with tarfile.open(fileobj=io.BytesIO(content(archive, name))) as parts:
                parts.extractall(filled, filter="data")
    (filled / "fonts.conf").write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{target / 'fonts'}</dir><dir>/usr/share/fonts</dir>"
        f"<cachedir>{target / 'fonts-cache'}</cachedir></fontconfig>\n",
        encoding="utf-8",
    )


AXE, AXE_VERSION, AXE_SCRIPT = "axe-core", "4.14.0", "axe.min.js"


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is now: rules, and the elements at fault."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(f"{_axe()}; true")
    found: str = page.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then((result) => JSON.stringify("
        "result.violations.map((each) => `${each.id}: ${each.help}: ` + each.nodes.map((node) => "
        "`${node.target} (${node.any.concat(node.all, node.none).map((check) => check.message)})`)"
        ".join('; '))))"
    )
    listed: list[str] = json.loads(found)
    return listed


@cache
def _axe() -> str:
    home = cached_package(AXE, AXE_VERSION, _unpack_axe)
    return (home / AXE_SCRIPT).read_text(encoding="utf-8")


def _unpack_axe(package: Path, filled: Path, target: Path) -> None:
    with tarfile.open(package) as archive:
        member = archive.extractfile(f"package/{AXE_SCRIPT}")
        assert member is not None
        (filled / AXE_SCRIPT).write_bytes(member.read())
