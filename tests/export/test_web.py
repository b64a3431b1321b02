"""Pages for any web space: the same images level by level, and a runtime that is what it says."""

import io
import json
import os
import subprocess
import tarfile
from hashlib import sha256

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.interop.export import comparison, web_runtime
from pggan.interop.export.comparison import TOLERANCE, DifferenceError
from pggan.interop.export.web import write_web
from pggan.interop.export.web_graph import build_level
from pggan.networks.networks import Generator
from pggan.sampling.generate import mean_features
from pggan.sampling.trained_generator import TrainedGenerator

RUNTIME = {name: f"// {name}".encode() for name in web_runtime.FILES}


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A .tgz that is taken for the package."""
    monkeypatch.setattr(web_runtime, "FILES", {name: sha256(content).hexdigest() for name, content in RUNTIME.items()})
    return archive(tmp_path / "runtime.tgz", RUNTIME)


def archive(path, files):
    with tarfile.open(path, "w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(("num_classes", "layers"), [(0, {"noise": True}), (3, {"bilateral": 2})])
def test_levels_draw_what_the_network_draws_truncated_or_not(make_network, num_classes, layers):
    import onnxruntime

    network: Generator = make_network(num_classes, **layers)
    latents, classes = torch.randn(4, 6), torch.tensor([0, 1, 2, 1])
    one_hot = F.one_hot(classes, num_classes).float() if num_classes else None
    for truncation in (0.0, 0.7, 1.0, 1.3):
        values = {"latents": latents.numpy(), "truncation": np.array([truncation], np.float32)}
        values |= {"labels": one_hot.numpy()} if num_classes else {}
        centers = [mean_features(network, int(label) if num_classes else None) for label in classes]
        features = torch.lerp(torch.cat(centers), network.features(latents, one_hot), truncation)
        for level in network.architecture.resolutions:
            graph = build_level(network, level).SerializeToString()
            session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
            feed = {given.name: values[given.name] for given in session.get_inputs()}
            assert ("latents" in feed) is ("noise" in layers or level == 4)
            values["below"], images = session.run(["features", "images"], feed)
            assert np.abs(images - network.grow(features, latents, level).numpy()).max() < TOLERANCE


def test_the_command_writes_a_folder_of_levels_that_were_trained(make_network, runtime, tmp_path, capsys):
    save_generator(LoadedGenerator(make_network(), 8, 0.25, 4000), tmp_path / "generator.safetensors")
    out = tmp_path / "new" / "page"
    arguments = [f"run={tmp_path / 'generator.safetensors'}", f"out={out}", f"runtime={runtime}"]
    assert main(["export", "format=web", *arguments]) == 0
    assert "http.server" in capsys.readouterr().out
    about = json.loads((out / "model.json").read_text())
    assert (about["renderer"], about["resolutions"], about["resolution"], about["alpha"]) == (
        "browser",
        [4, 8],
        8,
        0.25,
    )
    assert {path.name for path in out.glob("*.onnx")} == {"level-4.onnx", "level-8.onnx"}
    assert (out / "ort-wasm-simd-threaded.wasm").read_bytes() == RUNTIME["ort-wasm-simd-threaded.wasm"]
    assert len((out / "directions.bin").read_bytes()) == 4 * 6 * 6
    assert "<canvas" in (out / "index.html").read_text()
    assert main(["export", "format=web", *arguments]) == 2  # what is there is never replaced
    assert "exists" in capsys.readouterr().err


def test_a_folder_that_draws_something_else_is_not_kept(make_network, tmp_path, monkeypatch):
    network, other = make_network(), make_network()
    other.to_rgb["8"].bias.data[0] += 1e-3
    draw = comparison.draw
    monkeypatch.setattr(comparison, "draw", lambda network, *rest: draw(other, *rest))
    generator = TrainedGenerator(LoadedGenerator(network, 16, 1.0, 0))
    with pytest.raises(DifferenceError, match=r"1\.0e-03"):
        write_web(generator, tmp_path / "page", "faces", torch.eye(1, 6), RUNTIME)
    assert list(tmp_path.iterdir()) == []


def test_the_runtime_is_read_from_an_archive_and_from_folders(runtime, tmp_path):
    assert web_runtime.read_runtime(str(runtime)) == RUNTIME
    inner = tmp_path / "package" / "dist"
    inner.mkdir(parents=True)
    for name, content in RUNTIME.items():
        (inner / name).write_bytes(content)
    assert web_runtime.read_runtime(str(inner)) == web_runtime.read_runtime(str(inner.parent)) == RUNTIME


def test_what_is_not_the_runtime_is_refused(runtime, tmp_path, monkeypatch):
    changed = RUNTIME | {"ort-wasm-simd-threaded.wasm": b"something else"}
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").mkdir()
    part = archive(tmp_path / "part.tgz", {"ort.wasm.bundle.min.mjs": b""})
    places = [
        archive(tmp_path / "changed.tgz", changed),
        tmp_path / "text",
        tmp_path / "empty",
        tmp_path / "none",
        part,
    ]
    for place in places:
        with pytest.raises(UserError, match="npm pack"):
            web_runtime.read_runtime(str(place))
    monkeypatch.setattr(web_runtime, "MAX_BYTES", 5)
    with pytest.raises(UserError, match="bytes"):
        web_runtime.read_runtime(str(runtime))


def test_npm_fetches_the_runtime_once(runtime, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(web_runtime.shutil, "which", lambda _: "npm")
    calls = []

    def npm(words, cwd, **_):
        calls.append(words[:3])
        os.link(runtime, cwd / web_runtime.ARCHIVE)

    monkeypatch.setattr(subprocess, "run", npm)
    assert web_runtime.read_runtime(None) == web_runtime.read_runtime(None) == RUNTIME
    assert calls == [["npm", "pack", "onnxruntime-web@1.30.0"]]
    assert "32 MB" in capsys.readouterr().out


def test_without_npm_or_its_registry_the_way_round_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(web_runtime.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="no npm") as caught:
        web_runtime.read_runtime(None)
    assert "runtime=" in caught.value.remedy
    monkeypatch.setattr(web_runtime.shutil, "which", lambda _: "npm")

    def npm(words, **_):
        raise subprocess.CalledProcessError(1, words, stderr="npm error\nnpm error network")

    monkeypatch.setattr(subprocess, "run", npm)
    with pytest.raises(UserError, match="npm error network"):
        web_runtime.read_runtime(None)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["format=web", "runtime=nowhere.tgz"], "npm pack"),
        (["format=web", "runtime=runtime.tgz", "directions=nowhere"], "No such file"),
        (["format=web", "license=mit"], "model card"),
        (["format=onnx", "runtime=a.tgz"], "format=web"),
        (["format=torch", "directions=a"], "format=web"),
    ],
)
def test_slips_are_refused_before_anything_is_written(
    generator_file, runtime, arguments, hint, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = [f"run={generator_file}", f"out={tmp_path / 'page'}"]
    assert main(["export", *given, *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "page").exists()
