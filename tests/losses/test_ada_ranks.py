"""ADA on several ranks: the same images, signs and p as on one."""

import pytest
import torch

from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.losses.base import Reals
from pggan.optim.state import state_sha256
from pggan.training.build import build_trainer
from tests.definitions import variant
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")
PHASE, STEPS = Phase(3, 8, True, 0.4, 0, 10_000, 8, 0.001, 0.002, 0), 4
OVERRIDES = [
    "model.fmap_base=64",
    "model.fmap_max=8",
    "model.stddev_group=2",
    "augmentation=ada",
    "augmentation.rampup_images=80",
]
CASES = {
    "logistic": ["loss=logistic"],
    "elastic": ["loss=logistic", "elastic=true", "distributed.elastic_chunks=4"],
    "bf16": ["loss=relativistic", "gradients=bf16"],
    "dgc": ["loss=wgan_gp", "gradients=dgc"],
}


def followed(group):
    """What becomes of p from 0.5 on, by case of run, and a digest of the state at the end."""
    found = {}
    for case, overrides in CASES.items():
        config = validated(TrainConfig, compose("train", [*OVERRIDES, *overrides]))
        architecture = variant(config.model.architecture(8, 3, 0))
        trainer = build_trainer(config, architecture, [PHASE], group)
        trainer.state.d.adaptive_p.p.fill_(0.5)
        values = []
        for number in range(STEPS):
            images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(number)) * 2 - 1
            indices = trainer.indices(8)
            reals = Reals(images if indices is None else images[indices], None, None)
            metrics = trainer.step(PHASE, reals, StepRng(0, 8 * number, CPU), 0.9)
            values.append(metrics["augment/p"].item())
        state = trainer.state
        found[case] = (values, state_sha256(state.state_dict(), state.images, state.phase_index))
    return found


def on_this_rank():
    torch.set_num_threads(1)
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    found = followed(group)
    group.shutdown()
    return found


def test_p_is_that_of_one_rank_on_all_ranks_and_with_elastic_all_bits_are():
    torch.set_num_threads(1)
    alone = followed(ProcessGroup.single_process(CPU))
    ranks = values_of(in_processes(2, on_this_rank))
    for case, (expected, digest) in alone.items():
        for found, of_rank in (rank[case] for rank in ranks):
            # Signs are whole numbers: their sums have no rounding, unless a score is at 0.
            assert found == expected, case
            assert (of_rank == digest) or case != "elastic"
        assert len({rank[case][1] for rank in ranks}) == 1  # ranks are alike
        assert len(set(expected)) > 1
