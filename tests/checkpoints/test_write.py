"""Checkpoints are written as a whole or not at all, and removed when they are no longer needed."""

import errno
import os
import resource
import stat

import pytest
import torch

from pggan.checkpoints.generator_file import save_tensors
from pggan.checkpoints.read import checkpoints_of, choose_checkpoint
from pggan.checkpoints.write import NonFiniteError, prune, write_checkpoint


@pytest.mark.parametrize("component", ["generator", "optimizer_d"])
def test_numbers_that_are_not_finite_are_never_written(run_dir, snapshot_of, component):
    snapshot = snapshot_of(run_dir, 199)
    tensors = snapshot.state_dicts[component]
    name = max((name for name, tensor in tensors.items() if tensor.ndim), default=min(tensors))
    tensors[name] = tensors[name].float()
    tensors[name].view(-1)[0] = float("nan" if component == "generator" else "inf")
    with pytest.raises(NonFiniteError, match=f"{component}/{name}"):
        write_checkpoint(run_dir, snapshot)
    assert [path.name for path in checkpoints_of(run_dir)] == ["000000128", "000000160"]
    assert not list(run_dir.rglob(".partial-*"))


def test_the_newest_are_kept_and_what_lies_ahead_is_removed(run_dir, snapshot_of):
    for images in (168, 176, 10**9):
        write_checkpoint(run_dir, snapshot_of(run_dir, images))
    (run_dir / "checkpoints" / "1000000009").mkdir()
    prune(run_dir, newest=10**9, keep=2)
    assert [path.name for path in checkpoints_of(run_dir)] == ["000000176", "1000000000"]


def test_the_best_is_kept_until_a_better_one_is_durable(run_dir, snapshot_of):
    """A kill may come between any two of these lines; what a resumed run removes is no longer the best."""

    def left() -> list[int]:
        prune(run_dir, newest=int(checkpoints_of(run_dir)[-1].name), keep=1)
        return [int(path.name) for path in checkpoints_of(run_dir)]

    write_checkpoint(run_dir, snapshot_of(run_dir, 168, best={"value": 3.0}))
    assert left() == [168]
    write_checkpoint(run_dir, snapshot_of(run_dir, 176))
    assert left() == [168, 176]
    write_checkpoint(run_dir, snapshot_of(run_dir, 184, best={"value": 2.0}))
    assert choose_checkpoint(str(run_dir), "best").endswith("000000184")
    prune(run_dir, newest=176, keep=1)  # as after going back to 176
    assert choose_checkpoint(str(run_dir), "best").endswith("000000168")


def test_files_have_the_permissions_of_any_new_file_and_keep_those_that_they_had(tmp_path):
    before = os.umask(0o027)
    try:
        save_tensors({"a": torch.arange(3)}, tmp_path / "new.safetensors", {"about": "x"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.safetensors").stat().st_mode) == 0o640
    (tmp_path / "new.safetensors").chmod(0o604)
    save_tensors({"a": torch.zeros(1)}, tmp_path / "new.safetensors", {})
    assert stat.S_IMODE((tmp_path / "new.safetensors").stat().st_mode) == 0o604


def test_what_the_system_refuses_is_an_error_of_the_system(tmp_path):
    """The library has an error of its own for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_tensors({"a": torch.zeros(2**16)}, tmp_path / "a.safetensors", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
