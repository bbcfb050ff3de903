"""What the figures of each suite mean to somebody who runs queries. Pure."""

from __future__ import annotations

MEANINGS = {
    "log": (
        "How long you wait for `epochal checkpoint show` or `verify` when a query is down and you "
        "want to know why. `durable add` is what each log entry of an epoch costs: no epoch can be "
        "shorter than a few of them."
    ),
    "state": (
        "How long it takes to look into state, and how fast a query can change and reload it: the "
        "last lines bound the time of a restart, and memory per key bounds how many keys fit into "
        "a worker."
    ),
    "big_state": (
        "Whether a query can have more keys than its workers have memory (`stateMemory`), what "
        "that costs per row, and how long such a query takes to start again."
    ),
    "coordinator": (
        "How large a query may become before its driver is the limit. With epochs of 100 ms a "
        "driver must manage ten of them per second, on a fraction of a core."
    ),
    "epoch": (
        "What short epochs cost on an object store, where every request has a price: multiply the "
        "requests by epochs per day. CPU is what an epoch takes away from rows."
    ),
    "turn": (
        "The smallest delay that a task can have: a row is read, processed and written in one "
        "turn. An idle turn is what a query costs while nothing happens. If you only care about "
        "the delays of whole queries, read the chapters on continuous queries and on Kafka."
    ),
    "evaluator": (
        "What an expression costs that Spark's own code evaluates, beside one that Arrow does: the "
        "delay that it adds to a row, and the rows that a core manages. `explain` says which steps "
        "run where. The start says how much later a query's first result comes if it needs it."
    ),
    "continuous": (
        "How old a result is when it reaches the sink, without a broker in the way. p50 is the "
        "usual row; p99 is the one row in a hundred that users complain about. The maximum rate "
        "says how fast a backlog is worked off."
    ),
    "recovery": (
        "How long a query is silent after something died, or after you started it. Rows that "
        "arrive meanwhile wait for so long."
    ),
    "kafka": (
        "What you would see from topic to topic, with the broker included, beside other Python "
        "engines and Spark's own modes. Rows per core say how many cores you pay for a given load."
    ),
    "latency_suite": (
        "Whether our engine keeps up with what Spark's real-time mode does in the JVM, on queries "
        "that we did not choose."
    ),
    "pubsub": (
        "How many messages one process can take from Pub/Sub or publish, and how old a message is "
        "after a query from topic to topic. Messages per CPU-second are what you pay for."
    ),
    "telemetry": "What watching costs a query that runs: metrics, traces and the dashboard.",
    "nexmark": (
        "Which SQL you can run as a stream, and how the engine compares on whole queries of "
        "an auction site with Spark's micro-batches and with Flink, both of which run in the JVM. "
        "Lines without Python functions are the JVM's home ground, and it is ahead in many of them."
    ),
    "tables": (
        "How soon after a row was due somebody who reads the table can see it, and whether the "
        "table stays readable: few files, and commits that do not get slower as it grows."
    ),
    "soak": (
        "Whether you can leave a query alone: does every row arrive once whatever happens, how "
        "long is the table behind after each kind of incident, and does anything grow until it "
        "breaks?"
    ),
}
"""By name of the suite."""
