"""The Python functions of `python.sql`. Every engine calls the same ones, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
IN_URL = re.compile(r"(?:&|^)channel_id=([^&]*)")


def dollars(price: int) -> float:
    return 0.908 * price


def wanted(auction: int) -> bool:
    return auction % 123 == 0


def count_c(text: str) -> int:
    return text.count("c")


def channel_id(channel: str, url: str) -> str:
    known = IDS.get(channel.lower())
    if known is not None:
        return known
    found = IN_URL.search(url)
    return found[1] if found else ""


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "dollars": (dollars, "DOUBLE"),
    "wanted": (wanted, "BOOLEAN"),
    "count_c": (count_c, "BIGINT"),
    "channel_id": (channel_id, "STRING"),
}
"""The functions and the types of their results."""
