"""Widths and cost, against the numbers of the paper's Table 2 and of the official configuration."""

import pytest

from pggan.core.architecture import MOST, Architecture, Resampling
from pggan.core.errors import UserError
from tests import definitions

PAPER = definitions.variant(resampling=Resampling.unfused)  # its Table 2

# Forward multiply-adds of one image per stage, in units of 1e9: (resolution, direct, fused).
STAGES = [(4, 0.042, 0.042), (64, 13.63, 9.19), (512, 35.40, 22.90)]


def variant(**changes):
    return definitions.variant(PAPER, **changes)


def test_widths_are_those_of_the_papers_table_2():
    found = {resolution: PAPER.width(resolution) for resolution in PAPER.resolutions}
    assert found == {4: 512, 8: 512, 16: 512, 32: 512, 64: 256, 128: 128, 256: 64, 512: 32, 1024: 16}


@pytest.mark.parametrize(("resolution", "direct", "fused"), STAGES)
def test_cost_of_each_stage_is_that_of_the_table(resolution, direct, fused):
    assert PAPER.multiply_adds(resolution) / 1e9 == pytest.approx(direct, rel=2e-3, abs=5e-4)
    found = variant(resampling=Resampling.fused).multiply_adds(resolution) / 1e9
    assert found == pytest.approx(fused, rel=2e-3, abs=5e-4)


WRONG = {"resolution": 12, "blur": 1, "features": "../x@00", "resampling": "x"}
WRONG |= {"channels": 0, "fmap_max": MOST + 1, "fmap_base": 1.5, "latent_size": True, "strange": 1}


def test_a_header_is_the_architecture_again_and_impossible_ones_are_refused():
    plain = variant(resolution=32, features="torchvision:resnet18@0123456789abcdef", features_from=8).to_plain()
    assert Architecture.from_plain(plain).to_plain() == plain
    assert "features" not in variant(resolution=32).to_plain()
    for name, wrong in WRONG.items():
        with pytest.raises((ValueError, UserError), match=name if name != "resampling" else "Resampling"):
            Architecture.from_plain({**plain, name: wrong})
    with pytest.raises(ValueError, match="not complete"):
        Architecture.from_plain({"resolution": 8})
