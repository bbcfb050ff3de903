"""The tables of functions, which `evaluate` merges into one."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict

from epochal.continuous.operators import expressions


def test_no_function_is_defined_in_two_modules() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for found in pkgutil.walk_packages(expressions.__path__, f"{expressions.__name__}."):
        if found.name.endswith(".evaluate"):
            continue
        for name in getattr(importlib.import_module(found.name), "FUNCTIONS", ()):
            modules[name].append(found.name)

    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
