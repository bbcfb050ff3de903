"""Words the rows of a state store for people: `window=08:00 to 09:00, k=a`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ZERO_MICROS = re.compile(r"(?<=:\d\d)\.0+(?=Z$)")


def cell_text(value: Any) -> str:
    """A key or a value in one cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_inner(item)}" for name, item in value.items())
    return "-" if value is None else _inner(value)


def _inner(value: Any) -> str:
    match value:
        case str():
            return _ZERO_MICROS.sub("", value)
        case {"start": str() as start, "end": str() as end} if len(value) == 2:
            return f"[{_inner(start)}, {_inner(end)})"
    return json.dumps(value, ensure_ascii=False)
