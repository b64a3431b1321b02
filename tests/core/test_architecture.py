"""Widths and cost, against the numbers of the paper's Table 2 and of the official configuration."""

import pytest

from pggan.core.architecture import LIMITS, Architecture, Resampling, is_power_of_two, resolutions_between
from tests import definitions

PAPER = definitions.variant(resampling=Resampling.unfused)  # its Table 2

# Forward multiply-adds of one image per stage, in units of 1e9: (resolution, direct, fused).
STAGES = [
    (4, 0.042, 0.042),
    (8, 0.344, 0.260),
    (16, 1.552, 1.133),
    (32, 6.385, 4.624),
    (64, 13.63, 9.19),
    (128, 20.89, 13.76),
    (256, 28.14, 18.32),
    (512, 35.40, 22.90),
    (1024, 42.67, 27.49),
]


def variant(**changes):
    return definitions.variant(PAPER, **changes)


def test_widths_are_those_of_the_papers_table_2():
    found = {resolution: PAPER.width(resolution) for resolution in PAPER.resolutions}
    assert found == {4: 512, 8: 512, 16: 512, 32: 512, 64: 256, 128: 128, 256: 64, 512: 32, 1024: 16}


def test_a_base_of_2048_gives_the_widths_of_the_low_capacity_ablation():
    small = variant(fmap_base=2048, resolution=128)
    assert [small.width(r) for r in small.resolutions] == [512, 512, 256, 128, 64, 32]


def test_a_base_of_4096_with_at_most_128_maps_gives_the_widths_of_the_cifar_configuration():
    cifar = variant(fmap_base=4096, fmap_max=128, resolution=32, latent_size=128)
    assert [cifar.width(r) for r in cifar.resolutions] == [128, 128, 128, 128]


def test_the_hidden_layer_of_the_head_has_the_width_of_stage_0():
    assert PAPER.width(2) == 512
    assert variant(fmap_base=300).width(2) == 300  # stage 0: the base itself
    assert variant(fmap_base=300).width(4) == 150  # stage 1: half of it


def test_widths_do_not_depend_on_the_final_resolution():
    for final in (64, 256, 1024):
        assert [variant(resolution=final).width(r) for r in (4, 8, 16, 32, 64)] == [512, 512, 512, 512, 256]


@pytest.mark.parametrize(("decay", "widths"), [(0.0, [64, 64, 64]), (2.0, [64, 16, 4]), (0.5, [64, 64, 64])])
def test_the_decay_is_the_power_by_which_widths_fall(decay, widths):
    # base / 2^(stage * decay) with stages 1, 2, 3, at most 64; the bases put stage 1 at 64 for decay 0 and 2.
    base = {0.0: 64, 2.0: 256, 0.5: 512}[decay]
    falling = variant(fmap_base=base, fmap_decay=decay, fmap_max=64, resolution=16)
    assert [falling.width(r) for r in falling.resolutions] == widths


def test_broken_widths_are_rounded_down_and_never_reach_0():
    odd = variant(fmap_base=100, fmap_max=512)  # 100 / 2^stage: 50, 25, 12.5, 6.25, 3.125, 1.56, 0.78, 0.39, 0.195
    assert [odd.width(r) for r in odd.resolutions] == [50, 25, 12, 6, 3, 1, 1, 1, 1]


def test_cost_of_the_1024_generator_is_the_sum_of_its_layers():
    assert PAPER.multiply_adds(1024) == 42_672_848_896
    assert variant(resampling=Resampling.fused).multiply_adds(1024) == 27_489_468_416


@pytest.mark.parametrize(("resolution", "direct", "fused"), STAGES)
def test_cost_of_each_stage_is_that_of_the_table(resolution, direct, fused):
    assert PAPER.multiply_adds(resolution) / 1e9 == pytest.approx(direct, rel=2e-3, abs=5e-4)
    found = variant(resampling=Resampling.fused).multiply_adds(resolution) / 1e9
    assert found == pytest.approx(fused, rel=2e-3, abs=5e-4)


def test_cost_of_a_tiny_network_is_the_number_worked_by_hand():
    tiny = variant(fmap_base=4, fmap_max=2, latent_size=3, channels=1, resolution=8)  # 2 maps at 4x4, 1 at 8x8
    dense, conv = 3 * 2 * 16, 9 * 2 * 2 * 16  # 96, 576
    up, second, to_rgb = 9 * 2 * 1 * 64, 9 * 1 * 1 * 64, 1 * 1 * 64  # 1152, 576, 64
    assert tiny.multiply_adds(8) == dense + conv + up + second + to_rgb == 2464
    assert tiny.multiply_adds(4) == dense + conv + 2 * 1 * 16 == 704
    assert tiny.activations_up_to(8) == 16 * tiny.width(4) + 64 * tiny.width(8)


def test_resolutions_are_the_powers_of_two_from_first_to_final():
    assert PAPER.resolutions == (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert resolutions_between(16, 16) == (16,)
    assert resolutions_between(8, 64) == (8, 16, 32, 64)


def test_powers_of_two_are_told_from_other_numbers():
    assert [n for n in range(-4, 70) if is_power_of_two(n)] == [1, 2, 4, 8, 16, 32, 64]


WRONG = [("resolution", 12), ("resolution", 2), ("fmap_decay", "1"), ("fmap_decay", float("nan")), ("blur", 1)]
WRONG += [("features", "../x@00"), ("features_from", 4), ("features_from", "8"), ("resampling", "x"), ("strange", 1)]


def test_a_header_is_the_architecture_again_and_impossible_ones_are_refused():
    plain = variant(resolution=32, features="torchvision:resnet18@0123456789abcdef", features_from=8).to_plain()
    assert Architecture.from_plain(plain).to_plain() == plain
    assert "features" not in variant(resolution=32).to_plain()
    for name, most in LIMITS.items():
        assert Architecture.from_plain({**plain, name: most}).to_plain()[name] == most
    for name, wrong in [
        *WRONG,
        *((name, wrong) for name, most in LIMITS.items() for wrong in (most + 1, -1, 1.5, True)),
    ]:
        with pytest.raises(ValueError, match=name if name != "resampling" else "Resampling"):
            Architecture.from_plain({**plain, name: wrong})
    with pytest.raises(ValueError, match="not complete"):
        Architecture.from_plain({"resolution": 8})
