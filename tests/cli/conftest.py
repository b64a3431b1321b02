"""Commands that compose as users' do."""

from collections.abc import Iterator

import pytest

from pggan.cli import main
from pggan.cli.compose import compose


@pytest.fixture(scope="module", autouse=True)
def kept_files() -> Iterator[None]:
    """Each command reads its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "compose", compose)
        yield
