"""p follows the mean sign of D's scores, within its limits."""

import pytest
import torch

from pggan.augmentation.adaptive_p import AdaptiveP

CPU = torch.device("cpu")


def new(target=0.6, interval=4, rampup_images=1000):
    return AdaptiveP(CPU, target=target, interval=interval, rampup_images=rampup_images)


def follow(adaptive, *signs, batch=10):
    return [adaptive.follow(torch.tensor(sign), batch).item() for sign in signs]


def test_p_moves_by_the_images_shown_once_per_interval():
    adaptive = new()
    assert follow(adaptive, *[0.9] * 8) == pytest.approx([0, 0, 0, 0.04, 0.04, 0.04, 0.04, 0.08])
    assert follow(adaptive, *[0.1] * 4) == pytest.approx([0.08, 0.08, 0.08, 0.04])


def test_the_signs_of_an_interval_count_by_their_images_and_no_earlier_ones():
    adaptive = new(interval=2)
    follow(adaptive, 1.0, 1.0)
    assert adaptive.p.item() == pytest.approx(0.02)
    follow(adaptive, 1.0, batch=10)
    follow(adaptive, 0.5, batch=90)  # 0.55 in the mean
    assert adaptive.p.item() == 0  # 0.02 - 0.1, and not below 0


def test_p_stays_between_0_and_the_limit():
    adaptive = new(interval=1, rampup_images=30)
    assert follow(adaptive, -1.0, 1.0, 1.0, 1.0, 1.0) == pytest.approx([0, 1 / 3, 2 / 3, 0.85, 0.85])


def test_a_sign_that_is_not_a_number_is_left_out():
    adaptive = new(interval=2)
    assert follow(adaptive, 1.0, float("nan")) == pytest.approx([0, 0.01])
    assert follow(adaptive, float("nan"), float("nan")) == pytest.approx([0.01, 0.01])


def test_what_a_checkpoint_holds_goes_on_in_the_middle_of_an_interval_and_nothing_begins_at_0():
    one, other = new(), new()
    follow(one, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0)
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    assert follow(one, -1.0, -0.9) == follow(other, -1.0, -0.9) == pytest.approx([0.04, 0.0])
    follow(one, 1.0)
    one.load_state_dict({})
    assert all(float(tensor) == 0 for tensor in one.state_dict().values())


def test_p_that_is_reported_does_not_change_later():
    adaptive = new(interval=1)
    before = adaptive.follow(torch.tensor(1.0), 10)
    follow(adaptive, 1.0)
    assert before.item() == pytest.approx(0.01)
