"""Every golden case, by name."""

from tests.golden import (
    cases_aggregate,
    cases_join,
    cases_python,
    cases_rocksdb,
    cases_source,
    cases_types,
)
from tests.golden.shape import Case

MODULES = (cases_aggregate, cases_types, cases_join, cases_source, cases_rocksdb, cases_python)
CASES: dict[str, Case] = {case.name: case for module in MODULES for case in module.CASES}
CHANGED: dict[str, Case] = {case.name: case for case in cases_aggregate.CHANGED}
