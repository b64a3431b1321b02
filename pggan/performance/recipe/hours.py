"""`hours=`: finds the recipe that fits, with steps measured on the device here."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from pggan.config import Precision, TrainConfig
from pggan.config.describe import command_seconds
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import UserError
from pggan.core.formatting import Log, duration
from pggan.core.schedule import PerResolution, Phase, value_at
from pggan.distributed.process_group import rank_from_environment
from pggan.networks.features import efficientnet_lite0
from pggan.performance.recipe.choices import Choice, GivenKeys
from pggan.performance.recipe.chooser import choose_recipe
from pggan.performance.recipe.data_facts import DataFacts, facts_of
from pggan.performance.recipe.situation import FEATURES_FROM, Machine, NetworkSizes, Situation
from pggan.run.evaluation import open_extractor
from pggan.run.time_limit import TRAINING_SHARE
from pggan.training.compute_options import configure_process, precision_on
from pggan.training.timing import PHASE_START_SECONDS, CostModel, StepTimer, single_device_timer

MAX_SECONDS = 60.0  # that measuring steps may take
MAX_SHARE = 0.02  # of the hours that measuring steps may take
STEPS = 3  # timed of each kind
# Times the seconds of a step with more CPU threads: fewer are taken where they are faster than that.  Levels that are
# too dear to be measured gain more by threads than those below: two of two cores save 0 to 15 % at 16x16, 25 at 32x32.
CLEARLY_FASTER = 0.9
FEATURES_COST = 1.6  # of a step at 64x64 with pretrained features, times one without (one CPU thread, ORL's recipe)
ATTEMPTS = 3  # what is measured for one choice can lead to another one, which is measured, too


@dataclass
class MeasuredCosts:
    """The cost of images with any networks: as a model says, scaled to the steps that were measured."""

    config: TrainConfig
    facts: DataFacts
    device: torch.device
    ranks: int
    chooses_threads: bool = False  # or their number is given
    # Seconds of a step by resolution, of networks with so many images per batch.
    known: dict[tuple[NetworkSizes, tuple[int, ...]], dict[int, float]] = field(default_factory=dict)
    threads: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        architecture = self.config.model.architecture(4, self.facts.channels, self.facts.num_classes)
        self.model, self.scale = CostModel.of(self.config, architecture, self.device), 1.0

    def __call__(self, networks: NetworkSizes, batch: PerResolution) -> dict[int, float]:
        """Seconds of an image at every level of `networks`."""
        known, model = self.known.get(self._key(networks, batch), {}), self._model(networks)
        levels = [side for side in model.architecture.resolutions if side >= self.config.schedule.first_resolution]
        expected = {side: self._expected(networks, side, self._local_batch(batch, side)) for side in levels}
        scale = known[max(known)] / expected[max(known)] if known else self.scale
        return {side: known.get(side, scale * expected[side]) / value_at(batch, side) for side in levels}

    def measure(self, config: TrainConfig, networks: NetworkSizes, batch: PerResolution, seconds: float) -> None:
        """Measure steps of `networks` as `config` makes them, of the highest level first.

        Args: seconds: of all steps at most; choosing convolution methods for the networks comes before.
        """
        stable = {phase.resolution: phase for phase in config.schedule.build().phases}
        phases = [replace(phase, batch=self._local_batch(batch, phase.resolution)) for phase in stable.values()]
        architecture = config.model.architecture(networks.resolution, self.facts.channels, self.facts.num_classes)
        timer = single_device_timer(config, architecture, phases, self.device)
        found: dict[int, float] = {}
        began = time.perf_counter()  # convolution methods are chosen: once on a machine, and the run takes them, too
        first = PHASE_START_SECONDS.get(self.device.type, 0.0)
        for local in [phases[-1], *phases[:-1]]:
            side = local.resolution
            step = self.scale * self._expected(networks, side, local.batch)
            tries = 2 if self.chooses_threads and not self.threads else 1
            if time.perf_counter() - began + first + tries * timer.need(step, STEPS) < seconds:
                found[side] = self._seconds(timer, local)
                highest = max(found)
                self.scale = found[highest] / self._expected(networks, highest, self._local_batch(batch, highest))
        self.known[self._key(networks, batch)] = found

    def has_measured(self, networks: NetworkSizes, batch: PerResolution) -> bool:
        """Whether steps of `networks` with such batches were measured."""
        return self._key(networks, batch) in self.known

    def _key(self, networks: NetworkSizes, batch: PerResolution) -> tuple[NetworkSizes, tuple[int, ...]]:
        levels = self._model(networks).architecture.resolutions
        return networks, tuple(self._local_batch(batch, side) for side in levels)

    def _seconds(self, timer: StepTimer, local: Phase) -> float:
        """The time of a step; of the first one, with fewer and fewer CPU threads as long as they are clearly faster.

        Beside other work, threads that wait for each other can be many times slower than one alone.
        """
        best, threads = timer.seconds(local, STEPS, 0.0, median), torch.get_num_threads()
        if not self.chooses_threads or self.threads:
            return best
        reason = f"a step at {local.resolution}x{local.resolution} takes {1000 * best:.3g} ms"
        fewer = threads // 2
        while fewer:
            torch.set_num_threads(fewer)
            seconds = timer.seconds(local, STEPS, 0.0, median)
            reason += f", {1000 * seconds:.3g} with {fewer}"
            if seconds >= CLEARLY_FASTER * best:
                break
            best, threads, fewer = seconds, fewer, fewer // 2
        torch.set_num_threads(threads)
        self.threads = [Choice("threads", threads, reason)]
        return best

    def _model(self, networks: NetworkSizes) -> CostModel:
        model = replace(self.config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        architecture = model.architecture(networks.resolution, self.facts.channels, self.facts.num_classes)
        return replace(self.model, architecture=architecture)

    def _expected(self, networks: NetworkSizes, side: int, local_batch: int) -> float:
        """Seconds of a step by the model, which is not measured yet."""
        times = FEATURES_COST if networks.features and side >= FEATURES_FROM else 1.0
        return times * self._model(networks).seconds(side, local_batch)

    def _local_batch(self, batch: PerResolution, side: int) -> int:
        return -(-int(value_at(batch, side)) // self.ranks)


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
    free = kind == "cpu" and ranks == 1 and config.threads is None and "OMP_NUM_THREADS" not in os.environ
    costs, seconds = MeasuredCosts(config, facts, device, ranks, free and torch.get_num_threads() > 1), 3600 * hours
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
    return [*recipe.choices, *precision_choice(given, device), *costs.threads], about


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
