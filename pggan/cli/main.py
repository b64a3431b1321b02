"""The command line `pggan COMMAND key=value …`.  Imports no torch, so that --help answers at once."""

import codecs
import gc
import locale
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

from pggan.cli.commands import COMMANDS, Command
from pggan.cli.help import help_text, overview
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR, REFUSED, UserError, nearest
from pggan.core.process import (
    COMMAND_VARIABLE,
    PARENT_VARIABLE,
    STARTED_VARIABLE,
    TASK_VARIABLE,
    TORCH_WAS_LOADED,
    __version__,
    end_with_parent,
    environment,
)

if TYPE_CHECKING:
    from torch.nn import Module

    from pggan.losses.base import Loss
    from pggan.sampling.trained_generator import TrainedGenerator


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: the arguments of this process); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The ranks are new processes, and read the command line and the start time from environment variables.
    variables = {COMMAND_VARIABLE: shlex.join(["pggan", *arguments]), STARTED_VARIABLE: str(time.time())}
    with environment(variables):
        return guarded(lambda: run_arguments(arguments))


def train(*overrides: str, loss: "Loss | None" = None, discriminator: "Module | None" = None) -> "TrainedGenerator":
    """Train like `pggan train` with `overrides`, such as "data.path=photos"; returns the averaged (EMA) generator.

    Args: loss: replaces the configured loss.  discriminator: a module that replaces D, and maps images
    [N, C, R, R] of every resolution R to scores [N].  With neither argument, the training runs in a new process.
    Raises UserError if training fails, and KeyboardInterrupt if a signal stops training, after everything is saved.
    """
    from pggan.checkpoints.read import OUTPUTS, newest_run
    from pggan.cli.compose import compose, resumes
    from pggan.cli.recipe import with_choices
    from pggan.config.validation import validated
    from pggan.core.text import as_hydra_reads_it
    from pggan.losses import own_loss
    from pggan.networks.discriminators import own_discriminator
    from pggan.run.run_dir import beside, choose_run_dir
    from pggan.sampling.trained_generator import load

    command, words, own = COMMANDS["train"], [*overrides], {}
    is_new = not resumes(words)  # to resume a run, `words` must have no loss= or model.discriminator= (RESUME_KEYS)
    with ExitStack() as objects:
        if loss is not None:
            objects.enter_context(own_loss(loss))
            words += ["loss=object"] * is_new
            own = {"loss": {"name": "object", "type": type(loss).__name__}}
        if discriminator is not None:
            objects.enter_context(own_discriminator(discriminator))
            words += [f"model.discriminator={type(discriminator).__name__}"] * is_new
        typed = {COMMAND_VARIABLE: shlex.join(["pggan", "train", *words]), STARTED_VARIABLE: str(time.time())}
        objects.enter_context(environment(typed))
        values = compose(command.name, words) | own
        if discriminator is not None:
            values["model"]["discriminator"] = type(discriminator).__name__
        validated(command.schema_type, values)
        if values["run_dir"] is None and "RANK" not in os.environ:  # torchrun's ranks agree on a run directory later
            base = values["grow"]
            values["run_dir"] = str(choose_run_dir(None, values["name"]) if base is None else beside(Path(base)))
            # With run_dir= alone, `words` could resume an old run.  With grow=, even grow=null, a new run starts.
            words += [f"{key}={as_hydra_reads_it(values[key])}" for key in ("grow", "run_dir")]
        if loss is None and discriminator is None:
            code = run_child(words)
        else:
            if TORCH_WAS_LOADED:
                print("Import pggan before torch, or short training steps on a CPU may take longer.", file=sys.stderr)
            code = run_command(command, with_choices(command, values, words) | own)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt("Training was stopped and is saved. To resume, call pggan.train again with run_dir=.")
    if code != 0:
        raise UserError(f"Training has failed with exit code {code}.", "See the last message that training printed.")
    folder = OUTPUTS if values["grow"] is None else beside(Path(values["grow"])).parent
    return load(values["run_dir"] or newest_run(folder))


def run_child(overrides: Sequence[str]) -> int:
    """Run `pggan train` in a child process, which saves and stops if this process ends; returns the exit code."""
    words, variables = [sys.executable, "-m", "pggan", "train", *overrides], {PARENT_VARIABLE: str(os.getpid())}
    # The child has its own session: Ctrl-C reaches only the parent, which then asks the child to save and stop.
    with subprocess.Popen(words, start_new_session=True, env={**os.environ, **variables}) as child:  # noqa: S603
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            return child.wait()


