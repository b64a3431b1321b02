"""Permissions and errors of safetensors files."""

import os
import stat

import pytest
import torch
from safetensors import safe_open

from pggan.checkpoints.generator_file import save_tensors


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_a_file_has_the_permissions_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        save_tensors({"a": torch.arange(3)}, tmp_path / "new.safetensors", {"about": "x"})
        (tmp_path / "plain").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new.safetensors", "plain")]
    assert modes == [0o666 & ~mask] * 2
    with safe_open(tmp_path / "new.safetensors", "pt") as file:
        assert file.metadata() == {"about": "x"}
        assert file.get_tensor("a").tolist() == [0, 1, 2]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    path = tmp_path / "kept.safetensors"
    path.touch()
    path.chmod(0o604)
    save_tensors({"a": torch.zeros(1)}, path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_what_the_system_refuses_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        save_tensors({"a": torch.zeros(1)}, tmp_path / "nowhere" / "a.safetensors", {})
