"""Every code block and command of the docs runs with a real Spark, a real broker and the embedded
Pub/Sub server. README and tutorials run by themselves: see `test_tutorials.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.everyday import asked_for
from tests.golden.library import Golden, unpack
from tests.integration.docs_child import BLOCK
from tests.kafka_topics import create_topics
from tests.rigs.postgres import Postgres

from epochal.checkpoint import Checkpoint
from epochal.testing.kafka import Kafka, connector_jars
from epochal.testing.pubsub import running_server
from epochal.testing.server import free_port

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("cli.md", "api.md", "findings.md", "benchmarks.md")
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.name not in GENERATED
    and BLOCK.search(page.read_text())
    and not page.name.startswith("tutorial-")
]
PARTITIONS, RECORDS = 4, 2_800


def fill_topic(servers: str, topic: str) -> None:
    create_topics(servers, {topic: PARTITIONS, f"{topic}-totals": 1})
    producer = Producer({"bootstrap.servers": servers})
    for n in range(RECORDS):
        producer.produce(topic, b'{"n": %d}' % n, b"u%d" % (n % 7), partition=n % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest,
    broker: Kafka,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The child's report on each page."""
    home = tmp_path_factory.mktemp("docs")
    golden = unpack(Golden("4.3.0", "file_sink_counts"), home / "golden", relocate=True)
    checkpoint = Checkpoint(str(golden.base / "checkpoint"))
    newest = max(checkpoint.offsets.batch_ids())
    before = checkpoint.offsets.get(newest - 1)
    assert before is not None
    topic = f"docs-{uuid.uuid4().hex[:8]}"
    fill_topic(broker.bootstrap_servers, topic)
    wanted = ["--subscription", "orders-sub:orders", "--topic", "copies"]
    with running_server("--project", "demo", *wanted) as server:
        world = {
            "pages": [str(page) for page in asked_for(request, "page", PAGES)],
            "servers": broker.bootstrap_servers,
            "postgres": postgres.url,
            "pubsub": server.address,
            "topic": topic,
            "jars": ",".join(map(str, connector_jars())),
            "checkpoint": str(golden.base / "checkpoint"),
            "output": str(golden.base / "output"),
            "newest": newest,
            "newest_ms": before.timestamp_ms + 1,
            "metrics_port": free_port(),
            "directory": str(home / "pages"),
        }
        run = subprocess.run(
            [sys.executable, "-m", "tests.integration.docs_child"],
            input=json.dumps(world),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=280,
        )
    lines = [line.removeprefix("PAGE ") for line in run.stdout.splitlines() if "PAGE {" in line]
    found = {each["page"]: each for each in map(json.loads, lines)}
    sys.stdout.write(f"seconds by page: { {n: each['seconds'] for n, each in found.items()} }\n")
    return {**found, "": f"{run.stdout[-2000:]}\n{run.stderr[-4000:]}"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_that_a_page_shows_runs(told: dict[str, Any], page: Path) -> None:
    assert page.name in told, told[""]
    assert told[page.name]["error"] is None, told[page.name]["error"]


def test_queries_on_a_local_master_listen_on_loopback_alone(told: dict[str, Any]) -> None:
    found = {address for name, each in told.items() if name for address in each["listening"]}
    assert found == {"127.0.0.1"}


def test_the_pages_have_something_to_run(told: dict[str, Any]) -> None:
    ran = [each for name, each in told.items() if name]
    assert sum(each["blocks"] for each in ran) >= 15
    assert sum(each["commands"] for each in ran) >= 20
