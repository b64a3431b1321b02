"""Inputs of an evaluation, by `run=`, `checkpoint=` and `data=`: generators, and the images to compare with."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pggan.checkpoints.read import checkpoints_of, checkpoints_of_run, choose_checkpoint, is_checkpoint, mark_of
from pggan.config import Crop, DataConfig, EvaluateConfig
from pggan.config.describe import flatten
from pggan.config.generators import ALL
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.data.open import open_data
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.report import MADE_GREY, noted
from pggan.distributed.process_group import ProcessGroup
from pggan.sampling.trained_generator import TrainedGenerator

CONFIG_FILE = "config.yaml"


def find_generators(run: str, checkpoint: str | int) -> list[Path]:
    """The generators to evaluate, the oldest first; raises UserError where `checkpoint` is not there."""
    if checkpoint != ALL:
        return [Path(choose_checkpoint(run, checkpoint))]
    return checkpoints_of_run(run)


def open_images(config: EvaluateConfig, generator: TrainedGenerator, group: ProcessGroup) -> ImagePyramid:
    """The pyramid to compare with; rank 0 prepares it if need be.  Raises UserError where there is none."""
    resolution = config.resolution or generator.resolution
    data, highest = images_of_run(config.run) if config.data is None else (None, resolution)
    if config.data is not None:
        data = plain_data(config.data, generator.network.architecture.channels)
    assert data is not None, "one of both was found"
    with group.collective_errors():
        if group.is_main:
            open_at(data, highest, resolution, verify=data.verify)  # prepares it, while the others wait
    with group.collective_errors():
        pyramid = open_at(data, highest, resolution)
    group.require_same({"set of images (fingerprint)": pyramid.fingerprint})
    return pyramid


def open_at(data: DataConfig, highest: int, resolution: int, *, verify: bool = False) -> ImagePyramid:
    """The pyramid of `data`, which is prepared up to `highest` if need be, with a level of `resolution`.

    Args: verify: compare the checksums of that level of images that were prepared before.
    """
    if data.path is None or not (Path(data.path) / INDEX_FILE).is_file():
        try:
            pyramid = open_data(data, highest)
        except UserError as error:  # it names the key of training
            texts = [
                text.replace("schedule.final_resolution=", "resolution=") for text in (error.problem, error.remedy)
            ]
            raise UserError(*texts) from error
    else:
        pyramid = ImagePyramid(Path(data.path))
    if resolution > pyramid.resolution:
        side = pyramid.resolution
        problem = f"The generator draws {resolution}x{resolution}; {pyramid.path} goes up to {side}x{side}."
        raise UserError(problem, "Prepare larger images.")
    if verify:  # numbers of damaged images would be kept for the good ones, which have the same fingerprint
        pyramid.verify([resolution])
    return pyramid


def notes_on_images(config: EvaluateConfig, channels: int, pyramid: ImagePyramid) -> list[str]:
    """Sentences about images that have changed since training, or lose colours beside `channels` of the generator."""
    notes = []
    if config.data is None and images_in_training(config.run) not in (None, pyramid.fingerprint):
        notes.append(f"The images of {pyramid.path} are not those of training: they have changed since.")
    if config.data is not None and channels == 1 and (coloured := noted(pyramid.path, MADE_GREY)):
        notes.append(
            f"{coloured:,} of {pyramid.images:,} images of {pyramid.path} are in colour; they are made grey, as the "
            "generator's are."
        )
    return notes


def images_in_training(run: str) -> str | None:
    """The fingerprint of the images that a run was trained with, by its newest checkpoint; None where none tells."""
    path = Path(run)
    run_dir = path if path.is_dir() else path.parent  # of a generator file
    found = [path] if is_checkpoint(path) else checkpoints_of(run_dir)
    return mark_of(found[-1], "data") if found else None


def images_of_run(run: str) -> tuple[DataConfig, int]:
    """The images that a run was trained with, and its final resolution, from its config.yaml."""
    path = Path(run)
    folders = (path, path.parent, path.parent.parent)  # of a run, of a generator file in it, of a checkpoint
    file = next((folder / CONFIG_FILE for folder in folders if (folder / CONFIG_FILE).is_file()), None)
    remedy = "Name the images to compare with: data=DIRECTORY."
    if file is None:
        raise UserError(f"No {CONFIG_FILE} beside run={run} tells what it was trained with.", remedy)
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        if not isinstance(values, dict) or not isinstance(values["data"], dict):
            raise ValueError("it has no keys of data")
        # The file is untrusted, and an interpolation could ask for more than it holds.
        if any("${" in str(value) for _, value in flatten(values["data"])):
            raise ValueError("it has an interpolation")
        data = validated(DataConfig, values["data"], "data.")
        return data, int(values["schedule"]["final_resolution"])
    except (OSError, YAMLError, OmegaConfBaseException, UserError, ValueError, KeyError, TypeError) as error:
        reason = error.problem if isinstance(error, UserError) else error
        raise UserError(f"{file} does not tell what images to compare with: {reason}", remedy) from error


def mirrored_in_training(run: str) -> bool | None:
    """Whether training mirrored images at random, from the run's config.yaml; None where that does not tell."""
    try:
        return images_of_run(run)[0].mirror
    except UserError:
        return None


def plain_data(path: str, channels: int) -> DataConfig:
    """The images at `path`, as `pggan train` would take them without further keys."""
    return DataConfig(
        path=path,
        style="",
        count=1,
        cache="data",
        crop=Crop.center,
        channels=channels,
        labels=False,
        mirror=False,
        verify=True,
        device_budget_mib=None,
    )
