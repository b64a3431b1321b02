"""`hours=`: finds the recipe that fits, with steps measured on the device here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pggan.config import Precision, TrainConfig
from pggan.config.describe import command_seconds
from pggan.core.architecture import resolutions_between
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import UserError
from pggan.core.formatting import Log, duration
from pggan.core.schedule import PerResolution, value_at
from pggan.distributed.process_group import rank_from_environment
from pggan.networks.features import efficientnet_lite0
from pggan.performance.recipe.choices import Choice, GivenKeys
from pggan.performance.recipe.chooser import choose_recipe
from pggan.performance.recipe.data_facts import DataFacts, facts_of
from pggan.performance.recipe.situation import FEATURES_FROM, Machine, NetworkSizes, Situation
from pggan.run.evaluation import open_extractor
from pggan.run.time_limit import TRAINING_SHARE
from pggan.training.precision import configure_process, precision_on
from pggan.training.timing import StepTimes, speed_of

MAX_SECONDS = 60.0  # that measuring steps may take
MAX_SHARE = 0.02  # of the hours that measuring steps may take
FEATURES_COST = 1.6  # of a step at 64x64 with pretrained features, times one without (one CPU thread, ORL's recipe)
ATTEMPTS = 3  # what is measured for one choice can lead to another one, which is measured, too


@dataclass
class MeasuredCosts:
    """The seconds of images with any networks: measured, or expected and scaled to the steps that were measured."""

    config: TrainConfig
    facts: DataFacts
    device: torch.device
    ranks: int
    # Seconds of a step by resolution, of networks with so many images per batch.
    known: dict[tuple[NetworkSizes, tuple[int, ...]], dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.speed, self.ratio = speed_of(self.config, self.device), 1.0

    def __call__(self, networks: NetworkSizes, batch: PerResolution) -> dict[int, float]:
        """Seconds of an image at every level of `networks`."""
        batches, known = self._local(networks, batch), self.known.get(self._key(networks, batch), {})
        found = self._times(self.config, networks).all_seconds(batches, known)
        times = {side: FEATURES_COST for side in found if side >= FEATURES_FROM and side not in known}
        times = times if networks.features else {}
        return {side: times.get(side, 1.0) * seconds / value_at(batch, side) for side, seconds in found.items()}

    def measure(self, config: TrainConfig, networks: NetworkSizes, batch: PerResolution, seconds: float) -> None:
        """Measure steps of `networks` as `config` makes them, for so many seconds."""
        batches, times = self._local(networks, batch), self._times(config, networks)
        stable = {phase.resolution: phase for phase in config.schedule.build().phases}
        found = times.measured([replace(phase, batch=batches[side]) for side, phase in stable.items()], seconds)
        self.known[self._key(networks, batch)] = found
        if found:
            self.ratio = found[max(found)] / times.expected(max(found), batches[max(found)])

    def has_measured(self, networks: NetworkSizes, batch: PerResolution) -> bool:
        """Whether steps of `networks` with such batches were measured."""
        return self._key(networks, batch) in self.known

    def _key(self, networks: NetworkSizes, batch: PerResolution) -> tuple[NetworkSizes, tuple[int, ...]]:
        return networks, tuple(self._local(networks, batch).values())

    def _local(self, networks: NetworkSizes, batch: PerResolution) -> dict[int, int]:
        levels = resolutions_between(self.config.schedule.first_resolution, networks.resolution)
        return {side: -(-int(value_at(batch, side)) // self.ranks) for side in levels}

    def _times(self, config: TrainConfig, networks: NetworkSizes) -> StepTimes:
        model = replace(config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        architecture = model.architecture(networks.resolution, self.facts.channels, self.facts.num_classes)
        return StepTimes(config, architecture, self.device, self.speed, self.ratio)


def find_recipe(
    config: TrainConfig,
    hours: float,
    given: GivenKeys,
    compose: Callable[[list[Choice]], TrainConfig],
    log: Log,
) -> tuple[list[Choice], str]:
    """The choices for `hours`, and images, machine and time in words.

    Args: config: without choices; compose: the configuration with choices; log: told what is measured.
    """
    refuse_ranks(config)
    facts = facts_of(config.data)
    if given.has("schedule.final_resolution"):
        require_resolution(config.schedule.final_resolution, facts)
    kind, ranks = count_devices(config.devices)
    device = choose_device(kind)
    threads = config.threads or (threads_per_rank(ranks, elastic=config.elastic) if ranks > 1 else None)
    configure_process(device, config.precision, threads, one_thread=config.elastic)
    costs, seconds = MeasuredCosts(config, facts, device, ranks), 3600 * hours
    machine, has_lite0 = Machine(kind, ranks), efficientnet_lite0.is_installed()
    open_extractor(config.evaluation, device)  # what it lacks is missed here
    situation = Situation(config, given, facts, machine, costs, seconds, has_lite0=has_lite0)
    for _ in range(ATTEMPTS):
        left = TRAINING_SHARE * seconds - command_seconds()
        training = (1 - config.evaluation.share) * left
        situation = replace(situation, seconds=training, other_seconds=seconds - left)
        recipe = choose_recipe(situation)
        if costs.has_measured(recipe.sizes, recipe.batch):
            break
        log(f"Measuring steps up to {recipe.sizes.resolution}x{recipe.sizes.resolution}")
        budget = min(MAX_SECONDS, MAX_SHARE * seconds) / ATTEMPTS
        costs.measure(compose(recipe.choices), recipe.sizes, recipe.batch, budget)
    recipe = choose_recipe(situation)
    where = f"{ranks} x {kind}" if ranks > 1 else kind
    if kind == "cpu":
        threads = torch.get_num_threads()
        where += f" with {threads} thread{'s' * (threads > 1)}"
    about = f"{facts.note}; {where}; {duration(seconds)}"
    return [*recipe.choices, *precision_choice(given, device)], about


def require_resolution(side: int, facts: DataFacts) -> None:
    """Raise UserError where no image is as large as the final resolution `side`."""
    if facts.largest is not None and side > facts.largest:
        problem = f"schedule.final_resolution={side} is too much: the largest image allows {facts.largest} pixels."
        raise UserError(problem, f"Choose schedule.final_resolution={facts.largest}, or leave it out.")


def precision_choice(given: GivenKeys, device: torch.device) -> list[Choice]:
    """The precision, unless it is given: left to the device, so that the recipe serves other ones, too."""
    if given.has("precision"):
        return []
    found = precision_on(device, Precision.auto)
    reason = f"{found} on {device.type}: bf16 where a GPU has it, fp16 on other ones of CUDA, else fp32"
    return [Choice("precision", str(Precision.auto), reason)]


def refuse_ranks(config: TrainConfig) -> None:
    """Raise UserError where the recipe can't be chosen once for all ranks."""
    if rank_from_environment() is not None or config.distributed.nnodes > 1:
        raise UserError(
            "hours= measures and chooses before the ranks start, on one machine.",
            "Let pggan start the ranks of one machine (devices=), or choose there, and give all ranks experiment= with "
            "the recipe.yaml of that run.",
        )
