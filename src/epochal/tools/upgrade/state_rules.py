"""Compares the stateful operators of a checkpoint with those of a query. Pure.

Spark finds the state of an operator by its number, counted from the sink. It compares the names of
the operators, if the checkpoint has them (Spark 4.0 and later), and the types of keys and values by
position. It does not compare the names of columns: a grouping column that is replaced by another of
the same type, or two aggregates that change places, are accepted, and state is mixed up.

Our engine also compares the names of the key's columns, which it stores itself. It does not add
variables to the state of a processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochal.checkpoint.restart import STATE_ENCODING
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.rows.types import StructField, StructType, schema_json
from epochal.state.store.compatibility import (
    CONFIG_CHANGED,
    KEY_MISMATCH,
    UNSTABLE_KEY,
    VALUE_MISMATCH,
    fits,
    is_binary_stable,
)
from epochal.tools.edit_state.evolve import WIDER
from epochal.tools.upgrade.upgrade_findings import (
    ACCEPTS,
    AfterCommand,
    Impossible,
    Needs,
    OperatorFact,
    Pins,
    Safe,
    StoreFact,
    Unclear,
    UpgradeDifference,
    UpgradeVerdict,
    evolve_command,
    rename_words,
)

NOT_MATCHING = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
NO_STATE = "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"
VARIABLE_CHANGED = "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"
BAD_EVOLUTION = "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"
NO_DELTA = "CANNOT_LOAD_STATE_STORE"
PLAN_CHANGED = "was written by a query with"
"""A part of our engine's message, whose error has no condition."""

_AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec", "StatefulStreamlineAggregate")
_SAME_STATE = {"StatefulStreamlineAggregate": "stateStoreSave"}
"""Spark lets these two continue from each other's state."""
_JOIN = "symmetricHashJoin"
_DEDUPLICATION = "dedupe"
_GROUPS = ("flatMapGroupsWithState", "applyInPandasWithState")
AGGREGATES = {"count": "0", "max": "null", "min": "null", "sum": "null"}
"""What an aggregate without input has in its columns, by their names. A sum of decimals has more
than one column, and is not among them."""
TIMEOUTS = {"timeoutTimestamp": "-1"}
"""What the state of a group has that has no timeout."""
_STARTS = {**dict.fromkeys(_AGGREGATIONS, AGGREGATES), **dict.fromkeys(_GROUPS, TIMEOUTS)}
"""The values that columns may be added with, by operator; others may add any, as null."""


