"""The Wasserstein loss, by numbers worked by hand."""

import pytest
import torch

from tests.losses.critics import FAKE, REAL, ROUNDING, WGAN_GP, close, for_d, linear_critic, phase, reals_of, rng


def test_wasserstein_d_wants_reals_high_and_fakes_low_with_a_drift_on_reals_only():
    terms = WGAN_GP.d_terms(REAL, FAKE)
    assert set(terms) == {"D/wasserstein", "D/drift"}
    close(terms["D/wasserstein"], [2.0, -3.0], **ROUNDING)
    close(terms["D/drift"], [0.001, 0.004], **ROUNDING)
    close(WGAN_GP.d_terms(REAL, 100 * FAKE)["D/drift"], [0.001, 0.004], **ROUNDING)


def test_wasserstein_g_wants_fakes_high():
    terms = WGAN_GP.g_terms(None, FAKE)
    assert set(terms) == {"G/wasserstein"}
    close(terms["G/wasserstein"], [-3.0, 1.0], **ROUNDING)


def test_the_whole_wgan_gp_loss_of_a_linear_critic_is_the_sum_worked_by_hand():
    weights = torch.zeros(1, 4, 4)
    weights[0, 0, 0] = 3.0
    reals, fakes = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    reals[:, 0, 0, 0], fakes[:, 0, 0, 0] = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0])
    terms = for_d(WGAN_GP, linear_critic(weights), reals_of(reals), fakes, phase(), rng())
    total = sum(term.mean() for term in terms.loss.values())
    # Scores 3, 6 and 0, -3: critic -3 and -9, drift .009 and .036, penalty 10 * (3 - 1)^2 = 40.
    assert total.item() == pytest.approx((-3 - 9) / 2 + (0.009 + 0.036) / 2 + 40, rel=1e-6)
