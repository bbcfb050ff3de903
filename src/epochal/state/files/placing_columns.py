"""Decides which columns of a stored key choose the row's partition. Pure, and quick to import.

Spark places rows by a hash of the operator's partitioning expressions. That is not always the whole
stored key: a join numbers or dates the rows of a key in an extra last key column, and a session
window appends the session's start. Operators without partitioning columns (a global aggregate, a
limit) keep everything in partition 0.
"""

from __future__ import annotations

from epochal.state.rows.types import AtomicType, StructType

SESSION_OPERATOR = "sessionWindowStateStoreSaveExec"
LIMIT_OPERATOR = "globalLimit"
_NUMBERED = ("-keyWithIndexToValue", "-keyWithTsToValues", "-tsWithKey")
"""Stores of a join whose last key column is the number or the time of a row."""


def placing_columns(operator_name: str | None, store_name: str, key: StructType) -> StructType:
    """The key columns whose hash places a row; none if everything is in partition 0.

    Spark before 4.0 did not record the operator's name. Then the key's last column shows whether
    it is a session window.
    """
    fields = key.fields
    if store_name.endswith(_NUMBERED):
        return StructType(fields[:-1])
    sessions = operator_name == SESSION_OPERATOR or (
        operator_name is None and len(fields) > 1 and fields[-1].name == "sessionStartTime"
    )
    if sessions:
        return StructType(fields[:-1])
    if operator_name == LIMIT_OPERATOR or all(f.data_type == AtomicType("void") for f in fields):
        return StructType(())
    return key
