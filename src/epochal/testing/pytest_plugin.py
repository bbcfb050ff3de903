"""The pytest plugin: fixtures for drivers, `--epochal-spark`, and differences of rows.

pytest loads it at its start, also for tests that have nothing to do with streams. So it imports
nothing of the package until a fixture is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from epochal.testing import Driver

    Make = Callable[..., Driver]

COMPARE = "epochal.testing.driver.rows"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("epochal").addoption(
        "--epochal-spark",
        action="store_true",
        help="run tests that use the fixture epochal_driver on a real local Spark session",
    )


@pytest.fixture
def epochal_driver(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make drivers: `epochal_driver(stream, tasks=2)`. They are closed after the test.

    With `--epochal-spark` the query runs on the session of the fixture `epochal_session`. A test
    that then crashes the query, moves its clock or fuzzes it is skipped: only the driver can.
    """
    from contextlib import ExitStack

    with ExitStack() as closing:

        def make(stream: Any, **options: Any) -> Any:
            from epochal.testing import Driver, SparkDriver

            if request.config.getoption("--epochal-spark"):
                session = request.getfixturevalue("epochal_session")
                return closing.enter_context(
                    SparkDriver(stream, **options, session=session, refuse=pytest.skip)
                )
            return closing.enter_context(Driver(stream, **options))

        yield make


@pytest.fixture(scope="session")
def epochal_session() -> Iterator[Any]:
    """The Spark session of tests with `--epochal-spark`. Override it to use one of your own."""
    from epochal.testing.driver.fed_sources import active_session, local_session

    existing = active_session()
    session = existing or local_session()
    yield session
    if existing is None:
        session.stop()


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say which rows differ if output is not what was expected."""
    module = sys.modules.get(COMPARE)
    if module is None or op != "==":
        return None
    if not any(isinstance(side, module.OutputRows) for side in (left, right)):
        return None
    if not (isinstance(left, list) and isinstance(right, list)):
        return None
    found, expected = (left, right) if isinstance(left, module.OutputRows) else (right, left)
    lines: list[str] = module.difference(found, expected, ordered=True)
    return lines or None
