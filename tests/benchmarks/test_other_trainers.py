"""The race against other trainers, with a stand-in for the code of one."""

import pytest

from benchmarks import other_trainers
from benchmarks.other_trainers import GAN_ZOO, OURS, race

STAND_IN = """
import time

class ProgressiveGAN:
    def __init__(self, **options):
        assert options == {"miniBatchStdDev": True, "lambdaGP": 10.0, "epsilonD": 0.001, "useGPU": False}
        self.levels = []

    def addScale(self, width):
        self.levels.append(width)

    def optimizeParameters(self, reals):
        assert self.levels == [512] and reals.shape == (2, 3, 8, 8) and reals.min() < 0
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_ours_and_theirs_step_in_turn_and_their_time_by_ours_is_the_factor(tmp_path, monkeypatch):
    monkeypatch.setitem(other_trainers.STEPS, 8, 1)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "progressive_gan.py").write_text(STAND_IN)
    row = race((8, 2), {OURS: None, GAN_ZOO: tmp_path}, threads=1, rounds=2)
    assert [set(one) for one in row["rounds"]] == [{OURS, GAN_ZOO}] * 2
    assert all(one[GAN_ZOO] >= 0.01 and one[OURS] > 0 for one in row["rounds"])
    assert row["factor"] == row["seconds"][GAN_ZOO] / row["seconds"][OURS]
