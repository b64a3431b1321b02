"""Runs `python -m pggan COMMAND key=value …`, or the command in a variable that the launcher set for this rank."""

from pggan.cli.main import console

console()
