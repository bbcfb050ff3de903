"""Plants a fault and obeys the remedy that `verify` prints for it, to the letter."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.planted import Fault

from epochal.checkpoint.layout import SINK_LOG
from epochal.cli.main import main
from epochal.files.local import LocalFiles
from epochal.tools.verify import remedy_commands
from epochal.tools.verify.findings import Depth, Finding
from epochal.tools.verify.verify import verify

AT_ONCE = ("--execute", "--settle-seconds", "0")
COMMAND = re.compile(r"`epochal ([^`]+)`")


def planted(fault: Fault, into: Path) -> Unpacked:
    place = unpack(Golden(fault.release, fault.case), into, relocate=fault.relocate)
    fault.plant(place.checkpoint)
    return place


def findings_of(place: Unpacked, *, with_sink: bool) -> tuple[Finding, ...]:
    sink = LocalFiles(place.output) if with_sink else None
    return verify(LocalFiles(place.checkpoint), depth=Depth.DEEP, sink=sink).findings


def commands_in(remedy: str) -> list[list[str]]:
    """The words of each command that a remedy names, after `epochal`, with its placeholders."""
    return [command.split() for command in COMMAND.findall(remedy)]


def obey(command: list[str], place: Unpacked) -> int:
    """Run a command of a remedy as `verify` prints it, which knows the output or that none is."""
    output = str(place.output) if (place.output / SINK_LOG).is_dir() else None
    printed = remedy_commands.with_places(
        f"`epochal {' '.join(command)}`", str(place.checkpoint), output, no_file_sink=output is None
    )
    return main([*shlex.split(printed.strip("`"))[1:], *AT_ONCE])
