"""ONNX files: the same images as the network's, at any stage and in any batch."""

import json
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pggan
from pggan.cli.main import main
from pggan.core.architecture import Resampling
from pggan.interop.export import comparison, onnx_file
from pggan.interop.export.comparison import DifferenceError

STAGES = [(4, 1.0), (8, 0.0), (8, 0.5), (16, 1.0), (16, 0.25)]


def images_of(path, **inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["images"], {name: value.numpy() for name, value in inputs.items()})[0]


@pytest.mark.parametrize(("resolution", "alpha"), STAGES)
def test_every_stage_is_drawn_as_by_the_network(make_network, tmp_path, resolution, alpha):
    network, latents = make_network(), torch.randn(5, 6)
    reported = onnx_file.write_onnx(network, tmp_path / "a.onnx", resolution, alpha, {})
    found = images_of(tmp_path / "a.onnx", latents=latents)
    assert np.abs(found - network(latents, None, resolution, alpha).numpy()).max() < 1e-4
    assert 0 <= reported < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


@pytest.mark.parametrize("resampling", Resampling)
@pytest.mark.parametrize(("channels", "layers"), [(1, {"blur": True}), (3, {"noise": True}), (3, {"bilateral": 3})])
def test_labels_channels_layers_and_both_kinds_of_resampling(make_network, tmp_path, resampling, channels, layers):
    network = make_network(3, resampling, channels, **layers)
    latents, labels = torch.randn(4, 6), F.one_hot(torch.tensor([0, 1, 2, 0]), 3).float()
    onnx_file.write_onnx(network, tmp_path / "a.onnx", 16, 1.0, {})
    found = images_of(tmp_path / "a.onnx", latents=latents, labels=labels)
    assert found.shape == (4, channels, 16, 16)
    assert np.abs(found - network(latents, labels, 16).numpy()).max() < 1e-4


def test_a_file_that_draws_something_else_is_not_kept(make_network, tmp_path, monkeypatch):
    network, other = make_network(), make_network()
    other.to_rgb["16"].bias.data[0] += 1e-3
    build = comparison.draw
    monkeypatch.setattr(comparison, "draw", lambda network, *rest: build(other, *rest))
    with pytest.raises(DifferenceError, match=r"1\.0e-03"):
        onnx_file.write_onnx(network, tmp_path / "a.onnx", 16, 1.0, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_draws_no_numbers_is_refused_whatever_the_batch(make_network):
    network = make_network()
    for broken in comparison.BATCHES:

        def exported(inputs, broken=broken):
            return comparison.draw(network, inputs, 8, 1.0) * (float("nan") if len(inputs[0]) == broken else 1)

        with pytest.raises(DifferenceError, match="by nan"):
            comparison.largest_difference(network, 8, 1.0, exported)


def test_the_command_exports_the_stage_that_was_saved_and_its_configuration(generator_file, tmp_path, capsys):
    import onnx

    out = tmp_path / "new" / "faces.onnx"
    assert main(["export", f"run={generator_file}", f"out={out}"]) == 0
    assert "16x16, alpha 0.25; at most" in capsys.readouterr().out
    model = onnx.load(out)
    about = json.loads({entry.key: entry.value for entry in model.metadata_props}["pggan"])
    assert (about["resolution"], about["alpha"], about["architecture"]["latent_size"]) == (16, 0.25, 6)
    generator = pggan.load(generator_file, "cpu")
    found = images_of(out, latents=generator.latents([7]))[0].transpose(1, 2, 0)
    bytes_found = np.clip(np.round(found * 127.5 + 127.5), 0, 255)
    assert np.abs(bytes_found - generator.render(generator.latents([7]))[0]).max() <= 1  # where rounding turns


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["out=a.pt2"], ".onnx"),
        (["out=a.onnx", "resolution=64"], "4, 8, 16"),
        (["out=a.onnx", "alpha=2"], "alpha"),
        (["out=a.onnx", "format=safetensors"], ".safetensors"),
        (["out=a.onnx", "license=mit"], "format=hf"),
        (["out=a.onnx", "format=caffe"], "safetensors"),
        (["out=a.onnx", "run=nowhere"], "no generator"),
    ],
)
def test_slips_are_refused_with_advice(generator_file, arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", f"run={generator_file}", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_safetensors_file_is_the_generator_at_that_stage(generator_file, tmp_path):
    out = tmp_path / "eight.safetensors"
    assert main(["export", f"run={generator_file}", "format=safetensors", f"out={out}", "resolution=8"]) == 0
    there, before = pggan.load(out, "cpu"), pggan.load(generator_file, "cpu")
    assert (there.resolution, there.alpha, there.resolutions) == (8, 1.0, before.resolutions)
    wanted = before.render(before.latents([7]), resolution=8, alpha=1.0)
    assert np.array_equal(there.render(there.latents([7])), wanted)


def test_without_the_libraries_the_extra_is_named(generator_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", f"run={generator_file}", f"out={tmp_path / 'a.onnx'}"]) == 2
    assert "pggan[export]" in capsys.readouterr().err
