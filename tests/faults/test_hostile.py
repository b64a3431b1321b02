"""Files made to harm: nothing in them is executed, nothing outside is read, nothing large is allocated for them."""

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import CorruptCheckpoint, checkpoints_of, checksum_of, open_checkpoint
from pggan.cli import commands
from pggan.cli.main import main
from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError

CPU = torch.device("cpu")


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


class Evaluated(Payload):
    def __reduce__(self):
        return eval, (f"open({str(self.sentinel)!r}, 'w').close()",)


@pytest.fixture
def sentinel(tmp_path):
    """A path at which nothing may have appeared, and beyond it a secret that nothing may show."""
    path = tmp_path / "executed"
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    yield path
    assert not path.exists(), "code in a file was executed"


@pytest.fixture
def run_dir(finished_run, tmp_path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def reseal(directory: Path, **changes: object) -> None:
    """Give a tampered checkpoint right checksums, as an attacker would."""
    header = json.loads((directory / "state.json").read_text())
    header.update(changes)
    for name in header["files"] if isinstance(header["files"], dict) else ():
        if (directory / name).is_file():
            header["files"][name] = file_sha256(directory / name)
    header["sha256"] = checksum_of(header)
    (directory / "state.json").write_text(json.dumps(header))


def safetensors(header: object, body: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


def pickled_zip(payload: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weights": payload}, buffer)
    return buffer.getvalue()


def pickled_legacy(payload: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weights": payload}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def nested_zip(payload: object) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(payload))
        archive.writestr("inner.zip", pickled_zip(payload))
    return buffer.getvalue()


def entry(shape: list[int], first: int, last: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


FILE_PAYLOADS = {
    "a pickle that calls os.system": lambda path: pickle.dumps(Payload(path)),
    "a pickle that calls eval": lambda path: pickle.dumps(Evaluated(path)),
    "torch.save's zip": lambda path: pickled_zip(Payload(path)),
    "torch.save's legacy format": lambda path: pickled_legacy(Payload(path)),
    "a zip in a zip": lambda path: nested_zip(Payload(path)),
    "a pickle after a valid header": lambda path: safetensors({}, pickle.dumps(Payload(path))),
    "a header of 2**63 bytes": lambda path: struct.pack("<Q", 2**63) + b"{}",
    "a tensor of 2**60 numbers": lambda path: safetensors({"weight": entry([2**30, 2**30], 0, 2**62)}),
    "a tensor of negative size": lambda path: safetensors({"weight": entry([-4, 4], 0, 16)}, bytes(16)),
    "tensors that lie on each other": lambda path: safetensors(
        {"a": entry([4], 0, 16), "b": entry([4], 8, 24)}, bytes(24)
    ),
    "a tensor beyond the end": lambda path: safetensors({"weight": entry([4], 0, 16)}, bytes(4)),
    "the same tensor twice": lambda path: safetensors(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
}


def resume_with_payload(run_dir, tiny_overrides, sentinel, part, payload):
    """Train on where all checkpoints have a payload in place of a part, with right checksums; it has to be refused."""
    for directory in checkpoints_of(run_dir):
        (directory / f"{part}.safetensors").write_bytes(FILE_PAYLOADS[payload](sentinel))
        reseal(directory)
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 2


@pytest.mark.fault(10)
@pytest.mark.parametrize("payload", FILE_PAYLOADS)
def test_a_payload_in_a_checkpoint_is_refused_when_training_goes_on(run_dir, tiny_overrides, sentinel, capsys, payload):
    resume_with_payload(run_dir, tiny_overrides, sentinel, "weights", payload)
    shown = capsys.readouterr().err
    assert (
        f"run_dir={run_dir} has no valid checkpoint: " in shown or f"{run_dir}/checkpoints/000000160 does not" in shown
    )


@pytest.mark.fault(10)
@pytest.mark.parametrize("payload", ["torch.save's zip", "a tensor of 2**60 numbers"])
def test_a_payload_in_place_of_moments_is_refused_when_they_are_loaded(
    run_dir, tiny_overrides, sentinel, capsys, payload
):
    resume_with_payload(run_dir, tiny_overrides, sentinel, "state", payload)
    shown = capsys.readouterr().err
    assert f"run_dir={run_dir} has no valid checkpoint: " in shown
    assert f"{checkpoints_of(run_dir)[-1] / 'state.safetensors'}: " in shown


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("payload", "verb"), [*((payload, "sample") for payload in FILE_PAYLOADS), ("torch.save's zip", "interpolate")]
)
def test_a_payload_in_place_of_a_generator_is_refused(tmp_path, sentinel, capsys, payload, verb):
    file = tmp_path / "generator.safetensors"
    file.write_bytes(FILE_PAYLOADS[payload](sentinel))
    assert main([verb, f"run={file}", "seeds=[1,2]", f"out={tmp_path / 'out.png'}", "device=cpu"]) == 2
    assert "is not a valid generator of this program" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.fault(10)
@pytest.mark.parametrize("verb", [["train", "init_from={}"], ["train", "resume={}"], ["inspect", "run={}"]])
def test_payloads_are_refused_on_every_other_way_in(run_dir, tmp_path, tiny_overrides, sentinel, capsys, verb):
    for directory in checkpoints_of(run_dir):
        (directory / "weights.safetensors").write_bytes(pickled_zip(Payload(sentinel)))
        reseal(directory)
    name, *arguments = (word.format(run_dir) for word in verb)
    settings = [*tiny_overrides, f"run_dir={tmp_path / 'new'}"] if name == "train" else []
    assert main([name, *settings, *arguments]) == 2
    assert "valid checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


# ---- state.json ------------------------------------------------------------------------------------------


def edited(**changes: object):
    return lambda directory: reseal(directory, **changes)


def with_text(old: str, new: str):
    def tamper(directory: Path) -> None:
        state = directory / "state.json"
        text = state.read_text()
        assert old in text
        state.write_text(text.replace(old, new, 1))

    return tamper


def with_file(name: str):
    def tamper(directory: Path) -> None:
        files = json.loads((directory / "state.json").read_text())["files"]
        reseal(directory, files={**files, name: file_sha256(directory.parents[2] / "secret")})

    return tamper


def with_architecture(**changes: object):
    def tamper(directory: Path) -> None:
        architecture = json.loads((directory / "state.json").read_text())["architecture"]
        reseal(directory, architecture={**architecture, **changes})

    return tamper


def linked(name: str):
    def tamper(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to(directory.parents[2] / "secret")
        if name != "state.json":
            reseal(directory)

    return tamper


def piped(name: str):
    def tamper(directory: Path) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return tamper


HEADERS = {
    "a name with ..": with_file("../../../secret"),
    "an absolute name": with_file("/etc/passwd"),
    "a name with a zero byte": with_file("a\0b.safetensors"),
    "files as a list": edited(files=["generator.safetensors"]),
    "no files": edited(files={}),
    "a key twice": with_text('"images": 160', '"images": 160, "images": 8'),
    "NaN": with_text('"alpha": 1.0', '"alpha": NaN'),
    "infinity": with_text('"images": 160', '"images": 1e999'),
    "negative images": edited(images=-8),
    "images as a truth value": edited(images=True),
    "images beyond 64 bits": edited(images=2**70),
    "a negative phase": edited(phase_index=-9),
    "alpha above 1": edited(alpha=3),
    "a resolution that is none": edited(resolution=12),
    "a version that is none": edited(version="2"),
    "a giant latent": with_architecture(latent_size=2**40),
    "a giant resolution": with_architecture(resolution=2**40),
    "a negative width": with_architecture(fmap_max=-8),
    "a decay that is not a number": with_architecture(fmap_decay="os.system"),
    "a filter that is a number": with_architecture(blur=1),
    "noise that is a number": with_architecture(noise=1),
    "passes of a filter without end": with_architecture(bilateral=2**40),
    "passes of a filter that are not a number": with_architecture(bilateral=True),
    "residual blocks that are text": with_architecture(residual="no"),
    "a field that is none": with_architecture(_target_="os.system"),
    "lists in lists in lists": lambda directory: (directory / "state.json").write_text("[" * 200_000),
    "a gigabyte of nothing": lambda directory: os.truncate(directory / "state.json", 2**30),
    "not text": lambda directory: (directory / "state.json").write_bytes(b"\xff\xfe\x00"),
    "a link for state.json": linked("state.json"),
    "a link for a part": linked("weights.safetensors"),
    "a pipe for state.json": piped("state.json"),
    "a pipe for a part": piped("weights.safetensors"),
    "a part of a terabyte": lambda directory: (
        os.truncate(directory / "state.safetensors", 2**40) or with_text("{", "{")(directory)
    ),
}


@pytest.mark.fault(10)
@pytest.mark.parametrize("tamper", HEADERS.values(), ids=HEADERS.keys())
def test_a_state_file_that_lies_is_passed_over_without_reading_outside_or_allocating(run_dir, sentinel, tamper):
    directory = checkpoints_of(run_dir)[-1]
    tamper(directory)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint) as caught:
            open_checkpoint(directory)
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "secretsecret" not in str(caught.value)
    assert allocated < 64 * 2**20


# ---- exported files, data sets, configurations -----------------------------------------------------------


def exported(file: Path, run_dir: Path, **changes: object) -> None:
    """The run's generator with another header."""
    from safetensors import safe_open

    with safe_open(run_dir / "generator.safetensors", "pt") as opened:
        about = json.loads(opened.metadata()["pggan"])
    about.update(changes)
    save_file(load_file(run_dir / "generator.safetensors"), file, metadata={"pggan": json.dumps(about)})


EXPORTED = {
    "giant widths": lambda about: {"architecture": {**about, "fmap_max": 2**16, "fmap_base": 2**24}},
    "wider than its tensors": lambda about: {"architecture": {**about, "fmap_max": 16}},
    "no architecture": lambda about: {"architecture": None},
    "a stage that is none": lambda about: {"resolution": -4},
    "alpha that is none": lambda about: {"alpha": "__import__('os').system('true')"},
}


@pytest.mark.fault(10)
@pytest.mark.parametrize("lie", EXPORTED)
def test_an_exported_file_that_lies_is_refused(run_dir, tmp_path, lie):
    from safetensors import safe_open

    with safe_open(run_dir / "generator.safetensors", "pt") as opened:
        architecture = json.loads(opened.metadata()["pggan"])["architecture"]
    exported(tmp_path / "lie.safetensors", run_dir, **EXPORTED[lie](architecture))
    with pytest.raises(UserError, match="not a valid generator"):
        load_generator(str(tmp_path / "lie.safetensors"), CPU)
    exported(tmp_path / "truth.safetensors", run_dir)
    assert load_generator(str(tmp_path / "truth.safetensors"), CPU).images == 160


def index_with(data: Path, change) -> None:
    index = json.loads((data / "index.json").read_text())
    change(index)
    (data / "index.json").write_text(json.dumps(index))


def shard_of(index: dict) -> dict:
    return index["levels"]["16"][0]


DATA = {
    "a shard elsewhere": lambda data: index_with(data, lambda index: shard_of(index).update(file="../secret")),
    "an absolute shard": lambda data: index_with(data, lambda index: shard_of(index).update(file="/etc/passwd")),
    "2**60 images": lambda data: index_with(data, lambda index: index.update(images=2**60)),
    "negative images": lambda data: index_with(data, lambda index: index.update(images=-1)),
    "a linked shard": lambda data: (
        (data / "r0016-00000.bin").rename(data.parent / "moved"),
        (data / "r0016-00000.bin").symlink_to(data.parent / "moved"),
    ),
    "a pickle for an index": lambda data: (data / "index.json").write_bytes(
        pickle.dumps(Payload(data.parent / "executed"))
    ),
}


@pytest.mark.fault(24)
@pytest.mark.parametrize("tamper", DATA.values(), ids=DATA.keys())
def test_a_data_set_that_lies_is_refused(make_pyramid, tiny_overrides, tmp_path, sentinel, capsys, tamper):
    make_pyramid(tmp_path / "data")
    tamper(tmp_path / "data")
    assert main(["train", *tiny_overrides, f"data.path={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "secretsecret" not in shown
    assert not (tmp_path / "run").exists()


def pickled_array(path: Path, payload: object) -> None:
    np.save(path, np.array([payload], dtype=object), allow_pickle=True)


@pytest.mark.fault(24)
def test_a_pickled_array_among_images_is_no_image(tiny_overrides, tmp_path, sentinel, capsys):
    (tmp_path / "photos").mkdir()
    pickled_array(tmp_path / "photos" / "picture.npy", Payload(sentinel))
    (tmp_path / "photos" / "picture.png").write_bytes(pickle.dumps(Payload(sentinel)))
    settings = [f"data.path={tmp_path / 'photos'}", f"data.cache={tmp_path / 'cache'}", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *tiny_overrides, *settings]) == 2
    assert "Traceback" not in capsys.readouterr().err


CONFIGURATIONS = {
    "a target to call": "model:\n  _target_: os.system\n  _args_: ['touch {}']\n",
    "a loss to load": "loss:\n  name: torch.load\n  f: {}\n  weights_only: false\n",
    "a loss elsewhere": "loss:\n  name: ../../evil\n",
    "a loss module of torch": "loss:\n  name: torch.hub\n",
    "a tag of Python": "name: !!python/object/apply:os.system ['touch {}']\n",
    "a resolver of the environment": "name: ${{oc.env:HOME}}\n",
    "a resolver inside a resolver": "name: ${{oc.decode:${{oc.env:HOME}}}}\n",
    "a resolver that creates": "name: '${{oc.create:{{a: 1}}}}'\n",
    "a target beside": "_target_: subprocess.run\n_args_: [['touch', '{}']]\n",
    "an anchor that unfolds": "name: &a [*b, *b]\n",
}


@pytest.fixture
def evil_config(tmp_path, monkeypatch):
    """Write an experiment from elsewhere, and let `experiment=evil` find it."""

    def write(text: str) -> None:
        shutil.copytree(commands.CONFIGS, tmp_path / "configs")
        (tmp_path / "configs" / "experiment" / "evil.yaml").write_text(f"# @package _global_\n{text}")
        monkeypatch.setattr(commands, "CONFIGS", tmp_path / "configs")

    return write


@pytest.mark.fault(30)
@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_hostile_configuration_is_refused(evil_config, tiny_overrides, tmp_path, sentinel, capsys, configuration):
    evil_config(configuration.format(sentinel))
    assert main(["train", "experiment=evil", *tiny_overrides, f"run_dir={tmp_path / 'run'}"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert not (tmp_path / "run").exists()


@pytest.fixture
def evil_hydra(tiny_overrides, tmp_path, sentinel):
    """The words of a command with an experiment from elsewhere, where a part of Hydra is a function to be called."""

    def words(*names: str) -> list[str]:
        part = {"_target_": "numpy.savetxt", "fname": str(sentinel), "X": [1]}
        for name in reversed(names):
            part = {name: part}
        (tmp_path / "elsewhere" / "experiment").mkdir(parents=True)
        text = f"# @package _global_\n{json.dumps({'hydra': part})}\n"
        (tmp_path / "elsewhere" / "experiment" / "evil.yaml").write_text(text)
        folder = ["--config-dir", str(tmp_path / "elsewhere")]
        return [*folder, "experiment=evil", "-m", *tiny_overrides, f"run_dir={tmp_path / 'run'}"]

    return words


@pytest.mark.fault(30)
@pytest.mark.parametrize("part", ["launcher", "sweeper"])
def test_hydras_own_part_of_a_hostile_configuration_is_refused(evil_hydra, tmp_path, capsys, part):
    assert main(["train", *evil_hydra(part)]) == 2
    assert f"Key 'fname' not in 'Basic{part.capitalize()}Conf'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.fault(30)
def test_a_callback_of_a_hostile_configuration_is_not_called(evil_hydra, tmp_path):
    """By Hydra itself, in the process of the one job."""
    command = [sys.executable, "train.py", *evil_hydra("callbacks", "evil")]
    ended = subprocess.run(command, cwd=commands.CONFIGS.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "This configuration names code to call (hydra.callbacks)." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.fault(30)
def test_the_configuration_in_a_run_directory_is_never_executed(run_dir, tiny_overrides, sentinel):
    (run_dir / "config.yaml").write_text(f"!!python/object/apply:os.system ['touch {sentinel}']\n")
    assert main(["inspect", f"run={run_dir}"]) == 0
    assert main(["sample", f"run={run_dir}", "seeds=1", f"out={run_dir / 'x.png'}", "device=cpu"]) == 0
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 0


@pytest.mark.fault(10)
def test_tensorboard_is_never_suggested_to_other_machines():
    root = commands.CONFIGS.parent
    for path in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("pggan/**/*.py"), root / "Makefile"]:
        text = path.read_text()
        assert "tensorboard --logdir" not in text or "--host" not in text, path
        assert "--bind_all " not in text or path.name == "reliability.md", path
