"""Commands on a real terminal: widths, prompts, completion, suggestions, help."""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from select import select
from termios import TIOCSWINSZ
from typing import Any

import pytest
import typer
from tests.golden.library import Golden, unpack
from typer.core import TyperGroup

from epochal.cli.main import app, main
from epochal.cli.printing.table_layout import cells_wide

CTRL_C = "\x03"
PROGRAM = [sys.executable, "-m", "epochal"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(Golden("4.3.0", "file_sink_counts"), tmp_path, relocate=True).base / "checkpoint"


def on_terminal(columns: int, *arguments: object, answer: str = "") -> tuple[int, str]:
    """Run a command in a terminal; return its exit status and its output without colours."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.pop("NO_COLOR", None)
        os.environ.pop("COLUMNS", None)
        os.environ["TERM"] = "xterm"
        if not answer:  # no progress bar: how many are drawn depends on the machine
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execv(sys.executable, [*PROGRAM, *map(str, arguments)])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    parts: list[bytes] = []
    answered = False
    try:
        while True:
            # Python can miss a Ctrl-C that comes just as it begins to wait for a line. A person
            # would press it again.
            if not select([terminal], [], [], 2.0)[0] and answered and answer == CTRL_C:
                os.write(terminal, answer.encode())
                continue
            part = os.read(terminal, 1 << 16)
            if not part:
                break
            parts.append(part)
            if answer and not answered and b"[y/N]" in b"".join(parts):
                os.write(terminal, answer.encode())
                answered = True
    except OSError:  # how Linux reports the end
        pass
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    text = b"".join(parts).decode()
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text).replace("\r", "")
    return os.waitstatus_to_exitcode(status), plain


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_every_table_fits_the_terminal(columns: int, checkpoint: Path) -> None:
    output = checkpoint.parent / "output"
    for words in (
        ("checkpoint", "show", checkpoint),
        ("checkpoint", "log", checkpoint / "offsets"),
        ("checkpoint", "log", output / "_spark_metadata"),
        ("checkpoint", "diff", checkpoint, "--batch", 1, "--batch", 9),
        ("checkpoint", "rewind", checkpoint, "--to-batch", 3, "--sink", output),
        ("checkpoint", "rewind", checkpoint, "--to-batch", 3, "--sink", output, "-v"),
        ("state", "show", checkpoint),
        ("state", "read", checkpoint),
        ("state", "stats", checkpoint),
        ("state", "diff", checkpoint),
    ):
        _, shown = on_terminal(columns, *words)
        # A path cannot be folded at will where it is to be copied.
        lines = [line for line in shown.splitlines() if str(output) not in line]
        wide = [line for line in lines if cells_wide(line) > columns]
        assert wide == [], words
        assert len(shown.splitlines()) > 1, words


def test_stores_of_a_join_are_a_table_also_on_a_narrow_terminal(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "join_inner"), tmp_path)
    _, shown = on_terminal(80, "checkpoint", "show", place.checkpoint)
    lines = shown.splitlines()
    at = lines.index("all rows: name symmetricHashJoin")
    assert lines[at + 1].split()[:3] == ["operator", "provider", "partitions"]
    assert all(cells_wide(line) <= 80 for line in lines)


def test_errors_and_notes_are_folded_at_words(checkpoint: Path) -> None:
    folder = checkpoint.parent / "output"
    status, shown = on_terminal(80, "checkpoint", "show", folder, answer="not needed")
    assert status == 2
    assert len(shown.splitlines()) > 1
    assert {"commits,", "sources,", "checkpointLocation."} <= set(shown.split())
    assert all(cells_wide(line) <= 80 for line in shown.splitlines())
    _, shown = on_terminal(80, "checkpoint", "copy", checkpoint, checkpoint.parent / "copy")
    [note] = [line for line in shown.splitlines() if line.startswith("note: ")]
    # As many words as fit, although the first one is in a colour.
    assert note == "note: The copy has the same query id. Run only one of the two queries: both"


def test_the_command_of_a_remedy_stays_whole(checkpoint: Path) -> None:
    (checkpoint / "state/0/0" / max_delta(checkpoint)).unlink()
    status, shown = on_terminal(80, "checkpoint", "verify", checkpoint)
    assert status == 1
    command = f"`epochal checkpoint rewind {checkpoint} --to-batch "
    assert any(command in line for line in shown.splitlines()), shown


def max_delta(checkpoint: Path) -> str:
    """The name of the newest delta of the first partition."""
    names = [path.name for path in (checkpoint / "state/0/0").glob("*.delta")]
    return max(names, key=lambda name: int(name.partition(".")[0]))


def test_what_no_undo_takes_back_is_asked_for_on_a_terminal(checkpoint: Path) -> None:
    rewind = ("checkpoint", "rewind", checkpoint, "--to-batch", 3, "--settle-seconds", 0)
    output = checkpoint.parent / "output"
    execute = (*rewind, "--sink", output, "--execute")
    status, shown = on_terminal(100, *execute, answer="not needed")
    assert (status, "[y/N]" in shown) == (0, False), shown  # `undo` takes this back
    prune = ("checkpoint", "undo", checkpoint, "--prune", "--execute")
    status, shown = on_terminal(100, *prune, answer="n\n")
    assert status == 1
    assert "Forget 1 edit? `epochal checkpoint undo` will not find it again. [y/N]" in shown
    assert "Nothing was changed." in shown
    status, shown = on_terminal(100, *prune, answer=CTRL_C)
    assert (status, shown.count("Interrupted. Nothing was changed.")) == (130, 1)
    assert (checkpoint / ".epochal/journal/0001-rewind").exists()
    status, shown = on_terminal(100, *prune, "--yes", answer="not needed")
    assert (status, "Forgot: 0001-rewind" in shown, "[y/N]" in shown) == (0, True, False)


def test_nothing_is_asked_without_a_terminal(checkpoint: Path) -> None:
    words = ("rewind", checkpoint, "--to-batch", 3, "--sink", checkpoint.parent / "output")
    flags = ("--execute", "--even-if-busy")
    done = subprocess.run(
        [*PROGRAM, "checkpoint", *map(str, (*words, *flags))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


ALL = list(commands(typer.main.get_command(app), ()))


@pytest.mark.parametrize("columns", [80, 100])
def test_no_help_text_is_cut_off_or_too_wide(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert len(ALL) > 30
    for path in ALL:
        assert main([*path, "--help"]) == 0
        shown = capsys.readouterr().out
        assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), path
        assert [line for line in shown.splitlines() if len(line) > columns] == [], path
        assert "<float" not in shown, path
        assert not re.search(r"--[-\w]*-$", shown, re.MULTILINE), path  # an option cut in two
        named = re.findall(r"With\s+(--[-\w]+)[:,]", shown)
        assert all(re.search(rf"^  (-\w, )?{name}\b", shown, re.MULTILINE) for name in named), path


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("checkpont",), "Did you mean checkpoint or check?"),
        (("state", "reed", "x"), "Did you mean read"),
        (("checkpoint", "show", "x", "--jsn"), "--json"),
        (("state", "read", "x", "--operater", "1"), "--operator"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(
    words: tuple[str, ...], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert suggestion in capsys.readouterr().err


def completed(shell: str, line: str) -> list[str]:
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_EPOCHAL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from epochal.__main__ import main; sys.exit(main())"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    offered = "\n".join(completed(shell, "epochal checkpoint re"))
    assert ("rewind" in offered, "repair" in offered, "show" in offered) == (True, True, False)
    offered = "\n".join(completed(shell, "epochal checkpoint rewind DIR --to-"))
    assert ("--to-batch" in offered, "--to-datetime" in offered) == (True, True)


def test_bash_itself_completes_a_command(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "epochal"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m epochal "$@"\n')
    program.chmod(0o755)
    script = (
        f'export PATH="{tmp_path}:$PATH"\n'
        'eval "$(_EPOCHAL_COMPLETE=source_bash epochal)"\n'
        "COMP_WORDS=(epochal state rep); COMP_CWORD=2\n"
        "_epochal_completion epochal\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("repartition repair\n", "")


def test_completion_imports_neither_spark_nor_columns() -> None:
    script = (
        "import sys, atexit\n"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'obstore'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        "from epochal.__main__ import main\n"
        "sys.exit(main())\n"
    )
    environment = {
        **os.environ,
        "_EPOCHAL_COMPLETE": "complete_bash",
        "COMP_WORDS": "epochal ",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert "checkpoint" in done.stdout.splitlines()
    assert done.stderr == "[]\n"
