"""``python -m dpconformal``: the command line."""

from dpconformal.cli import main

main()
