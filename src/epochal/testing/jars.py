"""Downloads the jars of Maven coordinates, with their dependencies, and caches them.

The resolver is Apache Ivy from the installed PySpark, which `spark-submit --packages` also uses, so
only Java and PySpark are needed. Each set of coordinates gets one directory. It is filled under a
temporary name and then renamed, so that concurrent processes never see a partial one.
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
WHOLE = "with-dependencies"
"""In the classifier of a jar that contains its dependencies."""


def cache_dir() -> Path:
    """The directory of downloads: EPOCHAL_CACHE, or `~/.cache/epochal`."""
    return Path(os.environ.get("EPOCHAL_CACHE") or Path.home() / ".cache" / "epochal")


def find_java() -> str:
    """The `java` command: the one in JAVA_HOME if that is set, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        raise ComponentError(
            f"Java was not found: JAVA_HOME is {home!r} and there is no `java` on PATH. Install "
            f"Java 17 or newer, or set JAVA_HOME."
        )
    return command


def resolve(*coordinates: str, overrides: Sequence[str] = ()) -> list[Path]:
    """The jars of `group:artifact:version` coordinates and of their dependencies, sorted.

    A fourth part of a coordinate is a classifier: that jar instead of the usual one.
    `overrides` are coordinates too. They replace the versions that dependencies request.
    """
    ivy_file = _ivy_file(sorted(set(coordinates)), sorted(set(overrides)))
    digest = hashlib.sha256(ivy_file.encode()).hexdigest()[:16]
    target = cache_dir() / "jars" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{digest}.") as work:
            filled = _download(ivy_file, Path(work), " and ".join(coordinates))
            try:
                filled.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
                # Another process has put the same jars there first.
    return sorted(target.glob("*.jar"))


def classpath(*coordinates: str) -> str:
    """The jars of `coordinates` in the form of Java's option `-cp`."""
    return os.pathsep.join(str(jar) for jar in resolve(*coordinates))


def _download(ivy_file: str, work: Path, names: str) -> Path:
    request = work / "ivy.xml"
    request.write_text(ivy_file, encoding="utf-8")
    filled = work / "jars"
    command = [
        *(find_java(), "-jar", str(_ivy_jar()), "-ivy", str(request)),
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
            f"Resolving {names} took more than {RESOLVE_SECONDS} s. Check that a Maven repository "
            f"is reachable from this machine."
        ) from None
    if run.returncode != 0 or not filled.is_dir():
        # Ivy's progress lines consist of thousands of dots.
        lines = [line[:300] for line in run.stdout.splitlines() if line.strip(". ")]
        end = "\n".join(lines[-30:])
        raise ComponentError(
            f"Cannot resolve {names}. Check that a Maven repository is reachable from this "
            f"machine. Ivy's output ends:\n{end}"
        )
    return filled


def _ivy_file(coordinates: Sequence[str], overrides: Sequence[str]) -> str:
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for coordinate in coordinates:
        *module, classifier = _attributes(coordinate)
        wanted.setdefault((module[0], module[1], module[2]), []).append(classifier)
    lines, names = [], ""
    for (group, artifact, version), classifiers in wanted.items():
        line = f'<dependency org={group} name={artifact} rev={version} conf="default"'
        if all(WHOLE in classifier for classifier in classifiers):
            line += ' transitive="false"'
        if classifiers == [""]:
            lines.append(f"{line}/>")
            continue
        names = ' xmlns:m="http://ant.apache.org/ivy/maven"'
        jars = "".join(
            f'<artifact name={artifact} type="jar" ext="jar"'
            + (f" m:classifier={classifier}/>" if classifier else "/>")
            for classifier in classifiers
        )
        lines.append(f"{line}>{jars}</dependency>")
    for coordinate in overrides:
        group, artifact, version, _ = _attributes(coordinate)
        lines.append(f"<override org={group} module={artifact} rev={version}/>")
    return (
        f'<ivy-module version="2.0"{names}><info organisation="epochal" module="components"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _attributes(coordinate: str) -> tuple[str, str, str, str]:
    parts = coordinate.split(":")
    if len(parts) not in (3, 4) or not all(parts):
        raise OptionError(
            f"{coordinate!r} is not a Maven coordinate of the form group:artifact:version, with or "
            f"without :classifier."
        )
    group, artifact, version = (quoteattr(part) for part in parts[:3])
    return group, artifact, version, quoteattr(parts[3]) if parts[3:] else ""


def _ivy_jar() -> Path:
    spark = importlib.util.find_spec("pyspark")
    homes = spark.submodule_search_locations if spark else None
    jars = [jar for home in homes or () for jar in Path(home, "jars").glob("ivy-*.jar")]
    if not jars:
        raise ComponentError(
            "Ivy was not found, because PySpark is not installed. Run "
            "`pip install 'epochal[spark]'`."
        )
    return jars[0]
