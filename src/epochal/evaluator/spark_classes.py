"""Classes and objects of the driver's JVM, by their full names, and the settings of its sessions.

What was found is kept: the JVM looks for a package in all jars before it knows that it is no class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from epochal.evaluator.evaluator_client import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONVERTERS = "scala.jdk.javaapi.CollectionConverters"


@lru_cache(maxsize=256)
def class_of(jvm: Any, name: str) -> Any:
    """A class, to be called like its constructor, with its static methods."""
    return getattr(jvm, name)


@lru_cache(maxsize=256)
def object_of(jvm: Any, name: str) -> Any:
    """The only instance of a Scala object."""
    return getattr(class_of(jvm, f"{name}$"), "MODULE$")


@lru_cache(maxsize=64)
def method_of(jvm: Any, name: str, method: str) -> Any:
    """A static method of a class."""
    return getattr(class_of(jvm, name), method)


def scala_map(jvm: Any, texts: Mapping[str, str]) -> Any:
    """A Scala map of texts."""
    java = class_of(jvm, "java.util.HashMap")()
    for key, text in texts.items():
        java.put(key, text)
    return method_of(jvm, "org.apache.spark.api.python.PythonUtils", "toScalaMap")(java)


def scala_seq(jvm: Any, elements: Iterable[Any]) -> Any:
    """A Scala sequence."""
    java = class_of(jvm, "java.util.ArrayList")()
    for element in elements:
        java.add(element)
    return method_of(jvm, _CONVERTERS, "asScala")(java).toSeq()


def texts_of(mapping: Any) -> dict[str, str]:
    """A Scala map of texts as a dict.

    To iterate over it would take a call for each key, and an error at the end, which PySpark
    examines in a hundred more.
    """
    if mapping.isEmpty():
        return {}
    keys, values = (str(texts.mkString("\0")) for texts in (mapping.keys(), mapping.values()))
    return dict(zip(keys.split("\0"), values.split("\0"), strict=True))


def as_java(jvm: Any, collection: Any) -> Any:
    """A Scala collection as Java's, over which Python can iterate."""
    return method_of(jvm, _CONVERTERS, "asJava")(collection)


def serialized(jvm: Any, value: Any) -> bytes:
    """An object of Java as bytes, for tasks."""
    return bytes(method_of(jvm, "org.apache.spark.util.Utils", "serialize")(value))


def session_of(spark: SparkSession) -> Session:
    """The settings of a session that Spark's code reads when it runs."""
    conf = spark._jsparkSession.sessionState().conf()
    settings = texts_of(conf.getAllConfs())
    lines = [
        text
        for key in sorted(settings)
        if key.startswith("spark.sql.")
        for text in (key, settings[key].replace("\\", "\\\\").replace("\n", "\\n"))
    ]
    jars = cast(Any, spark.sparkContext._jsc).sc().listJars()
    names = (str(jars.apply(number)).rpartition("/")[2] for number in range(jars.size()))
    return Session("\n".join(lines), "\n".join(sorted(names)))


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the one whose settings Spark's code reads on this thread."""
    sessions = class_of(spark._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
