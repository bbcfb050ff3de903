"""The expressions on numbers whose values are compared with Spark's."""

from __future__ import annotations

PAIRS = [("by", "by2"), ("i", "j"), ("l", "l2"), ("d", "e"), ("f", "g"), ("p", "q"), ("p", "p")]
PAIRS += [("x", "y"), ("z", "y"), ("z", "z"), ("i", "p"), ("l", "x"), ("i", "d"), ("p", "k")]
OTHER_PAIRS = [("s", "t"), ("b", "c"), ("bo", "bp"), ("arr", "brr"), ("st", "su"), ("ts", "ts")]
COMPARED = ["=", "<=>", "<", "<=", ">", ">=", "<>"]
KINDS = (
    "tinyint smallint int bigint float double boolean date timestamp timestamp_ntz binary string"
)
DECIMALS = ["decimal(10,2)", "decimal(38,0)", "decimal(38,18)", "decimal(5,5)"]


def arithmetic() -> list[str]:
    found = []
    for left, right in PAIRS:
        found += [f"{left} {sign} {right}" for sign in ["+", "-", "*", "/", "%", "div"]]
        found += [f"pmod({left}, {right})", f"try_mod({left}, {right})"]
        names = ["add", "subtract", "multiply", "divide"]
        found += [f"try_{name}({left}, {right})" for name in names]
    for each in ["by", "sh", "i", "l", "d", "f", "p", "x", "z", "y"]:
        found += [f"-{each}", f"+{each}", f"abs({each})", f"sign({each})", f"round({each})"]
        found += [f"{name}({each}, {n})" for name in ("round", "bround") for n in (1, -1)]
        found += [f"{name}({each})" for name in ("ceil", "floor")]
        found += [f"ceil({each}, 1)", f"floor({each}, -1)"]
    for left, right in PAIRS[:3]:
        found += [f"{left} & {right}", f"{left} | {right}", f"{left} ^ {right}", f"~{left}"]
    return found


def comparisons() -> list[str]:
    found = []
    for left, right in PAIRS + OTHER_PAIRS:
        found += [f"{left} {sign} {right}" for sign in COMPARED]
        found += [f"greatest({left}, {right})", f"least({left}, {right}, NULL)"]
    for left, right in OTHER_PAIRS:
        found += [f"{left} IN ({right}, {right})", f"coalesce({left}, {right})"]
        found += [f"nullif({left}, {right})", f"{left} IS NULL", f"nvl2({left}, {right}, {left})"]
    many = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    texts = ", ".join(f"'{each}'" for each in ("a", "ab", *range(12)))
    found += [f"k IN ({many})", f"k IN ({many}, NULL)", f"k NOT IN ({many}, NULL)", "k IN (i, j)"]
    found += [f"s IN ({texts})", "s IN ('a', 'b')", "i IN (1, NULL)", "d IN (1.5D, double('NaN'))"]
    found += [f"d IN ({many.replace(',', 'D,')}D, 0D, double('NaN'))", "d BETWEEN e AND 5"]
    found += ["bo AND bp", "bo OR bp", "NOT bo", "nanvl(d, e)", "isnan(d)", "if(bo, i, j)"]
    found += ["CASE WHEN bo THEN s WHEN bp THEN t END", "CASE k WHEN 1 THEN 'a' ELSE s END"]
    found += ["k <> 0 AND 10 / k > 1", "k = 0 OR 10 / k > 1", "coalesce(k, 10 / 0)"]
    return found


def casts(function: str = "cast") -> list[str]:
    columns = ["by", "sh", "i", "l", "d", "f", "p", "y", "bo", "dt", "ts", "tn", "b", "s"]
    kinds = [*KINDS.split(), *DECIMALS]
    # Java 17 prints floats with other digits than later releases.
    found = [f"{function}({each} AS {kind})" for each in columns for kind in kinds]
    found = [text for text in found if text != f"{function}(f AS string)"]
    nested = ["arr AS string", "m AS string", "st AS string", "arr AS array<tinyint>"]
    nested += ["arr AS array<string>", "m AS map<int,string>", "st AS struct<x:string,y:string>"]
    nested += ["struct(p, d, dt, ts, bo) AS string", "sarr AS array<boolean>"]
    return found + [f"{function}({each})" for each in nested]


NUMBERS = """
0; 1; -1; 12 ; +5; 1.5; -1.9; .5; 5.; .; -; +; ; abc; 1e3; 1E-3; 1d; 1.5f; NaN; nan; Infinity; -inf
inf; +infinity; 0x1p3; 127; 128; -128; -129; 32768; 2147483647; 2147483648; 9223372036854775807
9223372036854775808; -9223372036854775808; 99999999999999999999; 123456789.123456789; 0.005; 0.015
t; TRUE; yes; N; no; F; 1_000; 1,000; 0x10; 1e400; -1e400; 1e-400; 3.5e38; 1e39
12345678901234567890123456789012345678; 123456789012345678901234567890123456789; 1e37; 1e38
0.00000000000000000000000000000000000001; -0; -0.0; 00012; true ; 1 2
"""

TIMES = """
2020; 2020-1; 2020-01-02; 2020-1-2; 2020-1-2 3:4:5; 2020-01-02T03:04:05.123456Z; epoch; now
2020-01-02 03:04:05.1234567+01:00; 2020-01-02 03:04:05 Europe/Berlin; 2020-02-30; 2020-13-01
0001-01-01; 9999-12-31; 12345-01-01; -0001-01-01; +2020-01-01; 2020-01-02 03; 2020-01-02 03:04
2020-01-02 25:00:00; 2020-01-02 03:04:05.; 2020-01-02 03:04:05PST; 2020-01-02 03:04:05 UTC+1
2020-01-02 03:04:05+1:30; 2020-01-02 03:04:05+0130; 2020-01-02 03:04:05-19:00; 2020-03-08 02:30:00
2020-11-01 01:30:00; 1883-11-18 12:00:00; 1800-01-01 00:00:00; 200000-01-01 00:00:00; 999999-01-01
2020-01-02abc; 2020-01-02 abc; 202-01-01; 2020-001-01; 2020-01-02 03:04:05 Foo/Bar
2020-01-02 03:04:05GMT; 2020-01-02 03:04:05 GMT+01:00; 2020-01-02 03:04:05+01:00:30
2020-01-02 03:04:05 CET
"""


def special_texts() -> list[str | None]:
    """Texts that are numbers, dates or times, or nearly."""
    lines = (NUMBERS + TIMES).strip("\n").replace("\n", "; ")
    return [None, "\t7\n", "\uff11\uff12", *lines.split("; ")]
