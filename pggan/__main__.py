"""`python -m pggan VERB key=value …`."""

from pggan.cli import console

console()
