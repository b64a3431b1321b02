"""`hours=`: looks at the images, and finds the recipe that fits, with steps measured on the device here."""

from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path

import torch

from pggan.config.train import DataConfig, TrainConfig
from pggan.config.values import command_seconds
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.devices import choose_device, configure_process, count_devices
from pggan.core.errors import UserError
from pggan.core.process import threads_per_rank
from pggan.core.schedule import PerResolution, value_at
from pggan.core.text import Log, duration
from pggan.data.data_sets import open_source
from pggan.data.image_file import ImageHeader, usable_side
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.report import header_of
from pggan.distributed.process_group import rank_from_environment
from pggan.networks import efficientnet_lite0
from pggan.performance.recipe import FEATURES_FROM, Choice, DataFacts, NetworkSizes, Recipe
from pggan.run.eta import TRAINING_SHARE
from pggan.training.timing import StepTimes, nearest, speed_of

MAX_SECONDS, MAX_SHARE = 60.0, 0.02  # that measuring steps may take, and of the hours
FEATURES_COST = 1.6  # of a step at 64x64 with pretrained features, times one without (one CPU thread, ORL's recipe)
ATTEMPTS = 3  # what is measured for one choice can lead to another one, which is measured, too
MAX_HEADERS = 200  # of images that are read: a second, and the twentieth part of them is still ten images
SMALL_SHARE = 0.2  # of the images may be smaller than the final resolution: half of the pixels of all others weigh more
MAX_AVATAR = 256  # pixels: drawings have no more detail to show


