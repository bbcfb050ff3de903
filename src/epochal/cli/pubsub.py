"""`epochal pubsub`: the embedded Pub/Sub server, for quick starts and tests."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

from epochal.cli.groups import LazyGroup, group_app
from epochal.cli.output import print_line
from epochal.errors import OptionError

COMMANDS = "epochal.cli.pubsub:commands"
DEFAULT_PROJECT = "local"


class PubSubCommands(LazyGroup):
    table: ClassVar[dict[str, str]] = {"serve": COMMANDS}


app = group_app(
    "pubsub",
    PubSubCommands,
    "A Pub/Sub server on this machine, for quick starts and tests.",
)
commands = typer.Typer(name="commands", add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """A Pub/Sub server on this machine, for quick starts and tests."""


@commands.callback()
def _commands() -> None:
    """Keeps the command's name where a lone one would take the group's place."""


@commands.command()
def serve(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; there is no login.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8085,
    project: Annotated[
        str, typer.Option(metavar="P", help="The project of --topic and --subscription.")
    ] = DEFAULT_PROJECT,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="T", help="A topic to create; may be repeated.")
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S:T", help="A subscription to create, and its topic; may be repeated."
        ),
    ] = None,
    max_bytes: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Refuse messages once those held take this many bytes."
        ),
    ] = 1 << 30,
) -> None:
    """Serve topics and subscriptions to any Pub/Sub client, until interrupted.

    Nothing is durable: topics, subscriptions and messages end with the process. There is no login
    and no encryption; it is for quick starts, tests and benchmarks. Prints the line to export, so
    that clients find it; all projects are served.
    """
    wanted_topics, wanted_subscriptions = _resources(project, topic or [], subscription or [])
    try:
        from epochal.connectors.pubsub.server.pubsub_server import Wanted
        from epochal.connectors.pubsub.server.pubsub_server import serve as run
    except ImportError as error:
        raise OptionError(
            f"The Pub/Sub server needs {error.name}: pip install 'epochal[pubsub]'."
        ) from error
    wanted = Wanted(
        host=host,
        port=port,
        max_bytes=max_bytes,
        topics=wanted_topics,
        subscriptions=wanted_subscriptions,
    )
    run(wanted, started=lambda address: print_line(f"export PUBSUB_EMULATOR_HOST={address}"))


def _resources(
    project: str, topics: list[str], subscriptions: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Full names; a subscription's topic is created with it."""
    named = [f"projects/{project}/topics/{topic}" for topic in topics]
    wanted = []
    for text in subscriptions:
        name, _, topic = text.partition(":")
        if not name or not topic:
            raise OptionError(f"--subscription is SUBSCRIPTION:TOPIC, not {text!r}.")
        source = f"projects/{project}/topics/{topic}"
        wanted.append((f"projects/{project}/subscriptions/{name}", source))
        named.append(source)
    return list(dict.fromkeys(named)), wanted
