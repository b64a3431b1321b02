"""Changes to Hydra itself: no code that a configuration names is called; help works on Python 3.14."""

from typing import TYPE_CHECKING

from pggan.core.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def refuse_callbacks() -> None:
    """Let Hydra raise UserError where it would call what a configuration names as `hydra.callbacks`."""
    from hydra._internal.callbacks import Callbacks
    from omegaconf import OmegaConf

    def without_callbacks(self: Callbacks, config: "DictConfig | None" = None) -> None:
        self.callbacks = []
        if config is not None and OmegaConf.select(config, "hydra.callbacks"):
            raise UserError("This configuration names code to call (hydra.callbacks).", "Take that part out of it.")

    Callbacks.__init__ = without_callbacks  # type: ignore[method-assign]


def tolerate_lazy_help() -> None:
    """Let argparse of Python 3.14, which formats help texts at once, take Hydra 1.3's one that becomes text later."""
    import argparse

    check = getattr(argparse._ActionsContainer, "_check_help", None)
    if check is None:  # before Python 3.14
        return

    def check_strings(container: argparse._ActionsContainer, action: argparse.Action) -> None:
        if isinstance(action.help, str):
            check(container, action)

    argparse._ActionsContainer._check_help = check_strings  # type: ignore[attr-defined]
