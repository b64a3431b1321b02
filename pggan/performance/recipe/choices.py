"""The keys that are chosen, each with its reason, and those that are given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

GROUPS = ("loss", "augmentation")  # keys whose values are files of the configuration


class Choice(NamedTuple):
    """A key that was chosen, and why."""

    key: str
    value: Any
    reason: str


class GivenKeys(Protocol):
    """Which keys stay as they are."""

    def in_command(self, key: str) -> bool:
        """Whether the command line has `key`."""

    def has(self, key: str) -> bool:
        """Whether the command line, or a recipe that it names, has `key`."""


@dataclass
class Choices:
    """The keys that are chosen, in their order: those that are not given."""

    given: GivenKeys
    found: list[Choice] = field(default_factory=list)

    def take(self, key: str, value: Any, reason: str) -> None:
        """Choose `value` for `key`, unless it is given."""
        if not self.given.has(f"{key}.name" if key in GROUPS else key):
            self.found.append(Choice(key, value, reason))

    def take_all(self, values: Mapping[str, Any], reason: str) -> None:
        """Take `values` by key, the first of them that is free with the `reason` of all."""
        before = len(self.found)
        for key, value in values.items():
            self.take(key, value, reason if len(self.found) == before else "as above")

    def replace(self, key: str, value: Any, reason: str) -> None:
        """Choose `value` for `key`, given or not."""
        self.found.append(Choice(key, value, reason))
