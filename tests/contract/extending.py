"""The examples of docs/extending.md as modules."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


@cache
def example(section: str) -> ModuleType:
    """The first example of a section, such as `sink`. Pickles of what it defines can be read."""
    text = PAGE.read_text().partition(f"## Add a {section}\n")[2]
    found = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert found is not None, section
    module = ModuleType(f"example_of_a_{section}")
    sys.modules[module.__name__] = module
    exec(compile(found[1], str(PAGE), "exec"), module.__dict__)
    return module


def lines_of(section: str) -> int:
    """The length of the first example of a section."""
    text = PAGE.read_text().partition(f"## Add a {section}\n")[2]
    return text.partition("```python\n")[2].partition("```")[0].count("\n")
