"""Makes operators from the Python functions of a plan: UDFs, mapInPandas and mapInArrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.core import broadcast
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import _parse_datatype_json_string

from epochal.continuous.catalyst.plan_steps import Reading, Steps, id_of, ids_of
from epochal.continuous.catalyst.spark_objects import JavaObject, items, simple_name
from epochal.continuous.operators.expressions.expr import Column
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.continuous.operators.stateless.python_functions import (
    MAP_ARROW,
    MAP_PANDAS,
    SCALAR_TYPES,
    Argument,
    Conversion,
    MapFramesSpec,
    PythonFunction,
    PythonFunctionsSpec,
)
from epochal.continuous.plan.logical import Stateful
from epochal.errors import OptionError
from epochal.record_batches import cast_table

_PANDAS_PROCESSOR = 211
_TIME_MODES = {"NoTime": "none", "ProcessingTime": "processingTime", "EventTime": "eventTime"}
_KINDS = {202: "pandas aggregate", 252: "Arrow aggregate"}


@dataclass(frozen=True, slots=True)
class BroadcastValue:
    """The value of a broadcast variable, sent to tasks together with the function that uses it."""

    value: Any


def read_functions(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    """`ArrowEvalPython` and `BatchEvalPython`: results are appended as columns."""
    operator = simple_name(node)
    schema, ids = steps.output_of(node)
    functions = tuple(_function(steps, operator, child, udf) for udf in items(node.udfs()))
    spec = PythonFunctionsSpec(functions, schema, conversion(steps))
    return steps.step(child, spec, schema, ids)


def read_map(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    """`MapInPandas` and `MapInArrow`: a function of whole batches."""
    udf = node.functionExpr()
    if int(udf.evalType()) not in (MAP_PANDAS, MAP_ARROW):
        raise OptionError(f"functions of the type {udf.evalType()} are not supported")
    schema, ids = steps.output_of(node)
    spec = MapFramesSpec(pickled_function(udf), int(udf.evalType()), schema, conversion(steps))
    return steps.step(child, spec, schema, ids)


def pickled_function(udf: JavaObject) -> bytes:
    """A function and its return type, pickled, with the values of its broadcast variables."""
    function = udf.func()
    command = bytes(function.command().unsafeArray())
    variables = list(function.broadcastVars())
    if not variables:
        return command
    registry: dict[int, Any] = broadcast._broadcastRegistry
    before = {variable.id(): registry.get(variable.id()) for variable in variables}
    try:
        for variable in variables:
            value = broadcast.Broadcast(path=str(variable.value().path())).value
            registry[variable.id()] = BroadcastValue(value)
        return bytes(cloudpickle.dumps(cloudpickle.loads(command)))
    finally:
        for number, old in before.items():
            if old is None:
                del registry[number]
            else:
                registry[number] = old


def conversion(steps: Steps) -> Conversion:
    conf = steps.planner.session.conf

    def is_on(key: str) -> bool:
        return str(conf.get(f"spark.sql.execution.{key}", "false")).lower() == "true"

    return Conversion(
        timezone=str(conf.get("spark.sql.session.timeZone")),
        safe=is_on("pandas.convertToArrowArraySafely"),
        int_to_decimal=is_on("pythonUDF.pandas.intToDecimalCoercionEnabled"),
        int_extension=is_on("pythonUDF.pandas.preferIntExtensionDtype"),
    )


def _function(steps: Steps, operator: str, child: Reading, udf: JavaObject) -> PythonFunction:
    kind, name = int(udf.evalType()), str(udf.name())
    if kind not in SCALAR_TYPES:
        steps.findings.refuse(
            operator,
            f"the function {name} is of the type {_KINDS.get(kind, kind)}",
            "use a scalar function, or transformWithState",
        )
    arguments = tuple(_argument(steps, operator, child, expr) for expr in items(udf.children()))
    return PythonFunction(pickled_function(udf), kind, arguments, name)


def _argument(steps: Steps, operator: str, child: Reading, expr: JavaObject) -> Argument:
    keyword = None
    if simple_name(expr) == "NamedArgumentExpression":
        keyword, expr = str(expr.key()), expr.value()
    if simple_name(expr) == "PythonUDF":
        return Argument(_function(steps, operator, child, expr), keyword=keyword)
    return Argument(
        steps.expression(operator, child, expr),
        _parse_datatype_json_string(str(expr.dataType().json())),
        steps.type_of(operator, expr),
        keyword,
    )


def read_processor(steps: Steps, node: JavaObject, child: Reading, operator_id: int) -> Reading:
    """`transformWithState`: a StatefulProcessor of rows or of DataFrames."""
    udf = node.functionExpr()
    data = list(items(udf.children()))
    columns = steps.projected(
        child,
        [Column(child.indexes[id_of(attribute)]) for attribute in data],
        steps.schema_of("transformWithState", data),
        ids_of(data),
    )
    keys = list(items(node.child().output()))[: node.groupingAttributesLen()]
    event_time, _ = steps.event_time(columns, data)
    output, ids = steps.output_of(node, "transformWithState")
    initial, initial_key = _initial_state(steps, node)
    spec = TransformWithStateSpec.plan(
        _processor(pickled_function(udf)),
        [columns.name_of(key) for key in keys],
        columns.schema,
        output,
        time_mode=_TIME_MODES[str(node.timeMode().toString())],
        output_mode=str(node.outputMode().toString()),
        event_time=event_time,
        initial_state=initial,
        initial_key=initial_key,
        pandas=int(udf.evalType()) in (_PANDAS_PROCESSOR, _PANDAS_PROCESSOR + 1),
        timezone=conversion(steps).timezone,
        spark_layout=True,
    )
    return Reading(Stateful((columns.tree,), operator_id, spec), ids)


def _initial_state(steps: Steps, node: JavaObject) -> tuple[pa.Table | None, list[str] | None]:
    """The rows of the initial state and the columns of their keys, if there is one."""
    if not node.hasInitialState():
        return None, None
    plan, count = node.initialState(), int(node.initGroupingAttrsLen())
    output = list(items(plan.output()))
    data = output[count:]
    schema = steps.schema_of("transformWithState", data)
    rows = steps.planner.collect(plan)
    named = rows.select(range(count, len(output))).rename_columns(schema.names)
    table = cast_table(named, schema)
    names = {id_of(attribute): name for attribute, name in zip(data, schema.names, strict=True)}
    steps.findings.note("the initial state is read once, when the query starts")
    return table, [names[id_of(key)] for key in output[:count]]


def _processor(pickled: bytes) -> Any:
    """The user's StatefulProcessor, which PySpark wraps."""
    function, _ = cloudpickle.loads(pickled)
    wrapper = getattr(function, "__self__", None)
    processor = getattr(wrapper, "_stateful_processor", None)
    for cell in getattr(function, "__closure__", None) or ():  # before 4.1 it is a closure
        if isinstance(cell.cell_contents, StatefulProcessor):
            processor = cell.cell_contents
    if processor is None:
        raise OptionError("its function is not a StatefulProcessor of PySpark")
    return processor
