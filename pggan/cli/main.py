"""The command line: `pggan COMMAND key=value …`.  Composes the configuration once, checks it, runs the command.

Nothing here imports torch, so that --help and a typo are answered at once.
"""

import gc
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from pggan.cli.auto_recipe import record_lengths, with_choices
from pggan.cli.commands import COMMANDS, Command
from pggan.cli.compose import compose, config_folder
from pggan.cli.help import help_text, overview
from pggan.cli.output import outlive_readers
from pggan.core.environment import COMMAND_VARIABLE, STARTED_VARIABLE
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, nearest
from pggan.core.version import __version__

# What the default installation brings. If one is missing, this is another Python than the one pggan is installed for.
REQUIRED_MODULES = ["PIL", "hydra", "numpy", "omegaconf", "rich", "safetensors", "simplejpeg", "tensorboard"]
REQUIRED_MODULES += ["torch", "torchvision"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own if None); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with recorded(arguments):
        return guarded(lambda: run_arguments(arguments))


def run_arguments(arguments: list[str]) -> int:
    """Run the command that `arguments` name; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] in ("--completion", "--complete") or "--version" in arguments:
        return answer(arguments)
    words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    name = " ".join(arguments[:words])
    if name not in COMMANDS:
        raise UserError(f"There is no command '{name}'.", nearest(name, [*COMMANDS, "--help", "--version"]))
    command = COMMANDS[name]
    arguments = arguments[words:]
    if {"--help", "-h", "help"} & {*arguments}:
        print(help_text(command, arguments, config_folder(arguments)), flush=True)
        return 0
    if any(argument.startswith("-") for argument in arguments):
        return int(import_module("pggan.cli.hydra_flags").run_with_flags(command, arguments, run_command))
    return run_command(command, with_choices(command, compose(command.name, arguments), arguments, None))


@contextmanager
def recorded(arguments: list[str]) -> Iterator[None]:
    """Inside, the program and the ranks that it starts know the command line, and when it was given."""
    variables = {COMMAND_VARIABLE: shlex.join(["pggan", *arguments]), STARTED_VARIABLE: str(time.time())}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def answer(arguments: list[str]) -> int:
    """Print the version, or what a shell evaluates once (--completion) or asks for in a line (--complete)."""
    if "--version" in arguments:
        if arguments[0] == "--version" and len(arguments) > 1:
            raise UserError(f"--version stands alone: '{arguments[1]}' would do nothing.", "Leave one of them out.")
        print(f"pggan {__version__}")
        return 0
    from pggan.cli.completion import candidates, script

    value = arguments[1] if len(arguments) > 1 else ""
    print(script(value) if arguments[0] == "--completion" else "\n".join(candidates(value)))
    return 0


def run_command(command: Command, values: Mapping[str, Any]) -> int:
    """Check composed `values` and call `run` of the command's module with them; returns the exit code."""
    from pggan.cli.inputs import checked_config

    config = checked_config(command, values)
    with no_garbage_collection():
        run: Callable[[object], int] = import_module(command.module).run
    return record_lengths(command, values, run(config))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off for imports: what they make stays, and looking through it takes a sixth of them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def guarded(run: Callable[[], int]) -> int:
    """The exit code that `run` returns, or that of the UserError or interruption it raises, which is printed."""
    try:
        return run()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in REQUIRED_MODULES:
            raise
        print(f"Error: the library {error.name} is not installed for {sys.executable}.", file=sys.stderr)
        print("  After make setup: source .venv/bin/activate. Otherwise install pggan there with pip.", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt as interrupt:
        print("Stopped at once.", *interrupt.args, file=sys.stderr)
        return EXIT_INTERRUPTED


def run_process(run: Callable[[], int]) -> NoReturn:
    """Be the process of `run`: output may find no reader, and what `run` returns is the exit code."""
    outlive_readers()
    exit_process(run())


def exit_process(code: int) -> NoReturn:
    """End the process with `code`."""
    torch = sys.modules.get("torch")
    # torch's threads may crash an ordinary exit: those of a process group when other ranks are already gone, and that
    # of the backward passes on CUDA when it drops the last one while Python ends.
    if "RANK" in os.environ or (torch is not None and torch.cuda.is_initialized()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def console() -> NoReturn:
    """The command `pggan`."""
    run_process(main)