def run_arguments(arguments: list[str]) -> int:
    """Run the command that `arguments` name; returns the exit code."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError("The working directory does not exist any more.", "Change to another one: cd") from error
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if "--version" in arguments:
        print(f"pggan {__version__}")
        return 0
    if arguments[0] == "-sc" and "COMP_LINE" in os.environ:  # tab completion: a shell asks for matching words
        os.environ["COMP_LINE"] = line = os.environ["COMP_LINE"].partition(" ")[2]
        if " " not in line:
            print(*COMMANDS, sep="\n")
            return 0
        arguments = [line.partition(" ")[0], *arguments]
    words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    name = " ".join(arguments[:words])
    if name not in COMMANDS:
        raise UserError(f"There is no command '{name}'.", nearest(name, [*COMMANDS, "--help", "--version"]))
    command, arguments = COMMANDS[name], arguments[words:]
    if {"--help", "-h", "help"} & {*arguments}:
        print(help_text(command, arguments), flush=True)
        return 0
    from pggan.cli.compose import compose, run_with_flags, with_marked_files
    from pggan.cli.recipe import with_choices
    from pggan.config.validation import validated

    def run(values: dict[str, Any], overrides: list[str]) -> int:
        validated(command.schema_type, values)  # find wrong keys before the benchmarks of hours=, which take minutes
        return run_command(command, with_choices(command, values, overrides))

    arguments = with_marked_files(arguments)
    if any(argument.startswith("-") for argument in arguments):
        return run_with_flags(command, arguments, run)
    return run(compose(command.name, arguments), arguments)


def run_command(command: Command, values: Mapping[str, Any]) -> int:
    """Validate the configuration `values`, and pass the result to the command's function; returns the exit code."""
    from pggan.config.train import TrainConfig
    from pggan.config.validation import validated

    config: object = validated(command.schema_type, with_newest_run(command, values))
    parts: list[object] = []
    if type(config) is TrainConfig:  # pggan.run must not import pggan.data.prepare
        from pggan.data.prepare import training_pyramid

        parts = [partial(training_pyramid, **config.data.origin)]
    gc.disable()  # without garbage collection, imports take a sixth less time
    run: Callable[..., int] = resolve_name(command.function)
    gc.enable()
    return run(config, *parts)


def with_newest_run(command: Command, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace run=newest in `values` by the newest run's directory, and print this directory on stderr."""
    from pggan.checkpoints.read import EVENTS, NEWEST, OUTPUTS, newest_run

    looks_elsewhere = command.name == "inspect" and (values["data"], values["image"]) != (None, None)
    if values.get("run") != NEWEST or looks_elsewhere:
        return values
    run = newest_run(OUTPUTS, *([EVENTS] if command.name == "monitor" else []))  # TensorBoard needs no checkpoint
    print(f"The newest run: run={run}", file=sys.stderr)
    return {**values, "run": str(run)}


def guarded(run: Callable[[], int]) -> int:
    """Call `run`, and print expected errors without a traceback; returns the exit code."""
    try:
        return run()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        problem = str(error).partition("] ")[2]  # leaves out a prefix such as "[Errno 13] "
        print(f"Error: {problem}.\n  Free disk space there, get permission, or choose another path.", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt as interrupt:
        print(" ".join(["Stopped at once.", *interrupt.args]).rstrip(), file=sys.stderr)
        return EXIT_INTERRUPTED


def run_rank() -> int:
    """Run the command that the launcher has given to this rank; returns the exit code."""
    from pggan.distributed.launch import report_rank

    return report_rank(lambda command, values: run_command(COMMANDS[command], values), guarded)


def exit_process(code: int) -> NoReturn:
    """End this process with the exit code `code`."""
    torch = sys.modules.get("torch")
    # sys.exit may crash in one of torch's threads if other ranks have ended, or if this process has used CUDA.
    if "RANK" in os.environ or (torch is not None and torch.cuda.is_initialized()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def use_utf8() -> None:
    """If the locale is not UTF-8, restart in Python's UTF-8 mode; the output keeps the terminal's encoding."""
    if sys.stdout and codecs.lookup(locale.getencoding()).name != "utf-8" and not sys.flags.utf8_mode:
        variables = {"PYTHONIOENCODING": sys.stdout.encoding, **os.environ, "PYTHONUTF8": "1"}
        try:
            os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], variables)  # noqa: S606
        except UnicodeEncodeError as error:
            print(f"Error: The command has characters outside the encoding {error.encoding}.", file=sys.stderr)
            print("  Choose a UTF-8 locale: export LC_ALL=C.UTF-8", file=sys.stderr)
            sys.exit(EXIT_USER_ERROR)
    if isinstance(sys.stdout, TextIOWrapper):  # sys.stdout is None if the standard output is closed
        sys.stdout.reconfigure(errors="replace")


def console(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of `pggan`, for users and for the processes that pggan starts."""
    use_utf8()
    if PARENT_VARIABLE in os.environ:  # pggan has started this process
        parent = int(os.environ.pop(PARENT_VARIABLE))
        Thread(target=end_with_parent, args=[parent], name="parent", daemon=True).start()
    exit_process(run_rank() if TASK_VARIABLE in os.environ else main(argv))
