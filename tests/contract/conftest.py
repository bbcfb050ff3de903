"""Every storage a checkpoint can live on, each as a real thing; one that cannot start fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.azurite import Azurite, running_azurite
from tests.rigs.hdfs import Hdfs, running_hdfs
from tests.rigs.s3 import S3, running_s3

from epochal.files import Files, open_files
from epochal.testing.files import MemoryFiles


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    with running_hdfs() as running:
        yield running


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with running_s3() as running, pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment().items():
            environment.setenv(name, value)
        yield running


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with running_azurite() as running, pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment().items():
            environment.setenv(name, value)
        yield running


def new_root(kind: str, request: pytest.FixtureRequest) -> Files:
    """An empty place of its own on the storage `kind` names."""
    match kind:
        case "local":
            tmp_path: Path = request.getfixturevalue("tmp_path")
            return open_files(str(tmp_path / "root"))
        case "s3":
            s3: S3 = request.getfixturevalue("s3")
            return open_files(f"s3a://{s3.bucket}/{uuid.uuid4()}")
        case "hdfs":
            hdfs: Hdfs = request.getfixturevalue("hdfs")
            return open_files(f"webhdfs://{hdfs.http}/{uuid.uuid4()}")
        case "azure":
            azurite: Azurite = request.getfixturevalue("azurite")
            return open_files(f"{azurite.url}/{uuid.uuid4()}")
        case _:
            return MemoryFiles(prefix=str(uuid.uuid4()))


# Azure's emulator needs Node.js, which `make setup` does not promise.
AZURE = pytest.param("azure", marks=pytest.mark.long)


@pytest.fixture(params=["local", "memory", "s3", "hdfs", AZURE])
def files(request: pytest.FixtureRequest) -> Files:
    return new_root(request.param, request)


@pytest.fixture(params=["local", "s3", "hdfs", AZURE])
def shared_files(request: pytest.FixtureRequest) -> Files:
    """Files that other processes can open too."""
    return new_root(request.param, request)
