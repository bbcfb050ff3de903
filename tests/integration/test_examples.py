"""The examples work as described when a user runs them."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.integration.kafka_world import held, wait_for
from tests.kafka_topics import create_topic
from tests.rigs.postgres import Postgres

from epochal.testing.kafka import Kafka, connector_jars

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def environment() -> dict[str, str]:
    spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **spark, "PYTHONPATH": str(ROOT)}


def run(command: list[str | Path], home: Path) -> str:
    words = list(map(str, command))
    done = subprocess.run(
        words, cwd=home, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    said = run([sys.executable, "-m", "tests.integration.notebook", notebook], tmp_path)
    assert "nothing is wrong" in said or "healthy" in said, said


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


def test_a_table_of_totals_is_right_after_each_run(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    command: list[str | Path] = [
        *(sys.executable, EXAMPLES / "postgres_table.py", postgres.url, tmp_path, "--once")
    ]
    for number, expected in enumerate((["ada|2|20", "bob|1|10"], ["ada|3|30", "bob|3|30"])):
        names = ("ada", "bob", "ada") if number == 0 else ("bob", "ada", "bob")
        lines = [json.dumps({"user": name, "cents": 10}) for name in names]
        (tmp_path / "orders" / f"{number}.json").write_text("\n".join(lines))
        run(command, tmp_path)
        assert postgres.rows('SELECT "user", orders, cents FROM user_totals ORDER BY 1') == expected


def test_the_table_of_totals_grows_while_it_is_read(tmp_path: Path) -> None:
    said = run([sys.executable, EXAMPLES / "delta_table.py", tmp_path, "4"], tmp_path)
    versions = re.findall(r"^version (\d+): \[\(0, (\d+)\)", said, re.M)
    assert len(versions) >= 2, said
    counts = [int(orders) for _, orders in versions]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.parametrize(
    "name",
    [
        "orders.py",
        "kafka_committer.py",
        "registry_orders.py",
        "delta_table.py",
        "postgres_table.py",
    ],
)
def test_a_pipeline_fits_into_forty_lines(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    body = ast.parse("\n".join(lines)).body
    first = body[1].lineno if ast.get_docstring(ast.Module(body, [])) else 1
    code = [line for line in lines[first - 1 :] if line.strip()]
    assert len(code) <= 40


def test_the_iceberg_example_counts_words_in_a_table(tmp_path: Path) -> None:
    said = run([sys.executable, EXAMPLES / "iceberg_table.py", tmp_path / "words"], tmp_path)
    assert [line.split() for line in said.splitlines()[-4:]] == [
        ["be", "2"],
        ["not", "1"],
        ["or", "1"],
        ["to", "2"],
    ]


@pytest.mark.long
def test_the_committer_s_group_is_where_the_query_is(broker: Kafka, tmp_path: Path) -> None:
    topic, group = f"orders-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap_servers, topic, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(100):
        producer.produce(topic, b"{}", b"c%d" % n, partition=n % 2)
    assert producer.flush(30) == 0
    text = (EXAMPLES / "kafka_committer.py").read_text()
    script = tmp_path / "kafka_committer.py"
    script.write_text(text.replace('"orders"', f'"{topic}"').replace("orders-query", group))

    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]"]
    submit += ["--jars", ",".join(map(str, connector_jars())), str(script)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*submit, broker.bootstrap_servers, str(tmp_path)],
            cwd=tmp_path,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(
            lambda: held(broker, group) == {(topic, 0): 50, (topic, 1): 50},
            lambda: (held(broker, group), (tmp_path / "log").read_text()[-3000:]),
        )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert pq.read_table(tmp_path / "orders").num_rows == 100
