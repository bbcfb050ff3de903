"""`epochal dashboard` and `epochal pubsub serve`: servers on this machine.

The dashboard is a web page that shows queries and checkpoints. The Pub/Sub server is for quick
starts and tests.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import typer

from epochal.cli.command_line import (
    BROKERS_HELP,
    ClientConfig,
    Host,
    Interrupted,
    Port,
    flag,
    group_app,
    option,
    parse_pairs,
)
from epochal.cli.printing.output import print_line
from epochal.errors import OptionError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
pubsub_app = group_app(
    "pubsub", "Run a Pub/Sub server on this machine, for quick starts and tests."
)


@pubsub_app.command()
def serve(
    host: Host = "127.0.0.1",
    port: Port = 8085,
    project: str = option("P", "The project of --topic and --subscription.", default="local"),
    topic: list[str] | None = option("T", "A topic to create; may be repeated."),
    subscription: list[str] | None = option(
        "S:T", "A subscription to create with its topic; may be repeated."
    ),
    max_bytes: int = option(
        "N", "Reject messages while the stored ones take this many bytes.", default=1 << 30, min=1
    ),
    seed: int | None = option(
        "N",
        "Make message and acknowledgement ids repeatable. By default no two starts of the server "
        "give the same ids.",
        min=0,
    ),
    deny: list[str] | None = option(
        "METHOD",
        "Refuse this call, such as GetSubscription, with PERMISSION_DENIED, as for an account "
        "without the permission; may be repeated.",
    ),
    require_routing: bool = flag(
        "--require-routing",
        "Refuse calls without the header x-goog-request-params that Google's clients send.",
    ),
) -> None:
    """Serve topics and subscriptions to any Pub/Sub client, until interrupted.

    Nothing is durable: topics, subscriptions and messages are lost when the process ends. There is
    no login and no encryption, so use it only for quick starts, tests and benchmarks. The command
    prints the line to export so that clients find the server. It serves all projects.
    """
    wanted_topics, wanted_subscriptions = _resources(project, topic or [], subscription or [])
    try:
        from epochal.connectors.pubsub.server.pubsub_server import ServerSettings, method_names
        from epochal.connectors.pubsub.server.pubsub_server import serve as run
        from epochal.connectors.pubsub.server.refusals import CallChecks
    except ImportError as error:
        raise OptionError(
            f"The Pub/Sub server needs {error.name}, which is not installed. Run `pip install "
            f"'epochal[pubsub]'`."
        ) from error
    unknown = sorted(set(deny or ()) - set(method_names()))
    if unknown:
        raise OptionError(
            f"--deny {unknown[0]} names no call of Pub/Sub. The calls are "
            f"{', '.join(method_names())}."
        )
    wanted = ServerSettings(
        host=host,
        port=port,
        max_bytes=max_bytes,
        seed=seed,
        topics=wanted_topics,
        subscriptions=wanted_subscriptions,
        checks=CallChecks(deny=frozenset(deny or ()), require_routing=require_routing),
    )
    ended_by = run(
        wanted, started=lambda address: print_line(f"export PUBSUB_EMULATOR_HOST={address}")
    )
    if ended_by == signal.SIGINT:
        raise Interrupted("The server has ended, and its messages are deleted.")


def _resources(
    project: str, topics: list[str], subscriptions: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """The full names of topics and subscriptions; a subscription's topic is created, too."""
    named = [f"projects/{project}/topics/{topic}" for topic in topics]
    wanted = []
    for text in subscriptions:
        name, _, topic = text.partition(":")
        if not name or not topic:
            raise OptionError(f"--subscription must be SUBSCRIPTION:TOPIC, not {text!r}.")
        source = f"projects/{project}/topics/{topic}"
        wanted.append((f"projects/{project}/subscriptions/{name}", source))
        named.append(source)
    return list(dict.fromkeys(named)), wanted


@app.command()
def dashboard(
    checkpoint: list[str] | None = option(
        "DIR",
        "Also show this checkpoint, or all checkpoints below this directory; may be repeated.",
    ),
    follow: str | None = option(
        "QUERY", "Open the page of this query, given by name, id or run id."
    ),
    bootstrap_servers: str | None = option("HOST:PORT", BROKERS_HELP),
    client_config: ClientConfig = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    allow_host: list[str] | None = option(
        "NAME", "A host name that browsers use for this machine; may be repeated."
    ),
    runs: Path | None = option(
        "DIR", "Where queries write their telemetry (option telemetryLocation)."
    ),
) -> None:
    """Show running and finished queries, their epochs, lag, state and checkpoints in a browser.

    The command prints a link with a token, which is needed to open the page. It never writes to a
    checkpoint. With --bootstrap-servers, it also measures the lag of Spark's own queries on Kafka.

    By default it listens only on this machine. If you set --host, put the dashboard
    behind TLS, because the token is part of the link.
    """
    try:
        from epochal.dashboard.dashboard_server import serve_dashboard
    except ModuleNotFoundError as error:
        raise OptionError(
            f"The dashboard needs {error.name}, which is not installed. Run `pip install "
            f"'epochal[dashboard]'`."
        ) from None
    from epochal.metrics.run_journal import runs_directory

    servers = bootstrap_servers
    if client_config and servers is None:
        raise OptionError("--client-config needs --bootstrap-servers.")
    settings = parse_pairs(client_config, "--client-config")
    serve_dashboard(
        checkpoint or [],
        follow=follow,
        host=host,
        port=port,
        names=allow_host or [],
        kafka=None if servers is None else {**settings, "bootstrap.servers": servers},
        runs=runs or runs_directory(),
        ready=_print_link,
    )


def _print_link(link: str) -> None:
    print_line(f"Dashboard: {link}")
    print_line("Press Ctrl-C to stop it.")
    sys.stdout.flush()
