"""A run of a few steps through two levels and a fade, on one trainer."""

import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Schedule
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.state import new_state, state_sha256
from pggan.training.trainer import Trainer
from tests.definitions import ADAM, WGAN_GP, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=64, fmap_max=8)
SCHEDULE = Schedule(
    first_resolution=4,
    final_resolution=8,
    stable_images={4: 64},
    fade_images={4: 64},
    batch={4: 8},
    learning_rate_g={4: 0.001},
    learning_rate_d={4: 0.002},
)  # 4x4 up to 64 images, fading up to 128, 8x8 up to 192


def short_run(
    loss=WGAN_GP,
    options=ComputeOptions(),  # noqa: B008
    *,
    first=0,
    images=192,
    before_step=None,
    **settings,
):
    """The state after steps from `first` to `images`, and what the trainer has logged."""
    state, lines = new_state(ARCHITECTURE, ADAM, 0, CPU), []
    state.images = first
    trainer = Trainer(state, loss, options, log=lines.append, **settings)
    while state.images < images:
        phase = SCHEDULE.at(state.images)
        reals = torch.rand(8, 3, phase.resolution, phase.resolution, generator=torch.Generator().manual_seed(0))
        if before_step:
            before_step(trainer)
        trainer.step(phase, Reals(reals, None, None), StepRng(0, state.images, CPU), 0.9)
    return state, lines


def digest(state):
    return state_sha256(state.state_dict(), state.images, state.phase_index)


def assert_alike(state, expected, tolerance, share=0.0):
    """Weights of G differ by no more than `tolerance`, but for a `share` of them."""
    pairs = zip(state.g.network.named_parameters(), expected.g.network.parameters(), strict=True)
    for (name, found), wanted in pairs:
        assert ((found - wanted).abs() > tolerance).float().mean() <= share, name
