"""Files made to harm: nothing in them is executed, nothing outside is read, nothing large is allocated for them."""

import io
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import CorruptCheckpoint, checkpoints_of, open_checkpoint
from pggan.cli.main import main
from pggan.core.errors import UserError
from tests.checkpoints.conftest import reseal


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


@pytest.fixture
def sentinel(tmp_path):
    """A path at which nothing may have appeared, and beyond it a secret that nothing may show."""
    path = tmp_path / "executed"
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    yield path
    assert not path.exists(), "code in a file was executed"


def safetensors(header: object, body: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


def pickled_zip(payload: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weights": payload}, buffer)
    return buffer.getvalue()


def entry(shape: list[int], last: int) -> dict:
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, last]}


PAYLOADS = {
    "torch.save's zip": lambda path: pickled_zip(Payload(path)),
    "a pickle after a valid header": lambda path: safetensors({}, pickle.dumps(Payload(path))),
    "a tensor of 2**60 numbers": lambda path: safetensors({"weight": entry([2**30, 2**30], 2**62)}),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_is_refused_when_training_goes_on_and_in_place_of_a_generator(
    run_dir, tiny_overrides, tmp_path, sentinel, capsys, payload
):
    for directory in checkpoints_of(run_dir):
        part = "weights" if directory.name == "000000160" else "state"
        (directory / f"{part}.safetensors").write_bytes(payload(sentinel))
        reseal(directory)
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 2
    shown = capsys.readouterr().err
    assert f"run_dir={run_dir} has no valid checkpoint: " in shown or "checkpoints/000000160 does not" in shown
    file = tmp_path / "generator.safetensors"
    file.write_bytes(payload(sentinel))
    assert main(["sample", f"run={file}", "seeds=[1,2]", f"out={tmp_path / 'out.png'}", "device=cpu"]) == 2
    assert "is not a valid generator file of pggan" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()


def test_payloads_are_refused_on_every_other_way_in(run_dir, tmp_path, tiny_overrides, sentinel, capsys):
    for directory in checkpoints_of(run_dir):
        (directory / "weights.safetensors").write_bytes(pickled_zip(Payload(sentinel)))
        reseal(directory)
    new = ["train", *tiny_overrides, f"run_dir={tmp_path / 'new'}"]
    for words in ([*new, f"init_from={run_dir}"], [*new, f"resume={run_dir}"], ["inspect", f"run={run_dir}"]):
        assert main(words) == 2
        assert "valid checkpoint" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


CHANGES = {
    "a name with ..": {"files": {"../../../secret": ""}},
    "alpha above 1": {"alpha": 3},
    "a giant latent": {"architecture": {"latent_size": 2**40}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_state_file_that_lies_is_passed_over_without_reading_outside(run_dir, sentinel, changes):
    directory = checkpoints_of(run_dir)[-1]
    reseal(directory, **changes)
    with pytest.raises(CorruptCheckpoint) as caught:
        open_checkpoint(directory)
    assert "secretsecret" not in str(caught.value)


# ---- exported files, data sets, configurations


EXPORTED = {
    "giant widths": {"architecture": {"fmap_max": 2**16, "fmap_base": 2**24}},
    "a resolution without layers": {"resolution": 32},
    "alpha that is none": {"alpha": "__import__('os').system('true')"},
}


@pytest.mark.parametrize("lie", EXPORTED.values(), ids=EXPORTED)
def test_an_exported_file_that_lies_is_refused(run_dir, tmp_path, lie):
    with safe_open(run_dir / "generator.safetensors", "pt") as opened:
        about = json.loads(opened.metadata()["pggan"])
    if lie.get("architecture"):
        lie = {"architecture": about["architecture"] | lie["architecture"]}
    tensors, file = load_file(run_dir / "generator.safetensors"), tmp_path / "lie.safetensors"
    save_file(tensors, file, metadata={"pggan": json.dumps(about)})
    assert load_generator(str(file), torch.device("cpu")).images == 160
    save_file(tensors, file, metadata={"pggan": json.dumps(about | lie)})
    with pytest.raises(UserError, match="not a valid generator"):
        load_generator(str(file), torch.device("cpu"))


def test_images_that_are_pickles_are_refused(tiny_overrides, tmp_path, sentinel, capsys):
    (tmp_path / "data").mkdir()
    for name in ("a.npy", "b.png"):
        (tmp_path / "data" / name).write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    words = [f"data.path={tmp_path / 'data'}", f"data.cache={tmp_path / 'cache'}", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *tiny_overrides, *words]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_configuration_in_a_run_directory_is_never_executed(run_dir, tiny_overrides, sentinel):
    (run_dir / "config.yaml").write_text(f"!!python/object/apply:os.system ['touch {sentinel}']\n")
    assert main(["inspect", f"run={run_dir}"]) == 0
    assert main(["sample", f"run={run_dir}", "seeds=1", f"out={run_dir / 'x.png'}", "device=cpu"]) == 0
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 0
