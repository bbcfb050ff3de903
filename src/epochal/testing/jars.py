"""Jars of real components, resolved from Maven coordinates and kept in a cache.

The resolver is Apache Ivy from the installed PySpark, the one behind `spark-submit --packages`, so
nothing but Java and PySpark is needed. A set of coordinates becomes one directory, filled aside
and renamed into place: processes that ask at the same moment cannot see, or make, half of one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from epochal.errors import ComponentError, OptionError

RESOLVE_SECONDS = 900


def cache_dir() -> Path:
    """Where downloads are kept: EPOCHAL_CACHE, or `~/.cache/epochal`."""
    return Path(os.environ.get("EPOCHAL_CACHE") or Path.home() / ".cache" / "epochal")


def find_java() -> str:
    """The `java` command: JAVA_HOME's, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        raise ComponentError(
            f"No java: JAVA_HOME is {home!r} and PATH has no `java`. Install Java 17 or newer, or "
            f"set JAVA_HOME to one."
        )
    return command


def resolve(*coordinates: str, overrides: Sequence[str] = ()) -> list[Path]:
    """Every jar of `group:artifact:version` coordinates and what they depend on, sorted.

    `overrides` are coordinates too: they replace the versions that dependencies ask for.
    """
    wanted = _ivy_file(sorted(set(coordinates)), sorted(set(overrides)))
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:16]
    target = cache_dir() / "jars" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{digest}.") as work:
            filled = _download(wanted, Path(work), " and ".join(coordinates))
            try:
                filled.rename(target)
            except OSError:
                if not target.is_dir():  # else another process put the same jars there first
                    raise
    return sorted(target.glob("*.jar"))


def classpath(*coordinates: str) -> str:
    """The jars of `coordinates` as Java's `-cp` takes them."""
    return os.pathsep.join(str(jar) for jar in resolve(*coordinates))


def _download(wanted: str, work: Path, named: str) -> Path:
    wishes = work / "ivy.xml"
    wishes.write_text(wanted, encoding="utf-8")
    filled = work / "jars"
    command = [
        *(find_java(), "-jar", str(_ivy_jar()), "-ivy", str(wishes)),
        *("-cache", str(work / "ivy"), "-confs", "default"),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{filled}/[organisation]_[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        run = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RESOLVE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ComponentError(
            f"Resolving {named} took more than {RESOLVE_SECONDS} s; is a Maven "
            f"repository reachable from here?"
        ) from None
    if run.returncode != 0 or not filled.is_dir():
        raise ComponentError(
            f"Cannot resolve {named}; is a Maven repository reachable from here? "
            f"Ivy said:\n{_tail(run.stdout)}"
        )
    return filled


def _ivy_file(coordinates: Sequence[str], overrides: Sequence[str]) -> str:
    lines = []
    for coordinate in coordinates:
        group, artifact, version = _attributes(coordinate)
        lines.append(f'<dependency org={group} name={artifact} rev={version} conf="default"/>')
    for coordinate in overrides:
        group, artifact, version = _attributes(coordinate)
        lines.append(f"<override org={group} module={artifact} rev={version}/>")
    return (
        '<ivy-module version="2.0"><info organisation="epochal" module="components"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _attributes(coordinate: str) -> tuple[str, str, str]:
    parts = coordinate.split(":")
    if len(parts) != 3 or not all(parts):
        raise OptionError(f"{coordinate!r} is not group:artifact:version.")
    group, artifact, version = (quoteattr(part) for part in parts)
    return group, artifact, version


def _ivy_jar() -> Path:
    spark = importlib.util.find_spec("pyspark")
    homes = spark.submodule_search_locations if spark else None
    found = [jar for home in homes or () for jar in Path(home, "jars").glob("ivy-*.jar")]
    if not found:
        raise ComponentError("No Ivy: PySpark is not installed. `pip install 'epochal[spark]'`.")
    return found[0]


def _tail(text: str, lines: int = 30) -> str:
    # Ivy draws its progress with dots, thousands to a line.
    kept = [line for line in text.splitlines() if line.strip(". ")]
    return "\n".join(line[:300] for line in kept[-lines:])
