"""The command line: `pggan VERB key=value …`.  Composes the configuration once, checks it, runs the verb.

Nothing here imports torch, so that --help and a typo are answered at once.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pggan.cli.hydra_patches import refuse_callbacks, tolerate_lazy_help
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Hydra composes; run directory, logs and working directory are this program's own.
QUIET = [
    "hydra.job.name=pggan",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=outputs/multirun",
    "hydra.sweep.subdir=.",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
]

HYDRA_FLAGS = ("--config-dir", "--config-path", "--config-name", "--cfg", "--package")  # those with a value

# Jobs that ran out of time are queued again, as often as it takes: training goes on where it stopped.
QUEUED = "hydra/launcher=submitit_"
QUEUE_AGAIN = {f"{QUEUED}slurm": ["hydra.launcher.max_num_timeout=1000"]}

# In a checkout, configs/ lies beside the package; in an installed wheel, inside it.
CONFIGS = next(
    folder for folder in (Path(__file__).parents[2] / "configs", Path(__file__).parents[1] / "configs") if folder.is_dir()
)


@dataclass(frozen=True)
class Verb:
    """One command: its configuration is `config_file`, checked by the dataclass `schema` of pggan.config."""

    name: str
    duty: str
    schema: str
    module: str  # has run(config) -> exit code
    example: str
    # A key that may be given by its group's name alone, though Hydra would take that for a choice of the group.
    short_key: str | None = None

    def spelled_out(self, argument: str) -> str:
        """`argument` with its key in full."""
        group = f"{str(self.short_key).split('.')[0]}="
        return f"{self.short_key}={argument.removeprefix(group)}" if argument.startswith(group) else argument

    @property
    def stem(self) -> str:
        """The name of its YAML."""
        return self.name.replace(" ", "_")

    @property
    def config_file(self) -> Path:
        """Its YAML.  Commands without config groups have a folder of their own: there, `data=` is a plain key."""
        return next(
            file
            for file in (CONFIGS / f"{self.stem}.yaml", CONFIGS / "commands" / f"{self.stem}.yaml")
            if file.is_file()
        )

    @property
    def groups(self) -> dict[str, str]:
        """The folders of configs/ that a file is chosen from with `group=file`, and the file taken by default."""
        text = self.config_file.read_text()
        others = [VERBS[name] for name in re.findall(r"^  - ([a-z]+)$", text, re.MULTILINE)]  # all of their keys, too
        inherited = {group: default for other in others for group, default in other.groups.items()}
        return inherited | dict(re.findall(r"^  - (\w+): (\w+)", text, re.MULTILINE))


VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "train",
            "Train a generator and a discriminator, or go on training.",
            "TrainConfig",
            "pggan.run.launch",
            "pggan train data.path=photos run_dir=outputs/faces schedule.final_resolution=128",
        ),
        Verb(
            "prepare",
            "Turn images (folder, archive, known data set) into a checked multi-resolution pyramid.",
            "PrepareConfig",
            "pggan.data.prepare.command",
            "pggan prepare source=photos dest=data/photos max_resolution=256",
        ),
        Verb(
            "plan",
            "Say what a run will take: operations, memory, hours, energy, and how it scales to many devices.",
            "PlanConfig",
            "pggan.plan.command",
            "pggan plan experiment=official_8gpus tflops=200 watts=700",
        ),
        Verb(
            "sample",
            "Draw images from a generator.",
            "SampleConfig",
            "pggan.sampling.sample",
            "pggan sample run=outputs/faces seeds=0-63 out=faces.png",
        ),
        Verb(
            "interpolate",
            "Draw what lies between latents: a strip, a grid or an animation.",
            "InterpolateConfig",
            "pggan.sampling.interpolate",
            "pggan interpolate run=outputs/faces seeds=[1,5,9] path=loop out=loop.webp",
        ),
        Verb(
            "inspect",
            "Show what a run, a checkpoint or a data set holds.",
            "InspectConfig",
            "pggan.run.inspect",
            "pggan inspect run=outputs/faces json=true",
        ),
        Verb(
            "bench",
            "Measure the throughput of the training step per resolution, or with data= that of loading beside it.",
            "BenchConfig",
            "pggan.bench.command",
            "pggan bench stages=[4,8,16] batch=16",
            "data.path",
        ),
        Verb(
            "bench scaling",
            "Measure how much faster several processes are than one, and what a step spends its time on.",
            "ScalingConfig",
            "pggan.bench.scaling",
            "pggan bench scaling processes=[1,2] stages=[16,32] trace=traces",
        ),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own if None); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Large tensors on a CPU get huge pages, which take a fraction of the time to get; torch reads this when it starts.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
    return guarded(lambda: run_command(arguments))


def leave(code: int) -> NoReturn:
    """End the process with `code`."""
    if "RANK" in os.environ:  # one of several: torch's threads may crash it when others are already gone
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def console() -> NoReturn:
    """The command `pggan`."""
    leave(main())


def run_command(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    words = 2 if " ".join(arguments[:2]) in VERBS else 1
    name = " ".join(arguments[:words])
    if name not in VERBS:
        raise UserError(f"There is no command '{name}'.", nearest(name, VERBS))
    return run_verb(VERBS[name], arguments[words:])


def guarded(run: Callable[[], int]) -> int:
    """What `run` returns, or the exit code for what it raises, having told people about it."""
    try:
        return run()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BrokenPipeError:  # whoever reads the output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        return 0
    except KeyboardInterrupt:
        print("Stopped at once; the last checkpoint is whole.", file=sys.stderr)
        return EXIT_INTERRUPTED


def overview() -> str:
    """The list of commands."""
    width = max(map(len, VERBS))
    lines = [f"  {verb.name:<{width}}  {verb.duty}" for verb in VERBS.values()]
    return "\n".join(["Usage: pggan COMMAND key=value …", "", *lines, "", "pggan COMMAND --help lists its keys."])


def run_verb(verb: Verb, arguments: list[str]) -> int:
    arguments = [verb.spelled_out(argument) for argument in arguments]
    if "--help" in arguments or "-h" in arguments:
        print(help_text(verb, arguments), flush=True)
        return 0
    for argument in arguments:
        if argument.startswith("--") and "=" in argument and argument.split("=")[0] not in HYDRA_FLAGS:
            raise UserError(f"'{argument}' is not how keys are given.", f"Leave out the dashes: {argument.lstrip('-')}")
    if any(argument.startswith("-") for argument in arguments):
        return run_with_hydra_flags(verb, arguments)
    return run_plain(verb, compose(verb.name, arguments))


def run_plain(verb: Verb, values: Mapping[str, Any]) -> int:
    """Check composed `values` and run the verb with them."""
    from pggan import config
    from pggan.core.validation import validated

    checked = validated(getattr(config, verb.schema), values)
    run: Callable[[object], int] = import_module(verb.module).run
    return run(checked)


# ---- help ------------------------------------------------------------------------------------------------


def help_text(verb: Verb, arguments: Sequence[str]) -> str:
    """Usage, and the YAML files that the configuration is composed of, with their comments."""
    primary = verb.config_file.read_text()
    parts = [f"{verb.duty}\n\nUsage:    pggan {verb.name} key=value …\nExample:  {verb.example}"]
    if verb.name == "train":
        parts[0] += "\n\n`python train.py key=value …` is the same command."
    file = verb.config_file.relative_to(CONFIGS.parent)
    parts.append(f"Keys of {file} with their defaults:\n\n{_indented(_without_defaults(primary))}")
    chosen = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    for group, default in re.findall(r"^  - (\w+): (\w+)", primary, re.MULTILINE):
        choices = sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))
        choice = chosen.get(group, default)
        text = f"{group}={'|'.join(choices)}"
        if choice in choices:
            content = (CONFIGS / group / f"{choice}.yaml").read_text()
            text += f"\nKeys of configs/{group}/{choice}.yaml:\n\n{_indented(content)}"
        parts.append(text)
    parts.append("--cfg job shows the composed configuration; --multirun runs one job per value of key=a,b.")
    return "\n\n".join(parts)


def _without_defaults(text: str) -> str:
    return re.sub(r"^defaults:\n(?:  .*\n)+", "", text, flags=re.MULTILINE)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.strip().splitlines())


# ---- composing -------------------------------------------------------------------------------------------


def compose(name: str, overrides: list[str], folder: str | None = None) -> dict[str, Any]:
    """The values of command `name` under `overrides`, interpolations resolved; `folder` has more files to choose from.

    Raises UserError that names the override at fault.
    """
    more = [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    with initialize_config_dir(str(VERBS[name].config_file.parent), version_base="1.3", job_name="pggan"):
        try:
            composed = hydra_compose(VERBS[name].stem, [*open_tables(overrides), *more])
            return own_values(composed)
        except YAMLError as error:
            raise UserError(f"A configuration file is not plain YAML: {error}", "Correct it where it says.") from error
        except OverrideParseException as error:
            raise UserError(
                f"'{error.override}' can't be read.",
                "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\".",
            ) from error
        except MissingConfigException as error:
            group, _, choice = (error.missing_cfg_file or "").rpartition("/")
            raise UserError(f"There is no {group}={choice}.", nearest(choice, error.options or [])) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            groups = VERBS[name].groups
            for chosen in ([one for one in overrides if one.partition("=")[0] in groups], []):
                try:
                    keys = OmegaConf.to_container(hydra_compose(VERBS[name].stem, [*chosen, *more]), resolve=False)
                    break
                except (HydraException, OmegaConfBaseException, ValueError):
                    continue  # what is chosen can't be composed either
            raise explanation(overrides, {*_flat(keys), *groups}, error) from error


def open_tables(overrides: list[str]) -> list[str]:
    """Let `key={…}` bring new entries into a table, which Hydra takes with `++` only; the schema checks the key."""
    return [f"++{override}" if re.match(r"[\w.]+=\s*\{", override) else override for override in overrides]


def own_values(composed: "DictConfig") -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, without Hydra's own part."""
    from omegaconf import OmegaConf

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    refuse_resolvers(OmegaConf.to_container(own, resolve=False))
    values = OmegaConf.to_container(own, resolve=True)
    assert isinstance(values, dict), "a YAML file with keys"
    return {str(key): value for key, value in values.items()}


