"""Checks every pinned package of requirements.lock against the index it comes from, and against
published advisories where they can be asked.

    make audit

Of each release: every hash of the lock is one that the index names for it, and none of its files
is yanked. Exit 1 with what is wrong; exit 2 if the index gave no answer. Advisories come from OSV;
where it cannot be reached that is said, and only `--require-advisories` makes it an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
INDEX = "https://pypi.org/simple"
ADVISORIES = "https://api.osv.dev/v1/querybatch"
SECONDS = 30
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*?)(?=^\S|\Z)", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Pin:
    """A release in the lock."""

    name: str
    version: str
    hashes: frozenset[str]


@dataclass(frozen=True, slots=True)
class File:
    """A file that the index offers."""

    name: str
    sha256: str
    yanked: bool


def pins(lock: str) -> list[Pin]:
    """What a lock pins; a name may be there twice, for different interpreters."""
    return [
        Pin(name, version, frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)))
        for name, version, rest in _ENTRY.findall(lock)
    ]


class _Links(HTMLParser):
    """The files of a project's page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address, _, digest = (given.get("href") or "").partition("#sha256=")
        if tag == "a" and digest:
            name = address.rpartition("/")[2]
            self.files.append(File(name, digest.lower(), "data-yanked" in given))


def files_of(page: str) -> list[File]:
    links = _Links()
    links.feed(page)
    return links.files


def faults(pin: Pin, offered: list[File]) -> Iterator[str]:
    """What is wrong with a release, given all that the index has of its project."""
    release = f"{pin.name} {pin.version}"
    if not pin.hashes:
        yield f"{release} has no hash in the lock"
    known = {file.sha256: file for file in offered}
    for digest in sorted(pin.hashes - known.keys()):
        yield f"{release}: sha256 {digest[:12]}… is not in the index"
    for file in (known[digest] for digest in sorted(pin.hashes & known.keys())):
        if file.yanked:
            yield f"{release}: {file.name} was yanked"


def advisories(asked: list[Pin], answer: str) -> list[str]:
    """Which releases an answer of OSV's has something against."""
    found = json.loads(answer)["results"]
    return [
        f"{pin.name} {pin.version}: {', '.join(each['id'] for each in result['vulns'])}"
        for pin, result in zip(asked, found, strict=True)
        if result.get("vulns")
    ]


def _get(url: str, body: bytes | None = None) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=SECONDS) as answer:
        return str(answer.read().decode())


def _ask_index(index: str, asked: list[Pin]) -> list[str]:
    names = sorted({re.sub(r"[-_.]+", "-", pin.name).lower() for pin in asked})
    with ThreadPoolExecutor(8) as pool:
        pages = dict(zip(names, pool.map(lambda n: _get(f"{index}/{n}/"), names), strict=True))
    return [
        fault
        for pin in asked
        for fault in faults(pin, files_of(pages[re.sub(r"[-_.]+", "-", pin.name).lower()]))
    ]


def _ask_advisories(asked: list[Pin]) -> list[str]:
    queries = [
        {"package": {"name": pin.name, "ecosystem": "PyPI"}, "version": pin.version}
        for pin in asked
    ]
    return advisories(asked, _get(ADVISORIES, json.dumps({"queries": queries}).encode()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--index", default=INDEX, help="the package index, in its simple form")
    parser.add_argument("--require-advisories", action="store_true")
    given = parser.parse_args()
    asked = pins(LOCK.read_text())
    try:
        found = _ask_index(given.index, asked)
    except (urllib.error.URLError, TimeoutError) as error:
        sys.stderr.write(f"{given.index} gave no answer: {error}\n")
        return 2
    told = f"{len(asked)} releases, all hashes in the index, none yanked"
    try:
        found += _ask_advisories(asked)
        told += ", no advisories"
    except (urllib.error.URLError, TimeoutError) as error:
        told += f"; advisories could not be asked for: {error}"
        if given.require_advisories:
            found.append(told)
    sys.stdout.write("\n".join(found or [told]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
