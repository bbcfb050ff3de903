"""Which interpreter workers get, and when theirs is too different from the driver's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.connectors.worker_python import (
    PythonFound,
    check_python,
    chosen_python,
    difference,
    is_own,
    own_python,
)
from epochal.errors import WorkerPythonError

OWN = PythonFound("driver", "/venv/bin/python", "3.11.7", "0.2.0", "21.0.0")


@pytest.mark.parametrize(
    ("local", "variable", "setting", "chosen"),
    [
        (True, None, None, "/venv/bin/python"),
        (True, "", None, "/venv/bin/python"),
        (True, "/usr/bin/python3", None, "python3"),
        (True, None, "/opt/python", "/opt/python"),
        (False, None, None, "python3"),
        (False, None, "/opt/python", "/opt/python"),
        (False, "/usr/bin/python3", "/opt/python", "python3"),
    ],
)
def test_the_drivers_interpreter_is_for_local_masters_on_which_nobody_chose_another(
    local: bool, variable: str | None, setting: str | None, chosen: str
) -> None:
    environ = {} if variable is None else {"PYSPARK_PYTHON": variable}
    found = chosen_python(
        "python3", local=local, environ=environ, setting=setting, own="/venv/bin/python"
    )
    assert found == chosen


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (OWN, None),
        (replace(OWN, python="3.11.2", pyarrow="21.1.0"), None),
        (replace(OWN, epochal="0.1.0"), "epochal 0.1.0, the driver 0.2.0"),
        (replace(OWN, epochal=""), "no epochal, the driver 0.2.0"),
        (replace(OWN, pyarrow="14.0.1"), "pyarrow 14.0.1, the driver 21.0.0"),
        (replace(OWN, python="3.10.4"), "Python 3.10.4, the driver 3.11.7"),
        (
            replace(OWN, epochal="", pyarrow=""),
            "no epochal, the driver 0.2.0; no pyarrow, the driver 21.0.0",
        ),
    ],
)
def test_a_worker_needs_the_same_package_python_and_arrow(
    found: PythonFound, words: str | None
) -> None:
    assert difference(found, OWN) == words


def test_the_error_names_the_interpreter_and_both_versions() -> None:
    with pytest.raises(WorkerPythonError) as refused:
        check_python(replace(OWN, host="host7", executable="/usr/bin/python3", epochal=""), OWN)
    assert str(refused.value) == (
        "Spark's Python workers cannot run the query: /usr/bin/python3 on host7 has no epochal, "
        "the driver 0.2.0. Set PYSPARK_PYTHON, before the session starts, to an interpreter that "
        "every worker has, with the same versions as the driver's /venv/bin/python."
    )


def test_this_process_agrees_with_itself() -> None:
    own = own_python()
    assert difference(own, own) is None
    assert is_own(own.executable)
