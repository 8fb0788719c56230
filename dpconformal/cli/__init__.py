"""The command line."""

from dpconformal.cli.main import app, main

__all__ = ["app", "main"]
