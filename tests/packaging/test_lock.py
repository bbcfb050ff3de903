"""The lock: every dependency pinned by version and hash, and the audit that checks them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.packaging.environments import ROOT
from tests.packaging.test_wheel import IMPORTS

LOCK = (ROOT / "requirements.lock").read_text()
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())


def load_audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


audit: Any = load_audit()


def declared() -> list[Requirement]:
    project, groups = DECLARED["project"], DECLARED["dependency-groups"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *groups.values()]
    found = [Requirement(each) for named in lists for each in named if isinstance(each, str)]
    return [each for each in found if each.name != project["name"]]


def test_the_extra_all_has_every_other_extra() -> None:
    extras = dict(DECLARED["project"]["optional-dependencies"])
    (everything,) = map(Requirement, extras.pop("all"))
    assert (everything.name, everything.extras) == (DECLARED["project"]["name"], set(extras))
    assert set(IMPORTS) == {*extras, "all"}, "test_wheel.py imports what each extra is for"


def test_every_release_in_the_lock_has_hashes() -> None:
    pins = audit.pins(LOCK)
    assert len(pins) > 50
    assert [pin.name for pin in pins if not pin.hashes] == []


def test_nothing_in_the_lock_is_without_a_version() -> None:
    lines = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    assert [line for line in lines if "==" not in line] == []


def test_the_lock_has_every_dependency_in_a_version_that_is_allowed() -> None:
    locked: dict[str, list[str]] = {}
    for pin in audit.pins(LOCK):
        locked.setdefault(canonicalize_name(pin.name), []).append(pin.version)
    wrong = [
        str(each)
        for each in declared()
        if not any(
            each.specifier.contains(version)
            for version in locked.get(canonicalize_name(each.name), [])
        )
    ]
    assert wrong == []


PAGE = """<a href="https://files/x-1.0.tar.gz#sha256={good}">x-1.0.tar.gz</a>
<a href="https://files/x-1.0-py3-none-any.whl#sha256={bad}" data-yanked="broken">x</a>"""
GOOD, BAD, STRANGE = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("hashes", "said"),
    [
        ({GOOD}, []),
        (set(), ["x 1.0 has no hash in the lock"]),
        ({GOOD, BAD}, ["x 1.0: x-1.0-py3-none-any.whl was yanked"]),
        ({STRANGE}, [f"x 1.0: sha256 {STRANGE[:12]}… is not in the index"]),
    ],
    ids=["sound", "no hash", "yanked", "other bytes"],
)
def test_the_audit_finds_what_is_wrong(hashes: set[str], said: list[str]) -> None:
    offered = audit.files_of(PAGE.format(good=GOOD, bad=BAD))
    assert list(audit.faults(audit.Pin("x", "1.0", frozenset(hashes)), offered)) == said


def test_the_audit_names_advisories() -> None:
    asked = [audit.Pin("x", "1.0", frozenset()), audit.Pin("y", "2.0", frozenset())]
    answer = json.dumps({"results": [{}, {"vulns": [{"id": "GHSA-1"}, {"id": "PYSEC-2"}]}]})
    assert audit.advisories(asked, answer) == ["y 2.0: GHSA-1, PYSEC-2"]


def test_the_audit_reads_a_lock() -> None:
    lock = f"x==1.0 ; python_version < '3.12' \\\n    --hash=sha256:{GOOD}\ny-z==2\n"
    pins = audit.pins(lock)
    assert [(pin.name, pin.version, pin.hashes) for pin in pins] == [
        ("x", "1.0", {GOOD}),
        ("y-z", "2", frozenset()),
    ]


@pytest.mark.long
def test_every_release_is_in_the_index_as_locked_and_not_yanked() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "audit.py"], capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
