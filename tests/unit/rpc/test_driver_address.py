"""Where the driver listens: on loopback only, unless tasks run on other hosts."""

from __future__ import annotations

import pytest

from epochal.rpc.server import DriverAddress, driver_address, listening_address

LOOPBACK = DriverAddress("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[4,8]"])
def test_a_local_master_is_served_on_loopback(master: str) -> None:
    conf = {"spark.master": master, "spark.driver.host": "driver.example"}
    assert driver_address(conf) == LOOPBACK


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://m:7077", "yarn", ""])
def test_a_cluster_is_served_where_spark_serves_it(master: str) -> None:
    conf = {"spark.master": master, "spark.driver.host": "driver.example"}
    assert driver_address(conf) == DriverAddress("driver.example", "driver.example")


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_a_bind_address_that_was_asked_for_is_used(master: str) -> None:
    conf = {
        "spark.master": master,
        "spark.driver.host": "driver.example",
        "spark.driver.bindAddress": "10.0.0.7",
    }
    assert driver_address(conf) == DriverAddress("driver.example", "10.0.0.7")


def test_without_any_setting_tasks_are_on_this_machine() -> None:
    assert driver_address({}) == LOOPBACK


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.7", "127.0.0.7"),
        ("0.0.0.0", "0.0.0.0"),
        ("[::1]", "::1"),
    ],
)
def test_a_name_is_turned_into_the_address_to_listen_at(host: str, address: str) -> None:
    assert listening_address(host) == address