def compare_state(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    """Compare the operators one by one, then their stores and columns."""
    if (shape := _compare_shape(pins, needs)) is not None:
        return [shape]
    differences: list[UpgradeDifference] = []
    for number in sorted(pins.operators.keys() & needs.operators.keys()):
        was, wants = pins.operators[number], needs.operators[number]
        if needs.ours and (other := _compare_key_columns(was, wants)) is not None:
            differences.append(other)
            continue
        differences += _compare_properties(was, wants, ours=needs.ours)
        for name in sorted(was.stores.keys() & wants.stores.keys()):
            stores = was.stores[name], wants.stores[name]
            differences += _compare_store(pins, wants, *stores, ours=needs.ours)
    return differences


def _compare_shape(pins: Pins, needs: Needs) -> UpgradeDifference | None:
    was, wants = pins.operators, needs.operators
    has_names = any(store.name for store in was.values())
    same = was.keys() == wants.keys() and all(
        not was[number].name or _is_same(was[number], wants[number], ours=needs.ours)
        for number in was
    )
    if same:
        return None
    why = (
        "state belongs to an operator by its number, counted from the sink; operators cannot be "
        "added, removed or moved. Use a new checkpoint"
    )
    if needs.ours:
        why = (
            "state belongs to an operator by its number, and to a store by its name; neither can "
            "be added, removed or moved. Use a new checkpoint"
        )
    elif not was:
        why = "there is no state that the new operators could continue from. Use a new checkpoint"
    if needs.ours:
        # The plan of a query of Spark's is not stored, and there is no state to compare with.
        refusal = PLAN_CHANGED if was or pins.is_ours else NO_DELTA
    elif not was:
        refusal = NO_STATE
    elif has_names:
        refusal = NOT_MATCHING
    else:
        refusal = NO_DELTA if wants.keys() - was.keys() else ACCEPTS
    return UpgradeDifference(
        "stateful operators", _list_operators(was), _list_operators(wants), Impossible(why), refusal
    )


def _is_same(was: OperatorFact, wants: OperatorFact, *, ours: bool) -> bool:
    if ours:
        return was.name == wants.name and was.stores.keys() == wants.stores.keys()
    return _SAME_STATE.get(was.name, was.name) == _SAME_STATE.get(wants.name, wants.name)


def _compare_key_columns(was: OperatorFact, wants: OperatorFact) -> UpgradeDifference | None:
    if was.keys is None or was.keys == wants.keys:
        return None
    why = (
        "state is found by the key's columns, and the engine compares their names. If these are "
        "the same columns with new names, keep the names here, and rename the columns after the "
        "operator; otherwise use a new checkpoint"
    )
    subject = f"operator {was.number}, key"
    return UpgradeDifference(
        subject, _keys(was.keys), _keys(wants.keys or ()), Impossible(why), PLAN_CHANGED
    )


def _keys(keys: tuple[tuple[str, ...], ...]) -> str:
    return " and ".join(", ".join(key) or "none" for key in keys)


def _compare_properties(
    was: OperatorFact, wants: OperatorFact, *, ours: bool
) -> list[UpgradeDifference]:
    subject = f"operator {was.number}"
    differences = []
    for key, words in (("timeMode", "time mode"), ("outputMode", "output mode")):
        old, new = was.properties.get(key), wants.properties.get(key)
        if old is not None and new is not None and old != new:
            why = f"state of {was.name} keeps its {words}. Keep {old}, or use a new checkpoint"
            differences.append(
                UpgradeDifference(
                    f"{subject}, {words}", str(old), str(new), Impossible(why), CONFIG_CHANGED
                )
            )
    return differences + _compare_variables(was, wants, ours=ours)


def _compare_variables(
    was: OperatorFact, wants: OperatorFact, *, ours: bool
) -> list[UpgradeDifference]:
    had, asked = variables(was), variables(wants)
    if not had or not asked:
        return []
    differences = []
    for name in sorted(had.keys() | asked.keys()):
        verdict: UpgradeVerdict
        old, new = had.get(name, "absent"), asked.get(name, "gone")
        refusal = ACCEPTS
        if old == new:
            continue
        if name not in asked:
            verdict = Unclear("the variable is gone, and its state is not read any more")
        elif name in had:
            verdict = Impossible("the state of a variable cannot change its kind. Use another name")
            refusal = CONFIG_CHANGED if ours else VARIABLE_CHANGED
        elif ours:
            verdict = Impossible(
                "the engine does not add variables to state that exists. Let Spark run the changed "
                "query once, which adds it"
            )
            refusal = CONFIG_CHANGED
        else:
            verdict = Safe("the variable is new and starts empty")
        differences.append(
            UpgradeDifference(f"operator {was.number}, variable {name}", old, new, verdict, refusal)
        )
    return differences


def variables(operator: OperatorFact) -> dict[str, str]:
    """The kinds of an operator's state variables, by name."""
    listed = operator.properties.get("stateVariables")
    if not isinstance(listed, list):
        return {}
    return {
        str(variable["stateName"]): str(variable["stateVariableType"])
        for variable in listed
        if isinstance(variable, dict) and not str(variable.get("stateName", "")).startswith("$")
    }


def _compare_store(
    pins: Pins, operator: OperatorFact, was: StoreFact, wants: StoreFact, *, ours: bool
) -> list[UpgradeDifference]:
    differences: list[UpgradeDifference] = []
    for name in sorted(was.families.keys() & wants.families.keys()):
        old, new = was.families[name], wants.families[name]
        place = f"operator {operator.number}"
        if was.name != "default":
            place += f", store {was.name}"
        elif name != "default":
            place += f", state {name}"
        columns = (pins, operator, place, was.name, old, new)
        key, value = _Columns(*columns, is_key=True), _Columns(*columns, is_key=False)
        compared = (_compare_key(key), _compare_value(value, ours=ours))
        differences += [difference for difference in compared if difference is not None]
    return differences


@dataclass(frozen=True, slots=True)
class _Columns:
    """The key or the value of a store, as the checkpoint has it and as the query wants it."""

    pins: Pins
    operator: OperatorFact
    place: str
    store: str
    was: FamilySchema
    wants: FamilySchema
    is_key: bool

    @property
    def old(self) -> StructType:
        return self.was.key if self.is_key else self.was.value

    @property
    def new(self) -> StructType:
        return self.wants.key if self.is_key else self.wants.value

    @property
    def can_evolve(self) -> bool:
        """Whether the command can rewrite such a store: not variables, nor rows stored as Avro."""
        is_avro = self.pins.conf.get(STATE_ENCODING) == "avro"
        return self.was.name == DEFAULT_FAMILY and not is_avro

    def differ(self, verdict: UpgradeVerdict, refusal: str = ACCEPTS) -> UpgradeDifference:
        subject = f"{self.place}, {'key' if self.is_key else 'value'}"
        was, wants = describe_fields(self.old), describe_fields(self.new)
        return UpgradeDifference(subject, was, wants, verdict, refusal)

    def evolve(self, words: Sequence[str], why: str, refusal: str) -> UpgradeDifference:
        command = evolve_command(self.pins.url, self.operator.number, self.store, words)
        return self.differ(AfterCommand(why, command), refusal)


def _compare_key(key: _Columns) -> UpgradeDifference | None:
    if not is_binary_stable(key.new):
        why = "keys are compared as bytes, so a key cannot have a collation"
        return key.differ(Impossible(why), UNSTABLE_KEY)
    if not fits(key.new, key.old):
        why = (
            "the bytes of a key decide its partition and find its value. If the new key can be "
            "computed from the old rows, `epochal state rekey` rewrites the state with a function "
            "of yours. Otherwise use a new checkpoint"
        )
        return key.differ(Impossible(why), KEY_MISMATCH)
    return _compare_renamed(key)


def _compare_value(value: _Columns, *, ours: bool) -> UpgradeDifference | None:
    operator, old, new = value.operator, value.old, value.new
    evolves = bool(operator.properties.get("stateVariables")) and (
        value.pins.conf.get(STATE_ENCODING) == "avro"
    )
    if fits(new, old):
        if operator.name in _AGGREGATIONS and _other_aggregates(value.was, value.wants):
            why = (
                "Spark compares only types: what one aggregate has stored would be continued by "
                "another. Keep the aggregates and their order, or use a new checkpoint"
            )
            return value.differ(Impossible(why))
        return None if evolves or operator.name in _AGGREGATIONS else _compare_renamed(value)
    if evolves:
        return None if old == new else _evolution(value)
    if operator.name == _DEDUPLICATION and not ours:
        why = (
            "the state is that of another operator, and Spark does not compare the values of a "
            "deduplication. Use a new checkpoint"
        )
        return value.differ(Impossible(why))
    side = value.store if value.was.name == DEFAULT_FAMILY else value.was.name
    if taken := _new_key_columns(operator, side, old, new):
        why = (
            f"the stored rows would be found by {', '.join(taken)}, which they do not have. Use a "
            f"new checkpoint"
        )
        return value.differ(Impossible(why), VALUE_MISMATCH)
    words = evolve_words(old, new, _STARTS.get(operator.name)) if value.can_evolve else None
    if words is None:
        why = "the stored values cannot get this layout. Use a new checkpoint"
        return value.differ(Impossible(why), VALUE_MISMATCH)
    why = "rows that were stored so far get null in the new columns"
    if operator.name in _AGGREGATIONS:
        why = "rows that were processed so far do not count in the new columns"
    elif operator.name in _STARTS:
        why = "the groups that there are have no timeout until the function sets one"
    if "--add" not in words:
        why = "the stored values get a wider type"
    return value.evolve(words, why, VALUE_MISMATCH)


def _new_key_columns(
    operator: OperatorFact, side: str, old: StructType, new: StructType
) -> list[str]:
    """The columns of a join's key that the stored rows lack: then its key has changed.

    The schemas of a join do not name the columns of its key. `side` is the name of a store.
    """
    if operator.name != _JOIN or not operator.keys:
        return []
    key = operator.keys[0 if side.startswith("left") else 1]
    return [name for name in _names(new) if name in key and name not in _names(old)]


def _other_aggregates(old: FamilySchema, new: FamilySchema) -> bool:
    """Whether columns of aggregates have other names.

    Some layouts repeat the key in the value, where it has a new name if the key has.
    """
    renamed = dict(zip(_names(old.key), _names(new.key), strict=False))
    names = zip(_names(old.value), _names(new.value), strict=True)
    return any(was != wants and renamed.get(was) != wants for was, wants in names)


def _evolution(value: _Columns) -> UpgradeDifference:
    stored = {field.name: field for field in value.old.fields}
    for field in value.new.fields:
        was, wants = _type(stored.get(field.name, field)), _type(field)
        if was != wants and wants not in _PROMOTIONS.get(was, ()):
            why = f"Avro cannot read {field.name} as its new type. Use another name for it"
            return value.differ(Impossible(why), BAD_EVOLUTION)
    gone = sorted(stored.keys() - {field.name for field in value.new.fields})
    if gone:
        return value.differ(
            Unclear(f"the stored values of {', '.join(gone)} are not read any more")
        )
    return value.differ(Safe("values are stored as Avro, and new fields are null in old values"))


_PROMOTIONS = {
    "integer": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("binary",),
    "binary": ("string",),
}


def _compare_renamed(columns: _Columns) -> UpgradeDifference | None:
    """Columns with other names and the same types."""
    was, wants = _names(columns.old), _names(columns.new)
    if was == wants:
        return None
    if any(name in was and was.index(name) != at for at, name in enumerate(wants)):
        why = (
            "columns have changed places and have the same types. Spark would read each as another "
            "one. Put them back into the order of the checkpoint"
        )
        return columns.differ(Impossible(why))
    why = (
        "only types are compared. If these are the same columns with new names, the query "
        "continues; if they are other columns, their state does not fit: use a new checkpoint"
    )
    words = rename_words(was, wants)
    others = columns.was.value if columns.is_key else columns.was.key
    gone = set(was) - set(wants)
    if words is None or not columns.can_evolve or gone & set(_names(others)):
        # The command looks for a column in the value first, and only then in the key.
        return columns.differ(Unclear(why))
    return columns.evolve(words, f"{why}. The command records the new names", ACCEPTS)


def _names(schema: StructType) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields)


