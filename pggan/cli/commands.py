"""The commands of `pggan`: what each does, the schema of its keys, the module that runs it.  Without torch."""

import re
from dataclasses import dataclass
from pathlib import Path

# In a checkout, configs/ lies beside the package; in an installed wheel, inside it.
CONFIGS = next(
    folder
    for folder in (Path(__file__).parents[2] / "configs", Path(__file__).parents[1] / "configs")
    if folder.is_dir()
)


@dataclass(frozen=True)
class Command:
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
        files = (CONFIGS / f"{self.stem}.yaml", CONFIGS / "commands" / f"{self.stem}.yaml")
        return next(file for file in files if file.is_file())

    @property
    def groups(self) -> dict[str, str]:
        """The folders of configs/ that a file is chosen from with `group=file`, and the file taken by default."""
        text = self.config_file.read_text()
        others = [
            COMMANDS[name] for name in re.findall(r"^  - ([a-z]+)$", text, re.MULTILINE)
        ]  # all of their keys, too
        inherited = {group: default for other in others for group, default in other.groups.items()}
        return inherited | dict(re.findall(r"^  - (\w+): (\w+)", text, re.MULTILINE))


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "train",
            "Train a generator and a discriminator, or resume training.",
            "TrainConfig",
            "pggan.run.train",
            "pggan train data.path=photos run_dir=outputs/faces schedule.final_resolution=128",
        ),
        Command(
            "prepare",
            "Turn images (folder, archive, known data set) into a checked multi-resolution pyramid.",
            "PrepareConfig",
            "pggan.data.prepare.command",
            "pggan prepare source=photos dest=data/photos max_resolution=256",
        ),
        Command(
            "plan",
            "Predict what a run will take: operations, memory, hours, energy, and how it scales to many devices.",
            "PlanConfig",
            "pggan.plan.command",
            "pggan plan experiment=official_8gpus tflops=200 watts=700",
        ),
        Command(
            "sample",
            "Draw images from a generator.",
            "SampleConfig",
            "pggan.sampling.sample",
            "pggan sample run=outputs/faces seeds=0-63 out=faces.png",
        ),
        Command(
            "interpolate",
            "Draw what lies between latents: a strip, a grid or an animation.",
            "InterpolateConfig",
            "pggan.sampling.interpolate",
            "pggan interpolate run=outputs/faces seeds=[1,5,9] path=loop out=loop.webp",
        ),
        Command(
            "inspect",
            "Show what a run, a checkpoint or a data set holds.",
            "InspectConfig",
            "pggan.run.inspect",
            "pggan inspect run=outputs/faces json=true",
        ),
        Command(
            "bench",
            "Measure the throughput of the training step per resolution, or with data= that of loading beside it.",
            "BenchConfig",
            "pggan.bench.command",
            "pggan bench stages=[4,8,16] batch=16",
            "data.path",
        ),
        Command(
            "bench scaling",
            "Measure how much faster several ranks are than one, and what a step spends its time on.",
            "BenchScalingConfig",
            "pggan.bench.scaling",
            "pggan bench scaling processes=[1,2] stages=[16,32] trace=traces",
        ),
    )
}
