"""Classes and objects of the driver's JVM, by their full names.

Note: each part of a name is a call of the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def class_of(jvm: Any, name: str) -> Any:
    """A class, to be called like its constructor, with its static methods."""
    for part in name.split("."):
        jvm = getattr(jvm, part)
    return jvm


def object_of(jvm: Any, name: str) -> Any:
    """The only instance of a Scala object."""
    return getattr(class_of(jvm, f"{name}$"), "MODULE$")


def scala_map(jvm: Any, texts: Mapping[str, str]) -> Any:
    """A Scala map of texts."""
    java = jvm.java.util.HashMap()
    for key, text in texts.items():
        java.put(key, text)
    return jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java)


def serialized(jvm: Any, value: Any) -> bytes:
    """An object of Java as bytes, for tasks."""
    return bytes(jvm.org.apache.spark.util.Utils.serialize(value))
