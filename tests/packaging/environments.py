"""The built wheel, and clean environments to install it into.

Note: environments are made with the interpreter's own `venv` and filled by
pip, as a user would, not by the tool that builds ours. uv only fills those that come by the dozen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13")


def done(command: list[str | Path], *, cwd: Path | None = None, code: int = 0) -> str:
    """What a command wrote to both of its outputs; it must end with this code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=280
    )
    said = f"{run.stdout}{run.stderr}"
    assert run.returncode == code, (
        f"{' '.join(map(str, command))}: {run.returncode}: {said[-3000:]}"
    )
    return said


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def epochal(self, *words: str | Path, code: int = 0) -> str:
        return done([self.home / "bin" / "epochal", *words], cwd=self.home, code=code)

    def run(self, program: str) -> str:
        # -I: neither the directory nor anything of the caller's is on the path.
        return done([self.python, "-I", "-c", program], cwd=self.home)


def build_wheel(into: Path) -> Path:
    done([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", into, ROOT])
    (wheel,) = into.glob("epochal-*.whl")
    return wheel


def installed(home: Path, python: Path, wheel: Path) -> Environment:
    """An environment with the wheel and what it requires, by pip."""
    done([python, "-m", "venv", home])
    made = Environment(home)
    done([made.python, "-m", "pip", "install", "--quiet", wheel])
    return made


def installed_extra(home: Path, python: Path, wheel: Path, extra: str) -> Environment:
    """An environment with one extra and nothing else."""
    uv = Path(sys.executable).parent / "uv"
    done([uv, "venv", "--quiet", "--python", python, home])
    made = Environment(home)
    wanted = f"epochal[{extra}] @ {wheel.as_uri()}"
    done([uv, "pip", "install", "--quiet", "--python", made.python, wanted])
    return made


def interpreter(version: str) -> Path:
    """A Python of this version: this one, one on PATH, or one that pyenv keeps."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = shutil.which(f"python{version}")
    candidates = [
        Path(sys.executable),
        *([Path(found)] if found else []),
        *sorted(root.glob(f"versions/{version}.*/bin/python{version}")),
    ]
    asks = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for python in candidates:
        run = subprocess.run([python, "-I", "-c", asks], capture_output=True, text=True)
        if run.returncode == 0 and run.stdout.strip() == version:
            return python
    raise AssertionError(f"There is no Python {version} here: put python{version} on PATH.")
