"""`python -m pggan VERB key=value …`."""

from pggan.cli.main import console

console()
