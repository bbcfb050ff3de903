"""Errors that `epochal run` reports before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.cli.main import main


def test_a_missing_program_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.endswith(
        "none.py is not a file. Name a Python program that starts queries.\n"
    )


@pytest.mark.parametrize("setting", ["spark.ui.enabled", "=false"])
def test_a_setting_without_a_name_or_a_value_is_rejected(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    assert main(["run", "--conf", setting, str(program)]) == 2
    assert "--conf takes KEY=VALUE" in capsys.readouterr().err
