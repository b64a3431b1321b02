"""Exported generators draw what the network draws: ONNX files, folders for Hugging Face, pages for browsers."""

import io
import json
import sys
import tarfile
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import errors
from PIL import Image

import pggan
from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.cli.main import main
from pggan.core.architecture import Resampling
from pggan.core.errors import UserError
from pggan.interop import web
from pggan.interop.onnx_graph import BATCHES, TOLERANCE, build, inputs_of, largest_difference, runnable
from pggan.sampling.latents import mean_features

RUNTIME = {name: f"// {name}".encode() for name in web.FILES}
OTHERS = {"num_classes": 3, "resampling": Resampling.unfused, "channels": 1, "blur": True, "bilateral": 2}


# ---- ONNX ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolution", "alpha", "layers"), [(4, 1.0, {}), (8, 0.0, {}), (16, 0.25, {"bilateral": 1}), (16, 1.0, OTHERS)]
)
def test_any_number_of_images_is_drawn_as_by_the_network(make_network, resolution, alpha, layers):
    network = make_network(**layers)
    inputs = inputs_of(network, 5)
    graph, reported = build(LoadedGenerator(network, resolution, alpha, 4000))
    found = runnable(graph)(inputs)
    expected = network(inputs["latents"], inputs.get("labels"), resolution, alpha)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert 0 <= reported < TOLERANCE


def test_what_draws_something_else_or_no_numbers_is_refused(make_network):
    network = make_network()
    for wrong, words in ((1e-3, r"1\.0e-03"), (float("nan"), ": nan")):
        for broken in BATCHES:

            def exported(inputs, wrong=wrong, broken=broken):
                return network(inputs["latents"], None, 8) + wrong * (len(inputs["latents"]) == broken)

            with pytest.raises(ArithmeticError, match=words):
                largest_difference(network, 8, 1.0, exported)


