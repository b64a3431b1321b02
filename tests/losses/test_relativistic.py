"""The relativistic loss, by numbers worked by hand."""

import math

import torch

from tests.losses.critics import FAKE, REAL, RELATIVISTIC, ROUNDING, close, linear_critic, reals_of


def softplus(x):
    return math.log1p(math.exp(x))


def test_relativistic_terms_compare_each_fake_with_its_real():
    (term,) = RELATIVISTIC.d_terms(REAL, FAKE).values()
    close(term, [2.1269280, 0.0485874], **ROUNDING)  # -log sigmoid(1 - 3), -log sigmoid(2 + 1)
    (term,) = RELATIVISTIC.g_terms(REAL, FAKE).values()
    close(term, [0.1269280, 3.0485874], **ROUNDING)  # -log sigmoid(3 - 1), -log sigmoid(-1 - 2)


def test_relativistic_g_terms_of_a_linear_critic_are_worked_by_hand():
    weights = torch.zeros(1, 4, 4)
    weights[0, 0, 0] = 1.0
    reals, fakes = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    reals[:, 0, 0, 0], fakes[:, 0, 0, 0] = REAL, FAKE
    (term,) = RELATIVISTIC.for_g(linear_critic(weights), reals_of(reals), fakes).loss.values()
    close(term, [softplus(-2.0), softplus(3.0)], **ROUNDING)
