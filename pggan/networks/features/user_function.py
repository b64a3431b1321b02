"""Functions of the user's own, which a key names as MODULE:FUNCTION."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from pggan.core.errors import UserError


def call_user_function(key: str, module: str, function: str) -> Any:
    """Return what FUNCTION() does, of a module that Python finds or in the working directory; `key` names it.

    Raises UserError where it is not there, and for any exception of its code.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    name = f"{key}={module}:{function}"
    with user_errors(key, name):
        try:
            make = getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            problem = f"{name} can't be loaded: {error}."
            raise UserError(problem, f"Write {key}=MODULE:FUNCTION, of a module that Python can import.") from error
        return make()


@contextmanager
def user_errors(key: str, name: str) -> Iterator[None]:
    """Raise UserError, which names the user's function, for any exception of its code inside."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):  # when memory runs out, training leaves out the evaluation
        raise
    except Exception as error:
        problem = f"{name} raised {type(error).__name__}: {error}"
        raise UserError(problem, f"Call it in Python to see where, or choose another {key}=.") from error
