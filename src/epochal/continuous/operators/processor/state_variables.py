"""ValueState, ListState and MapState, which behave like PySpark's.

They read and write the rows of the key at the cursor; the operator moves the cursor. Methods have
PySpark's names, because user programs call them.

Note: iterators start late. PySpark fetches a list when its first element is requested. Elements
appended between `get()` and that moment are included, later ones are not. The generators here do
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError

from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.processor.state_rows import ListRows, MapRows, ValueRows
from epochal.continuous.operators.processor.state_values import ValueConverter, failure

_UPDATING = "updating value state"
_MAPPING = "updating map state value"


class NoKey:
    """Takes the place of the key while there is none. Using it as a dict key raises the error."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise PySparkRuntimeError(
            "Error accessing state: no grouping key is set. State can be read and written only "
            "in handleInputRows, handleExpiredTimer and handleInitialState, not in init or close."
        )


class Cursor:
    """The current key and time."""

    __slots__ = ("key", "now_ms")

    def __init__(self) -> None:
        self.key: Any = NoKey()
        self.now_ms = 0


class ValueState:
    """The value of the current key."""

    __slots__ = ("_at", "_form", "_rows", "_values")

    def __init__(self, rows: ValueRows, form: ValueConverter, at: Cursor) -> None:
        self._rows, self._form = rows, form
        self._values = rows.values
        self._at = at

    def exists(self) -> bool:
        return self._at.key in self._values

    def get(self) -> tuple[Any, ...] | None:
        value = self._values.get(self._at.key)
        return value if value is None or self._form.flat else self._form.tuple_of(value)

    def update(self, newValue: Any) -> None:
        value = self._form.store(newValue, _UPDATING)
        key = self._at.key
        self._values[key] = value
        self._rows.dirty.add(key)

    def clear(self) -> None:
        self._rows.remove(self._at.key)


class ExpiringValueState(ValueState):
    """The value of the current key, until it expires."""

    __slots__ = ()

    def exists(self) -> bool:
        value = self._values.get(self._at.key)
        return value is not None and value[1] > self._at.now_ms

    def get(self) -> tuple[Any, ...] | None:
        value = self._values.get(self._at.key)
        if value is None or value[1] <= self._at.now_ms:
            return None
        return self._form.tuple_of(value[0])

    def update(self, newValue: Any) -> None:
        value = self._form.store(newValue, _UPDATING)
        self._rows.put(self._at.key, value, self._at.now_ms)


class ListState:
    """The list of the current key."""

    __slots__ = ("_at", "_form", "_rows")

    def __init__(self, rows: ListRows, form: ValueConverter, at: Cursor) -> None:
        self._rows, self._form = rows, form
        self._at = at

    def exists(self) -> bool:
        if self._rows.ttl_ms:
            return bool(self._rows.get(self._at.key, self._at.now_ms))
        return self._at.key in self._rows.values

    def get(self) -> Iterator[tuple[Any, ...]]:
        rows = self._rows.get(self._at.key, self._at.now_ms)
        yield from rows if self._form.flat else map(self._form.tuple_of, rows)

    def put(self, newState: Iterable[Any]) -> None:
        values = self._stored(newState)
        self._rows.put(self._at.key, values, self._at.now_ms)

    def appendValue(self, newState: Any) -> None:
        value = self._form.store(newState, _UPDATING)
        self._rows.append(self._at.key, (value,), self._at.now_ms)

    def appendList(self, newState: Iterable[Any]) -> None:
        values = self._stored(newState)
        self._rows.append(self._at.key, values, self._at.now_ms)

    def clear(self) -> None:
        self._rows.remove(self._at.key)

    def _stored(self, values: Iterable[Any]) -> list[Row]:
        rows = [self._form.store(value, _UPDATING) for value in values]
        if not rows:
            raise failure(
                _UPDATING,
                "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE",
                f"Illegal value provided to the State Store Cannot write empty list values to "
                f"State Store for StateName {self._rows.name}.",
                "42601",
            )
        return rows


class MapState:
    """The map of the current key."""

    __slots__ = ("_at", "_form", "_keys", "_rows")

    def __init__(
        self, rows: MapRows, keys: ValueConverter, form: ValueConverter, at: Cursor
    ) -> None:
        self._rows, self._keys, self._form = rows, keys, form
        self._at = at

    def exists(self) -> bool:
        if self._rows.ttl_ms:
            return bool(self._rows.items(self._at.key, self._at.now_ms))
        return self._at.key in self._rows.values

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        entry = self._keys.entry(key, "getting value")
        value = self._rows.find(self._at.key, entry, self._at.now_ms)
        return None if value is None else self._form.row_of(value)

    def containsKey(self, key: Any) -> bool:
        entry = self._keys.entry(key, "checking if map state contains key")
        return self._rows.find(self._at.key, entry, self._at.now_ms) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        entry = self._keys.entry(key, _MAPPING)
        stored = self._form.store(value, _MAPPING)
        self._rows.put(self._at.key, entry, stored, self._at.now_ms)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for entry, value in self._rows.items(self._at.key, self._at.now_ms):
            yield self._keys.tuple_of(entry), self._form.tuple_of(value)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        for entry, _ in self._rows.items(self._at.key, self._at.now_ms):
            yield self._keys.tuple_of(entry)

    def values(self) -> Iterator[tuple[Any, ...]]:
        for _, value in self._rows.items(self._at.key, self._at.now_ms):
            yield self._form.tuple_of(value)

    def removeKey(self, key: Any) -> None:
        entry = self._keys.entry(key, "removing key from map state")
        self._rows.remove(self._at.key, entry)

    def clear(self) -> None:
        self._rows.remove_key(self._at.key)


_DOING = {
    "Value": {
        "exists": "checking value state exists",
        "get": "getting value state",
        "update": _UPDATING,
        "clear": "clearing value state",
    },
    "List": {
        "exists": "checking value state exists",
        **dict.fromkeys(("put", "appendValue", "appendList"), _UPDATING),
        "clear": "clearing value state",
    },
    "Map": {
        "exists": "checking map state exists",
        "getValue": "getting value",
        "containsKey": "checking if map state contains key",
        "updateValue": _MAPPING,
        "removeKey": "removing key from map state",
        "clear": "clearing map state",
    },
}
"""How PySpark's errors call each use of a deleted variable, by its kind."""

_SILENT = {"List": ("get",), "Map": ("iterator", "keys", "values")}
"""Uses without an error: PySpark's iterators swallow it and are empty."""


def invalidate(state: ValueState | ListState | MapState, kind: str) -> None:
    """Make a deleted variable raise an error on every use.

    The processor keeps its reference to the object, so the class of the object itself is changed.
    """

    def refusal(doing: str) -> Callable[..., Any]:
        def refuse(state: Any, *given: Any) -> Any:
            name = state._rows.name
            raise PySparkRuntimeError(f"Error {doing}: {kind} state {name} is not initialized.")

        return refuse

    uses: dict[str, Any] = {name: refusal(doing) for name, doing in _DOING[kind].items()}
    uses |= dict.fromkeys(_SILENT.get(kind, ()), lambda state: iter(()))
    deleted = type(f"Deleted{kind}State", (type(state),), {"__slots__": (), **uses})
    object.__setattr__(state, "__class__", deleted)
