"""`epochal dashboard`: serve a web page that shows queries and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.arguments import ClientConfig, Host, OptionalBootstrapServers, Port, parse_pairs
from epochal.cli.printing.output import print_line
from epochal.errors import OptionError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def dashboard(
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="Also show this checkpoint, or all checkpoints below this directory; may be "
            "repeated.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="Open the page of this query, given by name, id or run id."
        ),
    ] = None,
    bootstrap_servers: OptionalBootstrapServers = None,
    client_config: ClientConfig = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A host name that browsers use for this machine; may be repeated."
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where queries write their telemetry (option telemetryLocation)."
        ),
    ] = None,
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

    serve_dashboard(
        checkpoint or [],
        follow=follow,
        host=host,
        port=port,
        names=allow_host or [],
        kafka=_kafka(bootstrap_servers, client_config),
        runs=runs or runs_directory(),
        ready=_print_link,
    )


def _kafka(servers: str | None, config: list[str] | None) -> dict[str, str] | None:
    if servers is None:
        if config:
            raise OptionError("--client-config needs --bootstrap-servers.")
        return None
    return {**parse_pairs(config or [], "--client-config"), "bootstrap.servers": servers}


def _print_link(link: str) -> None:
    import sys

    print_line(f"Dashboard: {link}")
    print_line("Press Ctrl-C to stop it.")
    sys.stdout.flush()
