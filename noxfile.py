"""Tests with the lowest and with the newest versions that pyproject.toml allows: see `make check-versions`."""

import nox

EXTRAS = ".[avatars,datasets,docs,export,faces,metrics,slurm,video,dev]"

nox.options.default_venv_backend = "uv"


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """Every lower bound at once, on the oldest Python."""
    session.install("--resolution", "lowest-direct", "--editable", EXTRAS)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def newest(session: nox.Session) -> None:
    """The newest of everything, on every Python that is installed; the others are skipped."""
    session.install("--upgrade", "--editable", EXTRAS)
    session.run("python", "-m", "pytest", *session.posargs)