def refuse_resolvers(values: Any, key: str = "") -> None:
    """Raise UserError for a value that asks for more than another key: the environment, say, as `${oc.env:HOME}` does.

    A configuration can come from anywhere, and what it fetches would be written into the run's files.
    """
    if isinstance(values, dict):
        for name, value in values.items():
            refuse_resolvers(value, f"{key}.{name}".removeprefix("."))
    elif isinstance(values, list):
        for value in values:
            refuse_resolvers(value, key)
    elif isinstance(values, str) and re.search(r"\$\{[^}]*:", values):
        raise UserError(f"{key}={values} can't be used.", "Write the value itself; '${key}' takes that of another key.")


def groups() -> list[str]:
    """The folders of configs/ that a file is chosen from with `group=file`."""
    return sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())


def explanation(overrides: list[str], known: set[str], error: Exception) -> UserError:
    """Why composing failed, in terms of the override at fault; `known` are the keys that the chosen groups have."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if isinstance(error, ValueError) and key and (CONFIGS / key).is_dir() and not isinstance(override.value(), str):
            choices = sorted(file.stem for file in (CONFIGS / key).glob("*.yaml"))
            return UserError(f"There is no {override.input_line}.", nearest(str(override.value()), choices))
        parent, _, last = key.rpartition(".")
        if parent in known and last.isdecimal():
            return UserError(
                f"'{override.input_line}' can't be given like this.",
                f"Write '{parent}={{{last}: …}}' (in quotes).",
            )
        if key not in known:
            return UserError(f"There is no key '{key}'.", nearest(key, known))
    return UserError(" ".join(str(error).split("\n")[:2]), "See --help for the keys and their values.")


def _flat(values: Any, prefix: str = "") -> list[str]:
    """All keys of nested dictionaries, with dots."""
    if not isinstance(values, dict):
        return []
    keys: list[str] = []
    for key, value in values.items():
        keys += [f"{prefix}{key}", *_flat(value, f"{prefix}{key}.")]
    return keys


# ---- Hydra's own flags -----------------------------------------------------------------------------------


def run_with_hydra_flags(verb: Verb, arguments: list[str]) -> int:
    """--cfg, --multirun, --info, --config-dir … through Hydra's own entry point."""
    import hydra
    from hydra.errors import HydraException

    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    flags = [argument for argument in arguments if argument not in overrides]
    if not {"-m", "--multirun"} & set(flags):
        compose(verb.name, overrides, config_folder(flags))  # a typo gets our own answer
    again = settings_of_jobs(verb, overrides)

    def task(composed: "DictConfig") -> None:
        code = run_plain(verb, own_values(composed))
        if code:
            sys.exit(code)

    tolerate_lazy_help()
    refuse_callbacks()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come out as they are, not as Hydra's summary of them
    sys.argv = [f"pggan {verb.name}", *again, *open_tables(overrides), *QUIET, *flags]
    try:
        hydra.main(version_base="1.3", config_path=str(verb.config_file.parent), config_name=verb.stem)(task)()
    except HydraException as error:
        raise UserError(str(error).splitlines()[0], "See --help for the keys and their values.") from error
    return 0


def config_folder(flags: list[str]) -> str | None:
    """What `--config-dir` or `-cd` names."""
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        if flag in ("--config-dir", "-cd"):
            return following
        if flag.startswith("--config-dir="):
            return flag.removeprefix("--config-dir=")
    return None


def settings_of_jobs(verb: Verb, overrides: list[str]) -> list[str]:
    """What jobs of a launcher need besides `overrides`; raises UserError when it is not there, or not told enough."""
    if not any(override.startswith(QUEUED) for override in overrides):
        return []
    if verb.name == "train" and not any(override.startswith("run_dir=") for override in overrides):
        raise UserError(
            "Jobs that are queued again need to know where they were.",
            "Add run_dir=, a different one for each job: run_dir='outputs/seeds/${seed}'",
        )
    if not (find_spec("hydra_plugins") and find_spec("hydra_plugins.hydra_submitit_launcher")):
        raise UserError("Hydra's launcher for Slurm is not installed.", 'pip install "pggan[slurm]"')
    return [setting for override in overrides for setting in QUEUE_AGAIN.get(override, [])]
