"""`python -m pggan VERB key=value …`; without arguments, what a parent put into the environment (a rank of a run)."""

from pggan.cli.main import console

console()
