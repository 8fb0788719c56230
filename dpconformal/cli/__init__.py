"""The command line."""

import sys

_EXTRA = ("typer", "rich", "pyarrow")  # what the extra `cli` brings

try:
    from dpconformal.cli.main import app, main
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in _EXTRA:
        raise

    def main() -> None:
        """Say what to install, and end with code 2."""
        sys.stderr.write(f"error: the command line needs {missing}: pip install '.[cli]' in a clone of dpconformal\n")
        raise SystemExit(2)


__all__ = ["app", "main"]
