"""The commands of `pggan`: what each does, the schema of its keys, the module that runs it.  Without torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from pggan.config.values import CONFIGS


@dataclass(frozen=True)
class Command:
    """One command: its configuration is `config_file`, checked by the dataclass `schema`."""

    name: str
    duty: str
    function: str  # "module:name" of what takes its config and returns the exit code
    example: str

    @property
    def schema(self) -> str:
        """Its dataclass in pggan.config.commands: BenchScalingConfig for 'bench scaling'."""
        return f"{self.name.title().replace(' ', '')}Config"

    @property
    def schema_type(self) -> type:
        """The dataclass itself."""
        from pggan.config import commands

        return getattr(commands, self.schema)  # type: ignore[no-any-return]

    @property
    def config_file(self) -> Path:
        """Its YAML.  Commands without config groups have a folder of their own: there, `data=` is a plain key."""
        name = f"{self.name.replace(' ', '_')}.yaml"
        return next(file for file in (CONFIGS / name, CONFIGS / "commands" / name) if file.is_file())

    @property
    def groups(self) -> dict[str, str]:
        """The folders of configs/ that a file is chosen from with `group=file`, and the file taken by default."""
        found: dict[str, str] = {}
        for file in reversed(self.config_files):
            found |= re.findall(r"^  - (\w+): (\w+)", file.read_text(), re.MULTILINE)
        return found

    @property
    def config_files(self) -> list[Path]:
        """Its YAML, and that of the command whose keys it has, too."""
        bases = re.findall(r"^  - ([a-z]+)$", self.config_file.read_text(), re.MULTILINE)
        return [self.config_file, *(file for base in bases for file in COMMANDS[base].config_files)]


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "train",
            "Train a generator and a discriminator, or resume training.",
            "pggan.run.train:run",
            "pggan train data.path=photos hours=2 run_dir=outputs/faces",
        ),
        Command(
            "prepare",
            "Turn images (folder, archive, known data set) into a checked multi-resolution pyramid.",
            "pggan.data.prepare:run",
            "pggan prepare source=photos dest=data/photos max_resolution=256",
        ),
        Command(
            "plan",
            "Predict operations, memory, hours and energy of a run, and how it scales to many devices.",
            "pggan.performance.plan:run",
            "pggan plan experiment=celebahq_1024 device=h100",
        ),
        Command(
            "sample",
            "Draw images from a generator.",
            "pggan.sampling.commands:sample",
            "pggan sample run=outputs/faces seeds=0-63 out=faces.png",
        ),
        Command(
            "interpolate",
            "Draw images between latents: a strip, a grid or a film.",
            "pggan.sampling.commands:interpolate",
            "pggan interpolate run=outputs/faces seeds=1,5,9 path=loop out=loop.webp",
        ),
        Command(
            "project",
            "Find the latents whose images are nearest to given ones.",
            "pggan.sampling.commands:project_images",
            "pggan project run=outputs/faces image=photo.png",
        ),
        Command(
            "directions",
            "Find directions of latents along which images change in one respect.",
            "pggan.sampling.commands:find_directions",
            "pggan directions run=outputs/faces out=directions.safetensors",
        ),
        Command(
            "explore",
            "Serve a page of seeds, sliders, neighbours and films, and print its address; open=true opens it.",
            "pggan.sampling.explore:run",
            "pggan explore run=outputs/faces open=true",
        ),
        Command(
            "timelapse",
            "Make a film of a whole training: the same images from the first resolution to the last.",
            "pggan.sampling.timelapse:run",
            "pggan timelapse run=outputs/faces out=growth.mp4",
        ),
        Command(
            "evaluate",
            "Measure how good a generator's images are: SWD, MS-SSIM, KID, FID and others, beside a data set.",
            "pggan.metrics.command:run",
            "pggan evaluate run=outputs/faces metrics=swd,kid count=2048",
        ),
        Command(
            "export",
            "Write a generator for other programs: ONNX, a folder for Hugging Face or the web.",
            "pggan.interop.export:run",
            "pggan export run=outputs/faces format=onnx out=faces.onnx",
        ),
        Command(
            "import",
            "Turn weights of the official networks, pytorch_GAN_zoo or pro-gan-pth into a generator file.",
            "pggan.interop.importing:run",
            "pggan import source=network-final.pkl out=faces.safetensors",
        ),
        Command(
            "monitor",
            "Serve TensorBoard for a run, by default the newest, and print its address; open=true opens it.",
            "pggan.run.monitor:run",
            "pggan monitor run=outputs/faces",
        ),
        Command(
            "inspect",
            "Show what a run, a checkpoint or a data set holds.",
            "pggan.run.inspect:run",
            "pggan inspect run=outputs/faces json=true",
        ),
        Command(
            "bench",
            "Measure the throughput of the training step per resolution.",
            "pggan.performance.bench:run",
            "pggan bench stages=4,8,16 batch=16",
        ),
        Command(
            "bench scaling",
            "Measure how much faster several ranks are than one, and what a step spends its time on.",
            "pggan.performance.bench_scaling:run",
            "pggan bench scaling processes=1,2 stages=16,32 trace=traces",
        ),
        Command(
            "doctor",
            "Show what this machine has, and which parts of the program work on it.",
            "pggan.performance.doctor:run",
            "pggan doctor device=cpu",
        ),
    )
}
