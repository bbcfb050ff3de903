"""Runs the real demo in a terminal of 100 columns and writes its screen to docs/pictures/demo.svg.

python scripts/picture_demo.py [OUTPUT.svg]

The figures in the picture are those of this run, so run it on an idle machine.
"""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 60
PICTURE = Path(__file__).resolve().parent.parent / "docs/pictures/demo.svg"
COMMAND = "epochal demo --seconds 15 --directory demo"

_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


class Terminal:
    """The lines of a terminal, as far as a live view needs it: moving up and erasing a line."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            control = _CONTROL.match(text, at)
            if control is not None:
                self._control(*control.groups(), control.group())
                at = control.end()
                continue
            if text[at] == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif text[at] != "\r":
                self.lines[self._row] += text[at]
            at += 1

    def _control(self, number: str, letter: str, whole: str) -> None:
        if letter == "m":
            self.lines[self._row] += whole
        elif letter == "A":
            self._row = max(0, self._row - int(number or 1))
        elif letter == "K":
            self.lines[self._row] = ""


def run_in_terminal(command: list[str], folder: str) -> tuple[int, str]:
    """Run a command in a terminal of its own; return its exit status and all that it wrote."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        # As in an activated environment, so that the commands at the end begin with `epochal`.
        here = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", "")))
        os.execvp(command[0], command)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    parts = []
    try:
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    except OSError:  # how Linux reports that the last process has closed the terminal
        pass
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), b"".join(parts).decode()


def picture(lines: list[str]) -> str:
    """The lines of a terminal as SVG, without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    form = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT)
    svg = console.export_svg(title=COMMAND, code_format=form, unique_id="demo")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main(target: str = str(PICTURE)) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.abspath(sys.executable), "-m", "epochal", *COMMAND.split()[1:]]
        status, written = run_in_terminal(command, folder)
    terminal = Terminal()
    terminal.write(f"$ {COMMAND}\n{written}")
    lines = terminal.lines
    while lines and not lines[-1].strip():
        lines.pop()
    if status:
        sys.stderr.write("\n".join(lines) + f"\nThe demo ended with status {status}.\n")
        return status
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(picture(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
