"""`epochal dashboard`: serve a web page that shows queries and checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from epochal.cli.command_line import BROKERS_HELP, ClientConfig, Host, Port, option, parse_pairs
from epochal.cli.printing.output import print_line
from epochal.errors import OptionError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


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
