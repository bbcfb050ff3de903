"""Checks the sdist and the wheel of a release: contents, metadata and the CHANGELOG.

    python scripts/check_release.py VERSION WHEEL SDIST

`scripts/release` runs it after the build. Exits with 1 and lists everything that is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDIST_FILES = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"}


def main(version: str, wheel: Path, sdist: Path) -> int:
    problems = [
        *changelog_problems((ROOT / "CHANGELOG.md").read_text(), version),
        *wheel_problems(wheel, version),
        *sdist_problems(sdist),
    ]
    for problem in problems:
        sys.stderr.write(f"release: {problem}\n")
    return 1 if problems else 0


def changelog_problems(text: str, version: str) -> Iterator[str]:
    section = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if section is None:
        yield f"CHANGELOG.md has no section `## {version}`."
    elif not section[1].strip():
        yield f"The section `## {version}` of CHANGELOG.md is empty."


def wheel_problems(wheel: Path, version: str) -> Iterator[str]:
    archive = zipfile.ZipFile(wheel)
    info = f"epochal-{version}.dist-info/"
    names = {name for name in archive.namelist() if not name.startswith(info)}
    wanted = {name.removeprefix("src/") for name in tracked()}
    yield from differences("The wheel", names, wanted)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = Parser().parsestr(archive.read(f"{info}METADATA").decode())
    found = {
        "Name": metadata["Name"],
        "Version": metadata["Version"],
        "Requires-Python": metadata["Requires-Python"],
        "License-Expression": metadata["License-Expression"],
        "Description-Content-Type": metadata["Description-Content-Type"],
        "Provides-Extra": sorted(metadata.get_all("Provides-Extra", [])),
    }
    expected = {
        "Name": project["name"],
        "Version": version,
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "Description-Content-Type": "text/markdown",
        "Provides-Extra": sorted(project["optional-dependencies"]),
    }
    for field, value in expected.items():
        if found[field] != value:
            yield f"The wheel's {field} is {found[field]!r}, expected {value!r}."
    description = str(metadata.get_payload())
    if description.strip() != (ROOT / "README.md").read_text().strip():
        yield "The wheel's description is not README.md."
    if f"{info}licenses/LICENSE" not in archive.namelist():
        yield "The wheel has no LICENSE."
    command = archive.read(f"{info}entry_points.txt").decode()
    if "epochal = epochal.__main__:main" not in command:
        yield "The wheel does not install the command `epochal`."


def sdist_problems(sdist: Path) -> Iterator[str]:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # The build backend adds .gitignore, so that a build from the sdist skips the same files.
    yield from differences("The sdist", names - {".gitignore"}, tracked() | SDIST_FILES)


def differences(what: str, names: set[str], wanted: set[str]) -> Iterator[str]:
    if missing := sorted(wanted - names):
        yield f"{what} lacks {', '.join(missing)}."
    if extra := sorted(names - wanted):
        yield f"{what} contains {', '.join(extra)}, which must not be in it."


def tracked() -> set[str]:
    """The files of the package that git knows, as paths in the repository."""
    run = subprocess.run(
        ["git", "ls-files", "-z", "src/epochal"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in run.stdout.split("\0") if name}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
