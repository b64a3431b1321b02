"""Runs `python -m pggan COMMAND key=value …`, or a rank whose command the launcher put into an environment variable."""

from pggan.cli.main import console

console()
