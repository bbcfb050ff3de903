"""`epochal pubsub serve`: a Pub/Sub server on this machine, for quick starts and tests."""

from __future__ import annotations

import signal

from epochal.cli.command_line import Host, Interrupted, Port, flag, group_app, option
from epochal.cli.printing.output import print_line
from epochal.errors import OptionError

app = group_app("pubsub", "Run a Pub/Sub server on this machine, for quick starts and tests.")


@app.command()
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
