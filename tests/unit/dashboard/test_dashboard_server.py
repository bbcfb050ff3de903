from __future__ import annotations

import socket
from pathlib import Path

import pytest

from epochal.cli.main import main
from epochal.dashboard.dashboard_server import serve_dashboard
from epochal.errors import OptionError


def test_a_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    links: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port}"):
            serve_dashboard(
                [],
                follow=None,
                host="127.0.0.1",
                port=port,
                runs=tmp_path,
                ready=links.append,
            )
    assert links == []


def test_a_checkpoint_on_a_storage_that_nobody_knows_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dashboard", "--checkpoint", "gopher://x/y"]) == 2
    assert "gopher" in capsys.readouterr().err