def describe_fields(schema: StructType) -> str:
    return ", ".join(f"{field.name} {_type(field)}" for field in schema.fields)


def _list_operators(operators: Mapping[int, OperatorFact]) -> str:
    listed = (f"{n}: {operator.name or 'unknown'}" for n, operator in sorted(operators.items()))
    return ", ".join(listed) or "none"


def evolve_words(
    old: StructType, new: StructType, starts: Mapping[str, str] | None = None
) -> list[str] | None:
    """The options of `state evolve` that turn `old` into `new`; None if there are none.

    A new column is null in old rows, or has its value in `starts`, in which others must not occur.
    Columns can become wider, but cannot be removed or change places. The command finds them by
    name, so it cannot change values in which a name occurs twice.
    """
    if not (_is_expressible(old) and _is_expressible(new)):
        return None
    words: list[str] = []
    previous, position, last_added = "", 0, ""
    for wanted in new.fields:
        stored = old.fields[position] if position < len(old.fields) else None
        if stored is not None and stored.name == wanted.name:
            if _type(stored) != _type(wanted):
                if _type(wanted) not in WIDER.get(_type(stored), ()):
                    return None
                words += ["--widen", f"{wanted.name}:{_type(wanted)}"]
            position, previous = position + 1, wanted.name
            continue
        start = "null" if starts is None else _start(wanted, starts)
        if not previous or start is None or last_added not in ("", previous):
            return None  # all new columns go to one place, which is behind another column
        words += ["--add", f"{wanted.name}:{_type(wanted)}={start}"]
        if stored is not None and not last_added:
            words += ["--after", previous]
        previous = last_added = wanted.name
    if position < len(old.fields) or not words:
        return None
    return words


def _is_expressible(schema: StructType) -> bool:
    names = [field.name for field in schema.fields]
    return len(set(names)) == len(names) and not any(set(":=") & set(name) for name in names)


def _type(field: StructField) -> str:
    return schema_json(field.data_type).strip('"')


def _start(field: StructField, starts: Mapping[str, str]) -> str | None:
    return None if _type(field).startswith("decimal") else starts.get(field.name)
