"""Programs of `torch.export`."""

import pytest
import torch
import torch.nn.functional as F

from pggan.interop.export.torch_program import write_torch_program


@pytest.mark.slow
def test_a_program_draws_what_the_network_draws_in_batches_of_any_size(make_network, tmp_path):
    network, path = make_network(num_classes=3, noise=True), tmp_path / "a.pt2"
    assert write_torch_program(network, path, 8, 0.5, {"pggan": "{}"}) < 1e-4
    module, extra = torch.export.load(path).module(), {"pggan": ""}
    for count in (1, 7):  # 7 images have more numbers than the smallest weights, on which a kernel's choice depends
        latents, labels = torch.randn(count, 6), F.one_hot(torch.arange(count) % 3, 3).float()
        assert torch.allclose(module(latents, labels), network(latents, labels, 8, 0.5), atol=1e-4)
    torch.export.load(path, extra_files=extra)
    assert extra["pggan"] == "{}"
