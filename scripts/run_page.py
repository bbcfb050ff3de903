"""Runs a page as a reader would: in an empty directory, block by block, exactly as it stands.

    python -m scripts.run_page docs/tutorial-rescue.md            # compares the output it shows
    python -m scripts.run_page docs/tutorial-rescue.md --write    # and renews what has changed

| block                       | what happens                                                      |
|-----------------------------|-------------------------------------------------------------------|
| `python title="orders.py"`  | the reader saves it as that file                                  |
| `python`                    | the reader pastes it into `python`, which stays open              |
| `sh`                        | the reader pastes it into a shell, which stays open               |
| `text`, behind one of these | what the reader sees: the standard output of the block before it  |

A command that fails ends the page, unless the comment `# exit status 1` announces it. Blocks that
only install something (`pip`, `make`, `git`) are left out.

Output is compared without what differs from run to run: ids, times, durations and sizes. A line `…`
in the page stands for any lines.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import BinaryIO

BLOCK = re.compile(
    r"^```(?P<kind>python|sh|text)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```", re.M | re.S
)
INSTALLS = ("pip install ", "make ")
ANNOUNCED = "# exit status 1"
BLOCK_SECONDS = 600
REPORT = 'for each in "${failed[@]}"; do echo "$each" >&$told; done; echo end >&$told'
COLUMNS = "100"
HOME = "/home/you"
"""What pages show in place of the directory in which they run."""
COMMANDS = {"bash": ["bash", "--noprofile", "--norc"], "python": ["python", "-i", "-q"]}

CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}…"), "ID"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b1\d{12}\b"), "TIME"),
    (
        re.compile(r"\b\d[\d,]*(\.\d+)? ?(µs|ms|s|seconds?|minutes?|B|KB|MB|KiB|MiB|bytes)\b"),
        "SIZE",
    ),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b\d+\.\d+\b"), "DECIMAL"),
    (re.compile(r"[ \t]+|[─━-]{3,}"), " "),  # columns are as wide as what is in them
)


class PageError(Exception):
    """A block failed, or printed something else than the page shows."""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    title: str | None
    text: str
    start: int
    """Where `text` begins in the page."""

    @property
    def installs(self) -> bool:
        lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
        return all(line.startswith(INSTALLS) for line in lines)


def blocks(page: str) -> list[Block]:
    return [
        Block(found["kind"], found["title"], found["text"], found.start("text"))
        for found in BLOCK.finditer(page)
    ]


class Reader:
    """A reader with a shell and a `python`, into which the blocks of a page are pasted."""

    def __init__(self, home: Path, log: Path) -> None:
        self._home, self._log = home, log
        self._output, self._errors = (log / "stdout").open("w+b"), (log / "stderr").open("w+b")
        self._told, self._tell = os.pipe()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        """The shell and the `python`, each from its first block to the end of the page."""
        self._seen: dict[str, int] = {}

    def run(self, block: Block) -> str:
        """Do what a reader does with a block, and return what it printed."""
        if block.title:
            (self._home / block.title).write_text(block.text)
            return ""
        script = self._log / "block"
        script.write_text(block.text)
        if block.kind == "sh":
            self._paste("bash", f"failed=(); source {script} </dev/null\n{REPORT}\n")
        else:
            self._paste(
                "python",
                f"{block.text}\n\n__import__('os').write({self._tell}, b'end\\n') and None\n",
            )
        failed = [command for command in self._wait() if not command.startswith("source ")]
        printed, errors = self._new(self._output), self._new(self._errors)
        announced = block.text.count(ANNOUNCED)
        if len(failed) != announced or (block.kind == "python" and "Traceback" in errors):
            raise PageError(
                f"{len(failed)} commands failed, {announced} of them announced: {failed}\n"
                f"{block.text}\n{printed[-4000:]}\n{errors[-6000:]}"
            )
        return printed.replace(str(self._home), HOME)

    def close(self) -> None:
        """End both, and what they left in the background."""
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        for each in (self._output, self._errors):
            each.close()
        os.close(self._told)
        os.close(self._tell)

    def _paste(self, program: str, text: str) -> None:
        if program not in self._running:
            self._running[program] = self._started(program)
            if program == "bash":
                text = f"told={self._tell}; trap 'failed+=(\"$BASH_COMMAND\")' ERR\n{text}"
        stdin = self._running[program].stdin
        assert stdin is not None
        stdin.write(text.encode())
        stdin.flush()

    def _started(self, program: str) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            COMMANDS[program],
            cwd=self._home,
            env={**os.environ, "PATH": path, "COLUMNS": COLUMNS, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            pass_fds=[self._tell],
            start_new_session=True,
        )

    def _wait(self) -> list[str]:
        said = b""
        while not said.endswith(b"end\n"):
            ready, _, _ = select([self._told], [], [], BLOCK_SECONDS)
            if not ready:
                errors = self._new(self._errors)[-3000:]
                raise PageError(f"A block takes more than {BLOCK_SECONDS} s: {errors}")
            said += os.read(self._told, 65536)
        return said.decode().splitlines()[:-1]

    def _new(self, file: BinaryIO) -> str:
        """What was written to a file since it was last read."""
        seen = self._seen.get(file.name, 0)
        text = os.pread(file.fileno(), 1 << 24, seen)
        self._seen[file.name] = seen + len(text)
        return text.decode(errors="replace")


@contextmanager
def reader() -> Iterator[Reader]:
    with tempfile.TemporaryDirectory(prefix="epochal-page-") as work:
        home, log = Path(work, "home"), Path(work, "log")
        home.mkdir()
        log.mkdir()
        one = Reader(home, log)
        try:
            yield one
        finally:
            one.close()


def masked(text: str) -> list[str]:
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.strip().splitlines()]


def agrees(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed. A line `…` stands for any lines."""
    lines = [".*" if line == "…" else re.escape(line) for line in masked(shown)]
    return re.fullmatch("\n".join(lines), "\n".join(masked(printed)), re.S) is not None


def run_page(page: str) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page; yield each block of output with what was really printed."""
    with reader() as shell:
        printed = ""
        for block in blocks(page):
            if block.kind == "text":
                yield block, printed
            elif not block.installs:
                printed = shell.run(block)


def renewed(page: str) -> str:
    """The page with the output that its blocks print now."""
    text = page
    for block, printed in reversed(list(run_page(page))):
        if not agrees(block.text, printed):
            end = block.start + len(block.text)
            lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            text = f"{text[: block.start]}{lines}{text[end:]}"
    return text


def check(page: str) -> None:
    """Run a page, and raise if a block fails or prints something else than the page shows."""
    for block, printed in run_page(page):
        if not agrees(block.text, printed):
            raise PageError(f"The page shows\n{block.text}\nbut the output is\n{printed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="renew the output that pages show")
    given = parser.parse_args()
    for page in given.page:
        if given.write:
            page.write_text(renewed(page.read_text()))
        else:
            check(page.read_text())
        sys.stdout.write(f"{page}: ran\n")


if __name__ == "__main__":
    main()
