"""A whole run whose discriminator looks at pretrained features."""

import numpy as np
import pytest
import torch

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import newest_checkpoint
from pggan.core.errors import UserError
from pggan.networks.features.discriminator import LAST_FEATURES
from pggan.run import train

pytestmark = pytest.mark.slow


def test_a_run_grows_into_its_features_and_resumes_with_the_same_weights_only(tmp_path, tiny_config):
    from torchvision.models import mnasnet0_5

    weights, run_dir = tmp_path / "weights.pth", tmp_path / "run"
    keys = ["loss=logistic", "model.features=torchvision:mnasnet0_5", f"model.features_weights={weights}"]
    keys += ["schedule.stable_images=8", "schedule.fade_images=8", f"run_dir={run_dir}"]
    with pytest.raises(UserError, match="no weights at"):
        train.run(tiny_config(*keys))
    assert not run_dir.exists()
    torch.save(mnasnet0_5().state_dict(), weights)
    assert train.run(tiny_config(*keys)) == 0
    checkpoint, corrupt = newest_checkpoint(run_dir)
    assert checkpoint.architecture.features.startswith("torchvision:mnasnet0_5@")
    assert not corrupt
    assert not [name for name in checkpoint.load("discriminator") if "backbone" in name]
    assert np.loadtxt(run_dir / "samples/projector/features_of_D.tsv").shape == (96, LAST_FEATURES)
    weights.rename(tmp_path / "elsewhere.pth")
    assert load_generator(str(run_dir), torch.device("cpu")).resolution == 16  # without them
    torch.save(mnasnet0_5().state_dict(), weights)  # others
    with pytest.raises(UserError, match=r"holds other networks.*features"):
        train.run(tiny_config(*keys))
