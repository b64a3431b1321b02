"""Runs with compressed gradients: two processes stay alike, and go on to the same bits."""

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.optim.compression import WarmUp
from pggan.optim.dgc import DgcReducer
from pggan.optim.state import new_state
from pggan.run import train
from tests.definitions import ADAM, variant
from tests.processes import in_processes, values_of

CPU = torch.device("cpu")
PAPER_LIKE = variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8)

DGC = ("gradients=dgc", "gradients.ratio=0.1", "gradients.warmup_images=16", "devices=cpu")


def states(run_dir):
    checkpoint, broken = newest_checkpoint(run_dir)
    assert not broken
    return checkpoint


@pytest.mark.slow
def test_a_run_goes_on_with_what_had_not_been_sent(tiny_config, tmp_path):
    whole = tiny_config(f"run_dir={tmp_path / 'whole'}", *DGC)
    first = tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=72", *DGC)
    rest = tiny_config(f"run_dir={tmp_path / 'parts'}", *DGC)
    for config in (whole, first):
        assert values_of(in_processes(2, launch.run, config)) == [0, 0]
    stopped = states(tmp_path / "parts")
    assert stopped.images == 72
    kept = stopped.load("compression")
    assert {name.split("/")[0] + name.split("/")[1] for name in kept} == {"g0", "g1", "d0", "d1"}
    assert kept["d/0/residual"].count_nonzero() > 0
    assert not kept["d/0/residual"].equal(kept["d/1/residual"])  # each process waits with its own
    assert values_of(in_processes(2, launch.run, rest)) == [0, 0]
    assert states(tmp_path / "parts").header["state_sha256"] == states(tmp_path / "whole").header["state_sha256"]
    # Alone, nothing is compressed: Adam begins anew, the weights go on.
    alone = tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=176", *DGC)
    assert train.run(alone) == 0
    assert states(tmp_path / "parts").images == 176


def test_more_processes_get_the_mean_of_what_fewer_had_kept():
    state = new_state(PAPER_LIKE, ADAM, 0, CPU, sparse=True)
    group = ProcessGroup(RankInfo(2, 3, 2, 3), CPU, None, None)
    exchange = DgcReducer(group, state, ADAM, warm_up=WarmUp(ratio=0.1, images=0), clip=None)
    names = ("residual", "mean_square", "steps")
    kept = {f"d/{rank}/{name}": torch.full((5,), float(rank + 1)) for rank in (0, 1) for name in names[:2]}
    kept |= {f"d/{rank}/steps": torch.tensor(7.0) for rank in (0, 1)}
    reducer.load_parts({"compression": kept, "generator": {}})
    found = reducer._compressors["d"].tensors()
    assert (
        found["residual"].tolist() == found["mean_square"].tolist() == [1.5] * 5
    )  # what waits, in the mean of all, is what it was
    assert float(found["steps"]) == 7