class MeasuredCosts:
    """The seconds of an image with any networks: by their operations, scaled to the steps that were measured."""

    def __init__(self, config: TrainConfig, facts: DataFacts, device: torch.device, ranks: int) -> None:
        self.config, self.facts, self.device, self.ranks = config, facts, device, ranks
        self.speed = speed_of(device, config.precision)
        self.ratios: dict[int, float] = {}  # of measured steps to expected ones, by resolution

    def __call__(self, networks: NetworkSizes, batch: PerResolution) -> dict[int, float]:
        """Seconds of an image at every level of `networks`."""
        times, found = self._times(self.config, networks), dict[int, float]()
        for side in resolutions_between(self.config.schedule.first_resolution, networks.resolution):
            step = times.expected(side, self._local(batch, side)) * extra(networks, side) * nearest(self.ratios, side)
            found[side] = step / value_at(batch, side)
        return found

    def measure(self, config: TrainConfig, recipe: Recipe, seconds: float) -> None:
        """Measure the steps of `recipe`, which `config` has, for so many seconds."""
        stable = {phase.resolution: phase for phase in config.schedule.build().phases}
        phases = [replace(phase, batch=self._local(recipe.batch, side)) for side, phase in stable.items()]
        found = self._times(config, recipe.sizes).measured(phases, seconds)
        self.ratios = {side: ratio / extra(recipe.sizes, side) for side, ratio in found.items()} or self.ratios

    def _local(self, batch: PerResolution, side: int) -> int:
        return -(-int(value_at(batch, side)) // self.ranks)

    def _times(self, config: TrainConfig, networks: NetworkSizes) -> StepTimes:
        model = replace(config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        architecture = model.architecture(networks.resolution, self.facts.channels, self.facts.num_classes)
        return StepTimes(config.trainer_settings(), architecture, self.device, self.speed)


def extra(networks: NetworkSizes, side: int) -> float:
    """How many times the operations of G and D a step takes where D looks at pretrained features."""
    return FEATURES_COST if networks.features and side >= FEATURES_FROM else 1.0


def find_recipe(
    config: TrainConfig, given: Set[str], compose: Callable[[list[Choice]], TrainConfig], log: Log, *, scales: bool
) -> tuple[list[Choice], str]:
    """The choices for the hours of `config`, and images, machine and time in words.

    Args: config: without choices; given: the keys that stay; compose: the configuration with choices; log: told what is
    measured; scales: whether `config` is a recipe whose lengths are scaled to the hours.
    """
    if rank_from_environment() is not None or config.distributed.nnodes > 1:
        problem = "hours= measures and chooses before the ranks start, on one machine."
        raise UserError(problem, "Choose there, and give all ranks experiment= with the recipe.yaml of that run.")
    assert config.hours is not None, "they were given"
    facts, seconds, (kind, ranks) = facts_of(config.data), 3600 * config.hours, count_devices(config.devices)
    device = choose_device(kind)
    threads = config.threads or (threads_per_rank(ranks, elastic=config.elastic) if ranks > 1 else None)
    configure_process(device, threads, one_thread=config.elastic)
    costs, measured = MeasuredCosts(config, facts, device, ranks), list[tuple[NetworkSizes, PerResolution]]()
    while True:
        left, installed = TRAINING_SHARE * seconds - command_seconds(), efficientnet_lite0.is_installed()
        training = (1 - config.evaluation.share) * left
        recipe = Recipe(config, given, facts, kind, ranks, costs, training, has_features=installed, scales=scales)
        recipe.choose()
        if (recipe.sizes, recipe.batch) in measured or len(measured) == ATTEMPTS:
            break
        measured.append((recipe.sizes, recipe.batch))
        log(f"Measuring steps up to {recipe.sizes.resolution}x{recipe.sizes.resolution}")
        costs.measure(compose(recipe.choices), recipe, min(MAX_SECONDS, MAX_SHARE * seconds) / ATTEMPTS)
    where = f"cpu with {torch.get_num_threads()} threads" if kind == "cpu" and ranks == 1 else f"{ranks} x {kind}"
    return recipe.choices, f"{facts.note}; {where}; {duration(seconds)}"


def facts_of(config: DataConfig) -> DataFacts:
    """The images that `config` names; of files that are not prepared, headers of a sample are read.

    Raises UserError where there is no image, or the classes of files that are not prepared are asked for.
    """
    if config.path is None:
        note = f"{config.count:,} avatars, drawn at any size"
        return DataFacts(config.count, MAX_AVATAR, config.channels or 3, 0, drawn=True, note=note)
    if Path(config.path, INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
        num_classes, side = len(pyramid.class_names or ()) if config.labels else 0, pyramid.resolution
        note, drawn = f"{pyramid.images:,} images, prepared at {side}x{side}", pyramid.source.get("kind") == "avatars"
        return DataFacts(pyramid.images, side, pyramid.channels, num_classes, drawn=drawn, note=note)
    if config.labels:
        problem = "hours= has to know the classes of data.labels=true before the images are prepared."
        raise UserError(problem, "Prepare the data first (pggan prepare … labels=true), and give it as data.path=.")
    return facts_of_files(config, config.path)


def facts_of_files(config: DataConfig, path: str) -> DataFacts:
    """The files of a folder, an archive or a known set that are not prepared yet."""
    entries = open_source(path, config.cache).in_reading_order()
    found = [entry for entry in entries if entry.problem is None]
    sample = found[:: -(-len(found) // MAX_HEADERS) or 1]
    headers = [header for entry in sample if isinstance(header := header_of(entry)[1], ImageHeader)]
    sides = sorted(usable_side(header.width, header.height, config.crop) for header in headers)
    sides = [side for side in sides if side >= MIN_RESOLUTION]
    if not sides:
        problem = f"Of the {len(entries):,} image files in {path}, none can be used."
        needed = f"Give PNG, JPEG or WebP images of at least {MIN_RESOLUTION}x{MIN_RESOLUTION} pixels."
        raise UserError(problem, f"{needed} pggan prepare source={path} dest=NEW tells what is wrong with each.")
    resolution = 1 << (sides[int(SMALL_SHARE * len(sides))].bit_length() - 1)
    large = sum(side >= resolution for side in sides)
    note = f"{len(entries):,} image files, {large / len(sides):.0%} of them at least {resolution} pixels wide and high"
    note += "; images smaller than the final resolution are left out" * (large < len(sides))
    channels = config.channels or (1 if all(header.is_grey for header in headers) else 3)
    images = len(found) * large // len(sample)
    return DataFacts(images, resolution, channels, 0, drawn=False, note=note)
