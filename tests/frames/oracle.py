"""Values that can be compared with Spark's."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """A value that can be compared with ==, also if it is NaN."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if value == 0:
            return "-0.0" if math.copysign(1, value) < 0 else 0.0
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return value
