"""Numbers as Java prints them. Pure."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np


def java_text(value: float, *, single: bool = False) -> str:
    """A double (or a float, if `single`) as Java prints it: plain from 0.001 to 10 million,
    `d.dE±n` outside."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    shortest = np.format_float_scientific(np.float32(value)) if single else repr(float(value))
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # digits before the decimal point
    prefix = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{prefix}{whole}.{text[point:] or '0'}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"
