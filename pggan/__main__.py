"""Runs `python -m pggan COMMAND key=value …`."""

from pggan.cli.main import console

console()
