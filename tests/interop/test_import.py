"""Imported generators draw what the programs that they come from draw; nothing that a file names is run."""

import json
import os
import pickle
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pggan
from pggan.checkpoints.resume import load_weights
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.interop.importing import read_foreign
from pggan.interop.restricted_pickle import read_foreign_file
from tests.interop import definitions as theirs
from tests.networks.naive import HE

# Rounding, as a share of the largest number in an image: a float has 24 bits, and errors of sums of up to 9 * 8 + 1
# numbers, in both calculations, add up over 7 layers between which norms keep the scale.
TOLERANCE = 2 * 7 * 73 * 2.0**-24


def latents_of(count=5):
    return torch.randn(count, theirs.LATENTS, generator=torch.Generator().manual_seed(9))


def same(found, expected):
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("labels", "fused", "detail", "resolution", "alpha"),
    [(0, True, 0.25, 16, 0.75), (3, False, 0.0, 16, 1.0), (0, False, 1.0, 8, 1.0)],
)
def test_official_networks(tmp_path, labels, fused, detail, resolution, alpha):
    path, layers, d_layers = tmp_path / "network.pkl", theirs.layers_of(labels), theirs.d_layers_of(labels)
    theirs.official_pickle(path, layers, d_layers, detail=detail, fused=fused, labels=labels)
    kind, generator, others, notes = read_foreign(path)
    assert (kind, notes) == ("the official implementation", [])
    assert (generator.resolution, generator.alpha) == (resolution, alpha)
    assert generator.network.architecture.stddev_group == 8
    one_hot = F.one_hot(torch.arange(5) % 3, 3).float() if labels else None
    inputs = torch.cat([latents_of(), one_hot], 1) if labels else latents_of()
    expected = theirs.images(layers, inputs, detail, dense_gain=HE / 4, rgb_gain=1, fused=fused)
    expected = expected[..., :: 16 // resolution, :: 16 // resolution]  # theirs are enlarged to the final resolution
    assert same(generator.network(latents_of(), one_hot, resolution, alpha), expected)
    assert torch.equal(others["generator"].stem.conv.weight, -generator.network.stem.conv.weight)
    assert_scores(others["discriminator"], theirs.scores(d_layers, faces(), detail, fused=fused, score_gain=1), detail)


def faces():
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def assert_scores(network, expected, share):
    score, logits = network(faces(), 16, 1 - share)
    np.testing.assert_allclose(torch.cat([score[:, None], logits], 1).detach(), expected, rtol=1e-4, atol=1e-4)


def test_training_begins_with_both_networks_of_an_imported_file(tmp_path, capsys):
    path, file = tmp_path / "network.pkl", tmp_path / "imported.safetensors"
    theirs.official_pickle(path, theirs.layers_of(), theirs.d_layers_of(), detail=0.0, fused=True, labels=0)
    assert main(["import", f"source={path}", f"out={file}"]) == 0
    state = read_foreign(path).others["discriminator"].state_dict()
    found, _ = load_weights(str(file), read_foreign(path).averaged.network.architecture)
    assert all(torch.equal(found["discriminator"][name], value) for name, value in state.items())
    assert torch.equal(found["generator"]["stem.conv.weight"], -found["generator_ema"]["stem.conv.weight"])
    capsys.readouterr()
    assert main(["inspect", f"run={file}", "json=true"]) == 0
    assert {*json.loads(capsys.readouterr().out)["parameters"]} == {"generator", "discriminator", "generator_ema"}


def save_zoo(path, state, form, **config):
    state = {re.sub(r"\.(\w+)$", r".module.\1", name): value for name, value in state.items()}  # as in its files
    with theirs.pretended_class("models.utils.config", "BaseConfig") as kind:
        settings = kind()
        settings.kept = {"leakyReluLeak": 0.2, "lossCriterion": "WGANGP", "alpha": 0.25, **config}
        content = {"config": settings, "netG": {name: -value for name, value in state.items()}, "avgG": state}
        content["netD"] = theirs.state_of(theirs.d_layers_of(), theirs.ZOO_D)
        torch.save(state if form == "alone" else content, path, _use_new_zipfile_serialization=form != "older")


@pytest.mark.parametrize("form", ["archive", "older", "alone"])
def test_pytorch_gan_zoo(tmp_path, form):
    layers = theirs.layers_of(dense_biases=128)
    save_zoo(tmp_path / "a.pth", theirs.state_of(layers, theirs.ZOO), form)
    kind, generator, others, notes = read_foreign(tmp_path / "a.pth")
    assert (kind, notes) == ("pytorch_GAN_zoo", [])
    share = 0.0 if form == "alone" else 0.25
    assert generator.alpha == 1 - share
    found = generator.network(latents_of(), None, 16, generator.alpha)
    assert same(found, theirs.images(layers, latents_of(), share, scales_biases=True))
    if form != "alone":
        expected = theirs.scores(theirs.d_layers_of(), faces(), share, scales_biases=True, divides_by=3)
        assert_scores(others["discriminator"], expected, share)


def test_pro_gan_pth(tmp_path):
    layers, d_layers, conf = theirs.layers_of(), theirs.d_layers_of(), {"depth": 4, "use_eql": True}
    saved = {"conf": conf, "state_dict": theirs.state_of(layers, theirs.PRO_GAN)}
    d = {"conf": conf, "state_dict": theirs.state_of(d_layers, theirs.PRO_GAN_D)}
    content = {"generator": saved, "shadow_generator": saved, "discriminator": d}
    torch.save(content, tmp_path / "a.bin")
    kind, generator, others, notes = read_foreign(tmp_path / "a.bin")
    assert (kind, notes) == ("pro-gan-pth", [])
    found = generator.network(latents_of(), None, 16)
    assert same(found, theirs.images(layers, latents_of(), 0.0, norms_dense=False))
    assert_scores(others["discriminator"], theirs.scores(d_layers, faces(), 0.25), 0.25)
    d["state_dict"]["layers.0.label_embedder.weight"] = torch.zeros(2, 4)
    torch.save(content, tmp_path / "a.bin")
    assert "embedding of classes" in read_foreign(tmp_path / "a.bin")[3][0]
    del d["state_dict"]["layers.0.label_embedder.weight"]
    del d["state_dict"]["layers.2.conv_3.weight"], content["shadow_generator"]
    torch.save(content, tmp_path / "a.bin")
    _, _, others, notes = read_foreign(tmp_path / "a.bin")
    assert [*others] == ["generator"]
    assert "The import leaves out the discriminator: it has no 'layers.2.conv_3.weight'" in notes[0]
    d["conf"] = conf | {"use_eql": False}
    for wrong, reason in ((content, "use_eql=False"), ([1], "it holds no networks of a known program")):
        torch.save(wrong, tmp_path / "a.bin")
        with pytest.raises(UserError, match=reason):
            read_foreign(tmp_path / "a.bin")


def test_what_is_imported_is_a_generator_like_any_other(tmp_path, capsys):
    torch.save(theirs.state_of(theirs.layers_of(dense_biases=128), theirs.ZOO), tmp_path / "a.pth")
    assert main(["import", f"source={tmp_path / 'a.pth'}", f"out={tmp_path / 'faces.safetensors'}"]) == 0
    shown = capsys.readouterr().out
    assert "16x16, alpha 1" in shown
    assert shown.splitlines()[-1] == f"Next: pggan sample run={tmp_path / 'faces.safetensors'} seeds=0-63"
    generator = pggan.load(tmp_path / "faces.safetensors", "cpu")
    network = read_foreign(tmp_path / "a.pth")[1].network
    assert generator.network.architecture == network.architecture
    assert torch.equal(generator.network(latents_of(), None, 16), network(latents_of(), None, 16))
    assert generator.render(generator.latents([1])).shape == (1, 16, 16, 3)


@pytest.mark.parametrize("change", ["scaleLayers.0.1.bias", "finite", "regular", "leakyReluLeak"])
def test_a_zoo_generator_that_is_not_whole_is_refused(tmp_path, change):
    state, config = theirs.state_of(theirs.layers_of(dense_biases=128), theirs.ZOO), {}
    match change:
        case "scaleLayers.0.1.bias":
            del state[change]
        case "finite":
            state["groupScale0.0.weight"][0, 0, 0, 0] = torch.nan
        case "regular":  # widths
            state["toRGBLayers.1.weight"] = torch.zeros(3, 5, 1, 1)
        case _:
            config = {change: 0.1}
    save_zoo(tmp_path / "a.pth", state, "archive", **config)
    with pytest.raises(UserError, match=change):
        read_foreign(tmp_path / "a.pth")


class Calls:
    """Pickles as a call, and a state that the result is given."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("kind", ["a shell", "inside", "an attribute"])
def test_calls_are_refused_in_every_protocol_and_in_files_of_torch(tmp_path, kind):
    place, path = tmp_path / "executed", tmp_path / "a.pth"
    hostile = {
        "a shell": Calls(os.system, f"touch {place}"),
        "inside": [{"a": (1, Calls(exec, f"open({str(place)!r}, 'w')"))}],
        "an attribute": Calls(getattr, dict, "clear"),
    }[kind]
    for protocol in range(6):
        path.write_bytes(pickle.dumps(hostile, protocol))
        with pytest.raises(ValueError, match=r"^it asks to run [\w.]+$"):
            read_foreign_file(path)
    for archive in (True, False):
        torch.save({"a": torch.zeros(2), "b": hostile}, path, _use_new_zipfile_serialization=archive)
        with pytest.raises(UserError, match=r"can't be imported: it asks to run [\w.]+\.\n"):
            read_foreign(path)
    assert not place.exists()


def test_names_inside_of_harmless_ones_are_refused(tmp_path):
    """Protocol 4 can name attributes of attributes: here, of a class that is on the list."""
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93.")
    with pytest.raises(ValueError, match=r"asks to run collections\.OrderedDict\.__init__"):
        read_foreign_file(tmp_path / "a.pkl")


@pytest.mark.parametrize("protocol", [2, 4])  # of Python 2, and of Python 3
@pytest.mark.parametrize("dtype", [np.float32, np.dtype(">f4"), np.int64])
def test_arrays_and_numbers_are_read_as_they_are(tmp_path, dtype, protocol):
    array = np.arange(12, dtype=dtype).reshape(3, 4)
    for given in (array, np.asfortranarray(array), array[:, :0], np.float32(1.5)):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": [1, given, None]}, protocol))
        found = np.asarray(read_foreign_file(tmp_path / "a.pkl")["a"][1])
        assert np.array_equal(found, given)
        assert found.dtype == given.dtype


def test_bytes_are_never_taken_for_addresses(tmp_path):
    """A type of plain bytes whose state says they are objects: NumPy believes it, and ends the process or worse."""
    begun, named, whole = np.empty(0).__reduce__()[0], ("a",), (3, "|", None, None, None, 8, 1, 0)
    hostile = {"V8": (3, "|", None, named, {"a": (np.dtype("O"), 0)}, 8, 1, 0), "O": (3, "|", *[None] * 3, -1, -1, 0)}
    for code, state in {**hostile, "V8 ": whole}.items():
        kind = Calls(np.dtype, code.strip(), False, True, state=state)
        array = Calls(begun, np.ndarray, (0,), b"b", state=(1, (1,), kind, False, (1234567).to_bytes(8, "little")))
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(array, 2))
        with pytest.raises(ValueError, match="not hold numbers"):
            np.asarray(read_foreign_file(tmp_path / "a.pkl"))


@pytest.mark.parametrize("archive", [True, False])
def test_a_file_that_is_cut_short_is_refused(tmp_path, archive):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
    content = (tmp_path / "a.pth").read_bytes()
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "b.pth").write_bytes(content[:length])
        with pytest.raises(UserError, match="can't be imported: it is empty or damaged: download it again"):
            read_foreign(tmp_path / "b.pth")
