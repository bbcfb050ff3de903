"""Runs the code cells of a notebook in this process, top to bottom, without Jupyter.

    python -m tests.integration.notebook FILE.ipynb

Note: of IPython's syntax it supports only what our notebooks use: lines that start with `!`, with
`{name}` for a variable's value. It prints the last value of a cell.
"""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(text: str, names: dict[str, Any]) -> None:
    if text.startswith("!"):
        words = shlex.split(text.removeprefix("!").format(**names))
        command = [sys.executable, "-m", "epochal.cli.main", *words[1:]]
        assert words[0] == "epochal", f"cannot run {words[0]}"
        subprocess.run(command, check=True)
        return
    body = ast.parse(text).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None:
            sys.stdout.write(f"{value!r}\n")


def main(path: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(Path(path)):
        run_cell(cell, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