def test_the_command_exports_the_stage_that_was_saved_and_its_configuration(generator_file, tmp_path, capsys):
    import onnx

    out = tmp_path / "new" / "faces.onnx"
    assert main(["export", f"run={generator_file}", f"out={out}"]) == 0
    assert "16x16, alpha 0.25; pixels (-1 to 1) differ from PyTorch's by up to" in capsys.readouterr().out
    about = json.loads({entry.key: entry.value for entry in onnx.load(out).metadata_props}["pggan"])
    assert (about["resolution"], about["alpha"], about["architecture"]["latent_size"]) == (16, 0.25, 6)
    generator = pggan.load(generator_file, "cpu")
    found = runnable(out.read_bytes())({"latents": generator.latents([7])})
    bytes_found = (found[0] * 127.5 + 127.5).round().clamp(0, 255).permute(1, 2, 0).numpy()
    assert np.abs(bytes_found - generator.render(generator.latents([7]))[0]).max() <= 1  # where rounding turns


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["out=a.pt2"], ".onnx"),
        (["out=a.onnx", "resolution=64"], "4, 8, 16"),
        (["out=a.onnx", "alpha=2"], "alpha"),
        (["out=a.onnx", "format=caffe"], "safetensors"),
        (["out=a.onnx", "run=nowhere"], "does not exist"),
        (["out=page", "format=web", "runtime=nowhere.tgz"], "npm pack"),
        (["out=faces", "format=hf", "license='CC BY 4.0'"], "license=other"),
        (["out=.", "format=hf"], "working directory"),
    ],
)
def test_slips_are_refused_with_advice(generator_file, arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", f"run={generator_file}", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_safetensors_file_is_the_generator_at_that_stage(generator_file, tmp_path):
    out = tmp_path / "eight.safetensors"
    words = ["format=safetensors", f"out={out}", "resolution=8", "license=mit"]
    assert main(["export", f"run={generator_file}", *words]) == 0
    there, before = pggan.load(out, "cpu"), pggan.load(generator_file, "cpu")
    assert (there.resolution, there.alpha, there.resolutions) == (8, 1.0, before.resolutions)
    assert there.loaded.license == "mit"
    wanted = before.render(before.latents([7]), resolution=8, alpha=1.0)
    assert np.array_equal(there.render(there.latents([7])), wanted)


def test_without_the_libraries_the_extra_is_named(generator_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "pggan.interop.onnx_graph", raising=False)
    assert main(["export", f"run={generator_file}", f"out={tmp_path / 'a.onnx'}"]) == 2
    assert "pggan[export]" in capsys.readouterr().err


# ---- Hugging Face ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, generator_file):
    place = tmp_path_factory.mktemp("folder") / "faces"
    facts = ["license=cc-by-4.0", "data_statement='Drawn by a program: nobody is shown.'"]
    assert main(["export", f"run={generator_file}", "format=hf", *facts, f"out={place}"]) == 0
    return place


def test_a_folder_gives_the_same_images_as_the_run(folder, generator_file):
    original = pggan.load(generator_file, "cpu")
    expected = original.render(original.latents("0-15"))
    copy = pggan.from_pretrained(folder, device="cpu")
    assert (copy.resolution, copy.alpha, copy.images) == (16, 0.25, 4000)
    assert np.array_equal(copy.render(copy.latents("0-15")), expected)
    samples = np.asarray(Image.open(folder / "samples.png"))
    side = samples.shape[0] // 4
    assert np.array_equal(samples[:: side // 16, :: side // 16][16:32, 32:48], expected[6])
    about = json.loads((folder / "config.json").read_text())
    assert about["architecture"]["resolution"] == about["resolution"] == 16


def test_the_card_has_what_a_reader_needs_and_a_file_states_it_again(folder, tmp_path):
    card = (folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["license"], front["tags"]) == ("cc-by-4.0", ["gan", "progressive-gan"])
    assert front["pipeline_tag"] == "unconditional-image-generation"
    assert "nobody is shown" in card.split("## Training data")[1]
    assert "| images shown in training | 4,000 |" in card
    again = tmp_path / "again"
    assert main(["export", f"run={folder}", "format=hf", f"out={again}", "resolution=8", "license=other"]) == 0
    card = (again / "README.md").read_text()
    assert "license: other\n" in card
    assert "nobody is shown" in card


def test_a_folder_that_holds_something_is_left_alone(generator_file, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    for form in ("hf", "web"):
        assert main(["export", f"run={generator_file}", f"format={form}", f"out={tmp_path}"]) == 2
        assert "exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_repository_of_the_hub_is_loaded_by_its_name_and_counted(folder, monkeypatch):
    asked = []

    def download(name, file, revision=None):
        asked.append(file)
        if name != "me/faces":
            raise errors.LocalEntryNotFoundError(f"no {name} at {revision}")
        return str(folder / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(errors=errors, hf_hub_download=download))
    assert pggan.from_pretrained("me/faces", device="cpu").resolution == 16
    assert asked == ["generator.safetensors", "config.json"]
    with pytest.raises(UserError, match="no me/other at main"):
        pggan.from_pretrained("me/other", revision="main", device="cpu")


# ---- a page for browsers ---------------------------------------------------------------------------------


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A .tgz that is taken for the package."""
    for name, content in RUNTIME.items():
        monkeypatch.setitem(web.FILES, name, sha256(content).hexdigest())
    return archive(tmp_path / "runtime.tgz", RUNTIME)


def archive(path, files):
    with tarfile.open(path, "w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("layers", [{}, {"num_classes": 3, "bilateral": 2}])
def test_the_graph_of_a_page_draws_what_the_network_draws_truncated_or_not(make_network, layers):
    network = make_network(**layers)
    inputs = inputs_of(network, 4)
    labels = inputs.get("labels")
    graph = runnable(build(LoadedGenerator(network, 8, 0.25, 4000), for_page=True)[0])
    centers = [mean_features(network, None if labels is None else n % 3) for n in range(4)]
    for truncation in (0.0, 0.7, 1.3):
        images = graph(inputs | {"truncation": torch.tensor([truncation])})
        features = torch.lerp(torch.cat(centers), network.features(inputs["latents"], labels), truncation)
        torch.testing.assert_close(images, network.grow(features, 8, 0.25), atol=TOLERANCE, rtol=0)


def test_the_command_writes_a_folder_of_static_files(make_network, runtime, tmp_path, capsys):
    save_generator(LoadedGenerator(make_network(), 8, 0.25, 4000), tmp_path / "generator.safetensors")
    out = tmp_path / "new" / "page"
    arguments = [f"run={tmp_path / 'generator.safetensors'}", f"out={out}", f"runtime={runtime}"]
    assert main(["export", "format=web", *arguments]) == 0
    assert "http.server" in capsys.readouterr().out
    about = json.loads((out / "model.json").read_text())
    assert about["renderer"] == "browser"
    assert (about["resolutions"], about["resolution"], about["alpha"]) == ([4, 8], 8, 0.25)
    assert (out / "generator.onnx").is_file()
    assert (out / "ort-wasm-simd-threaded.wasm").read_bytes() == RUNTIME["ort-wasm-simd-threaded.wasm"]
    assert "<canvas" in (out / "index.html").read_text()


def test_what_is_not_the_runtime_is_refused(runtime, tmp_path):
    changed = archive(tmp_path / "changed.tgz", RUNTIME | {"ort-wasm-simd-threaded.wasm": b"something else"})
    part = archive(tmp_path / "part.tgz", {"ort.wasm.bundle.min.mjs": RUNTIME["ort.wasm.bundle.min.mjs"]})
    broken = archive(tmp_path / "broken.tgz", dict.fromkeys(RUNTIME, np.random.default_rng(0).bytes(2**19)))
    broken.write_bytes(broken.read_bytes()[: 2**18] + b"\xff" * 2**18)
    for place in (changed, part, broken, tmp_path / "none"):
        with pytest.raises(UserError, match="npm pack"):
            web.read_runtime(str(place))


def test_npm_fetches_the_runtime_once_or_the_way_round_is_named(runtime, tmp_path, monkeypatch):
    """By a stand-in for npm that is found first, and by none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="npm could not fetch"):
        web.read_runtime(None)
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n/bin/cp {runtime} {web.ARCHIVE}\n/bin/rm -- $0\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    (web.cache_folder() / web.ARCHIVE).write_bytes(b"a download that was killed")
    with pytest.raises(UserError, match="not a usable archive"):
        web.read_runtime(None)
    assert web.read_runtime(None) == web.read_runtime(None) == RUNTIME
