"""`epochal dashboard`: a page on loopback that shows queries and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.output import print_line
from epochal.errors import OptionError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def dashboard(
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Show this checkpoint too; may be repeated."),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="Open this query: its name, its id or its run's id."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="The port; 0 for any that is free.", min=0, max=65535)
    ] = 0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which browsers reach this machine."),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where queries tell of themselves (telemetryLocation)."),
    ] = None,
) -> None:
    """Show running and finished queries, their epochs, lag, state and checkpoints in a browser.

    Prints a link with a token; only who has it can look. Nothing is ever written to a checkpoint.
    Listens on loopback unless --host says otherwise: then put it behind TLS, the token is in the
    link.
    """
    try:
        from epochal.dashboard.dashboard_server import serve_dashboard
    except ModuleNotFoundError as error:
        raise OptionError(
            f"The dashboard needs {error.name}: pip install 'epochal[dashboard]'."
        ) from None
    from epochal.metrics.run_journal import runs_directory

    serve_dashboard(
        checkpoint or [],
        follow=follow,
        host=host,
        port=port,
        names=allow_host or [],
        runs=runs or runs_directory(),
        ready=_say,
    )


def _say(link: str) -> None:
    import sys

    print_line(f"Dashboard: {link}")
    print_line("Ctrl-C ends it.")
    sys.stdout.flush()
