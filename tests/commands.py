"""Commands of dpconformal, run in the process of the tests."""

import pytest

from dpconformal import cli


def run_command(monkeypatch, capture, *words):
    """Run a command: its code, what it printed, what it complained of."""
    monkeypatch.setattr("sys.argv", ["dpconformal", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, *capture.readouterr()
