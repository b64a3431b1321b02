"""With `hours=N`, pggan looks at the images, times training steps, and chooses settings for N hours of training."""

import os
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pggan.config.train import DataConfig, TrainConfig
from pggan.config.values import command_seconds
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.devices import choose_device, configure_process, count_devices, free_memory
from pggan.core.errors import UserError
from pggan.core.process import threads_per_rank
from pggan.core.schedule import PerResolution, value_at
from pggan.core.text import Log, command_line, duration
from pggan.data.data_sets import open_source
from pggan.data.image_file import ImageHeader, usable_side
from pggan.data.pyramid import ImagePyramid, is_pyramid
from pggan.data.report import faces_of, header_of
from pggan.distributed.process_group import rank_from_environment
from pggan.networks import efficientnet_lite0
from pggan.performance.costs import Card, count_cards
from pggan.performance.recipe import FEATURES_FROM, Choice, DataFacts, NetworkSizes, Recipe
from pggan.run.eta import TRAINING_SHARE
from pggan.training.timing import Speed, StepTimes, nearest, speed_of

MAX_SECONDS, MAX_SHARE = 60.0, 0.02  # measurements take at most 60 seconds, and at most 2 % of `hours=`
FEATURES_COST = 1.6  # with pretrained features in D, steps at 64x64 take 1.6 times as long (recipe orl_64, one thread)
ATTEMPTS = 3  # Measured step times can change the choice of networks; steps are measured for at most 3 choices.
MAX_HEADERS = 200  # Image sizes are read from at most 200 file headers, which takes about a second.
MAX_SEARCHED = 50  # Faces are looked for in at most 50 photographs, which takes about five seconds.
SMALL_SHARE = 0.2  # share of images that may be smaller than the final resolution; training leaves these images out
CLEARLY_FASTER = 0.9  # The number of CPU threads is halved if a step then takes at most 90 % of the former time.
MAX_AVATAR = 256  # highest final resolution for avatars (drawn cartoon faces); larger avatars show no more details


class MeasuredCosts:
    """Predicts training seconds per image from FLOPs, for any network size; measured step times correct predictions."""

    def __init__(
        self, config: TrainConfig, facts: DataFacts, device: torch.device, ranks: int, speed: Speed | None = None
    ) -> None:
        self.config, self.facts, self.device, self.ranks = config, facts, device, ranks
        self.speed = speed or speed_of(device, config.precision)
        self.ratios: dict[int, float] = {}  # {resolution: measured step time / predicted step time}

    def __call__(self, networks: NetworkSizes, batch: PerResolution) -> dict[int, float]:
        """Predict {resolution: training seconds per image} for all resolutions of `networks`."""
        times, found = self.times(self.config, networks), dict[int, float]()
        first = min(self.config.schedule.first_resolution, networks.resolution)
        for side in resolutions_between(first, networks.resolution):
            factor = extra(networks.features, side) * nearest(self.ratios, side)
            found[side] = factor * times.expected(side, self._local(batch, side)) / value_at(batch, side)
        return found

    def measure(self, config: TrainConfig, recipe: Recipe, seconds: float) -> None:
        """Time steps for at most `seconds` seconds, to correct predictions; `config` has the values of `recipe`."""
        stable = {phase.resolution: phase for phase in config.schedule.build().phases}
        phases = [replace(phase, batch=self._local(recipe.batch, side)) for side, phase in stable.items()]
        found = self.times(config, recipe.sizes).measured(phases, seconds)
        self.ratios = {side: ratio / extra(recipe.sizes.features, side) for side, ratio in found.items()} or self.ratios

    def _local(self, batch: PerResolution, side: int) -> int:
        return -(-int(value_at(batch, side)) // self.ranks)

    def times(self, config: TrainConfig, networks: NetworkSizes) -> StepTimes:
        model = replace(config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        architecture = model.architecture(networks.resolution, self.facts.channels, self.facts.num_classes)
        return StepTimes(config.trainer_settings(), architecture, self.device, self.speed)


def choose_threads(costs: MeasuredCosts, recipe: Recipe, measure: Callable[[], None]) -> list[Choice]:
    """Halve PyTorch's number of CPU threads as long as this makes steps clearly faster; returns one `Choice` or none.

    If other programs use the CPU, the threads of a step wait for one another: two threads can be slower than one.
    Args: costs: predicts step times of `recipe`; measure: times steps with the current threads, and corrects `costs`.
    """
    threads, choices = torch.get_num_threads(), list[Choice]()
    while threads > 1:
        old, ratios, speed = costs(recipe.sizes, recipe.batch), costs.ratios, costs.speed
        torch.set_num_threads(threads // 2)
        if ratios:
            measure()
        else:  # steps are too slow to be timed in the time allowed, so a matrix product is timed instead
            costs.speed = speed_of(costs.device, costs.config.precision)
        side = max(ratios.keys() & costs.ratios.keys(), default=recipe.sizes.resolution)
        new = costs(recipe.sizes, recipe.batch)
        if new[side] > CLEARLY_FASTER * old[side]:
            torch.set_num_threads(threads)
            costs.ratios, costs.speed = ratios, speed
            break
        now, then = (duration(value_at(recipe.batch, side) * each[side]) for each in (new, old))
        reason = f"{now} a step at {side}x{side}; {threads} threads need {then}"
        threads //= 2
        choices = [Choice("threads", threads, reason if ratios else f"about {reason}")]
    return choices


def extra(has_features: bool, side: int) -> float:
    """How many times as long D's pretrained features make steps at resolution `side`; 1 if D has no features there."""
    return FEATURES_COST if has_features and side >= FEATURES_FROM else 1.0


def find_recipe(
    config: TrainConfig,
    given: Set[str],
    compose: Callable[[list[Choice]], TrainConfig],
    log: Log,
    *,
    scales: bool,
    card: Card | None = None,
) -> tuple[list[Choice], str]:
    """Choose configuration values for a run of `config.hours` hours; returns the choices and a text for the user.

    Args: config: the configuration before any choice; given: keys that the user has set; compose: builds the
    configuration from choices; log: shows progress; scales: if True, keep the phases of `config` and scale their
    lengths, else choose phases; card: the GPU to predict step times for, or None to measure steps on this machine.
    """
    if rank_from_environment() is not None or config.distributed.nnodes > 1:
        problem = "hours= has to choose the recipe on one machine before the ranks start."
        raise UserError(problem, "Run hours= on one machine, then start all ranks with experiment=RUN_DIR/recipe.yaml.")
    assert config.hours is not None, "hours= is set"
    facts, seconds, speed = facts_of(config.data), 3600 * config.hours, None
    if card is not None:
        (kind, ranks), device = ("cuda", count_cards(config.devices)), torch.device("cuda")
        config = replace(config, precision=card.precision(config.precision))
        speed = card.speed(config.precision)
    else:
        kind, ranks = count_devices(config.devices)
        device = choose_device(kind)
        threads = config.threads or (threads_per_rank(ranks, elastic=config.elastic) if ranks > 1 else None)
        configure_process(device, threads, one_thread=config.elastic)
    is_free = kind == "cpu" and ranks == 1 and config.threads is None and "OMP_NUM_THREADS" not in os.environ
    threads_choice = list[Choice]()
    costs, measured = MeasuredCosts(config, facts, device, ranks, speed), list[tuple[NetworkSizes, PerResolution]]()
    while True:
        left, installed = TRAINING_SHARE * seconds - command_seconds(), efficientnet_lite0.is_installed()
        training = (1 - config.evaluation.share) * left
        recipe = Recipe(config, given, facts, kind, ranks, costs, training, has_features=installed, scales=scales)
        recipe.choose()
        if (recipe.sizes, recipe.batch) in measured or len(measured) == ATTEMPTS:
            break
        measured.append((recipe.sizes, recipe.batch))
        if card is not None:  # Predict again, because the chosen loss changes the step times.
            costs.config = compose(recipe.choices)
            continue
        log(f"Measuring steps up to {recipe.sizes.resolution}x{recipe.sizes.resolution}")
        limit = min(MAX_SECONDS, MAX_SHARE * seconds) / ATTEMPTS
        measure = partial(costs.measure, compose(recipe.choices), recipe, limit)
        measure()
        if is_free and len(measured) == 1:
            threads_choice = choose_threads(costs, recipe, measure)
    last = compose(recipe.choices).schedule.build().phases[-1]
    memory = card.memory_bytes if card is not None else free_memory(device) if ranks == 1 else None
    larger = costs.times(config, recipe.sizes).larger_batches(last, memory)
    where = f"{ranks} x {kind if card is None else card.name}"
    where = f"cpu, threads={torch.get_num_threads()}" if where == "1 x cpu" else where
    about = f"{facts.note}; {where}; {duration(seconds)}. {larger}"
    return [*recipe.choices, *threads_choice], about.rstrip(". ")


def facts_of(config: DataConfig) -> DataFacts:
    """Find the number, resolution, channels and classes of the images; opens only a sample of unprepared images.

    Raises UserError if there are no usable images, or if data.labels=true but the images are not prepared.
    """
    if config.path is not None and is_pyramid(Path(config.path)):
        pyramid = ImagePyramid(Path(config.path))
        num_classes, side = len(pyramid.class_names or ()) if config.labels else 0, pyramid.resolution
        note, drawn = f"{pyramid.images:,} images, prepared at {side}x{side}", pyramid.source.get("kind") == "avatars"
        return DataFacts(pyramid.images, side, pyramid.channels, num_classes, drawn=drawn, note=note)
    if config.labels:
        problem = "data.labels=true needs the number of classes, but the images are not prepared."
        raise UserError(problem, "First run pggan prepare … labels=true dest=data/new, then set data.path=data/new.")
    if config.path is None:
        note = f"{config.count:,} avatars, drawn at any size"
        return DataFacts(config.count, MAX_AVATAR, config.channels or 3, 0, drawn=True, note=note)
    return facts_of_files(config, config.path)


def facts_of_files(config: DataConfig, path: str) -> DataFacts:
    """Count the image files at `path`, and estimate the size and the channels of the images from some of the files."""
    entries = open_source(path, config.cache).in_reading_order()
    found = [entry for entry in entries if entry.problem is None]
    finds_faces = config.crop == "faces"
    sample = found[:: -(-len(found) // (MAX_SEARCHED if finds_faces else MAX_HEADERS)) or 1]
    shown = [face for entry in sample for face in faces_of(entry)] if finds_faces else sample
    headers = [header for entry in shown if isinstance(header := header_of(entry)[1], ImageHeader)]
    sides = sorted(usable_side(header.width, header.height, config.crop) for header in headers)
    sides = [side for side in sides if side >= MIN_RESOLUTION]
    if not sides:
        problem = f"None of the {len(entries):,} image files in {path} can be used."
        needed = f"Images need at least {MIN_RESOLUTION}x{MIN_RESOLUTION} pixels."
        if finds_faces and not headers:
            problem = f"No face was found in {len(sample):,} of the {len(entries):,} image files in {path}."
            needed = "For images without faces, use crop=center."
        why = command_line("prepare", source=path, crop=config.crop, dest="data/new")
        raise UserError(problem, f"{needed} To see why: {why}")
    resolution = 1 << (sides[int(SMALL_SHARE * len(sides))].bit_length() - 1)
    large = sum(side >= resolution for side in sides)
    note = f"{len(entries):,} image files, {large / len(sides):.0%} of them at least {resolution} pixels wide and high"
    note += "; images smaller than the final resolution are left out" * (large < len(sides))
    channels = config.channels or (1 if all(header.is_grey for header in headers) else 3)
    return DataFacts(len(found) * large // len(sample), resolution, channels, 0, drawn=False, note=note)
