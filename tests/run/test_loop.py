"""Events of a run: what is due after a step, and opening the run again after numbers or memory failed."""

import os
import signal
from pathlib import Path

import pytest
import torch

from pggan.checkpoints.write import NonFiniteError
from pggan.core.errors import EXIT_INTERRUPTED, StepFailed, UserError
from pggan.distributed.process_group import PeerLost, ProcessGroup, RankInfo
from pggan.run import pictures, train


@pytest.mark.slow
def test_pictures_for_which_there_is_no_memory_are_left_out(tiny_config, tmp_path, monkeypatch, capsys):
    """Other programs may take a device's memory at any time; what a step needs, this one holds already."""

    def draw_seeds(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 3 GiB.")

    monkeypatch.setattr(pictures, "draw_seeds", draw_seeds)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "monitor.grid_images=96")) == 0
    said = (tmp_path / "train.log").read_text()
    assert "Pictures of 96 images are left out: CUDA out of memory. Tried to allocate 2.00 GiB.\n" in said
    assert [*(tmp_path / "checkpoints").iterdir()]


def test_a_run_that_fails_at_one_position_after_another_is_given_up_too(tiny_config, tmp_path, after_step):
    """Three times it is opened again, with what is left of it."""
    failed: list[int] = []

    def fail(state) -> None:
        if state.images > 64 and state.images not in failed:
            failed.append(state.images)
            raise NonFiniteError("a weight")

    after_step(fail)
    with pytest.raises(UserError, match=r"^A rollback to 64 images did not help\. .* at 96 images: a weight"):
        train.run(tiny_config(f"run_dir={tmp_path}"))
    assert failed == [72, 80, 88, 96]


def test_where_memory_no_longer_suffices_the_run_goes_on_with_half_of_the_images_per_pass(
    tiny_config, tmp_path, after_step
):
    """At the first step, before there is a checkpoint, and once more later."""
    failed: list[int] = []

    def fail(state) -> None:
        if state.images in (8, 80) and state.images not in failed:
            failed.append(state.images)
            raise StepFailed("Out of memory.", "Use less.", {"micro_batch_size": 4})

    after_step(fail)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}", "resume=never")) == 0
    assert failed == [8, 80]
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("The run continues with compute.micro_batch_size=4") == 2
    assert log.count("Resuming from 64 images") == 1
    assert "micro_batch_size: 4" in (tmp_path / "run" / "config.yaml").read_text()

    def fail_to_capture(state) -> None:
        if not failed[2:]:
            failed.append(state.images)
            os.kill(os.getpid(), signal.SIGTERM)  # a signal in a step that fails stops the run, too
            raise StepFailed("CUDA can't capture a step.", "Set it.", {"cuda_graphs": "off"})

    after_step(fail_to_capture)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'eager'}")) == EXIT_INTERRUPTED
    assert "cuda_graphs: 'off'" in (tmp_path / "eager" / "config.yaml").read_text()

    def fail_for_good(state) -> None:
        raise StepFailed("Out of memory.", "Use less.")

    after_step(fail_for_good)
    with pytest.raises(StepFailed, match="Use less"):
        train.run(tiny_config(f"run_dir={tmp_path / 'other'}"))


def test_restarted_ranks_resume_their_run_although_resume_is_never(tiny_config, tmp_path, after_step):
    """With the smaller micro-batches of before; torchrun's store outlives the ranks."""
    kept, failed, compared = torch.distributed.HashStore(), [], {}

    def fail(state) -> None:
        if state.images in (8, 80) and state.images not in failed:
            failed.append(state.images)
            lost = PeerLost("It was killed.")
            raise lost if state.images == 80 else StepFailed("Out of memory.", "Use less.", {"micro_batch_size": 4})

    def start() -> int:
        config = tiny_config(f"run_dir={tmp_path}", "resume=never")
        group = ProcessGroup(RankInfo(0, 1, 0, 1), torch.device("cpu"), None, kept=kept)
        group.require_equal_weights = compared.update
        return train.train(config, lambda resolution: Path(config.data.path), group)

    after_step(fail)
    with pytest.raises(PeerLost):
        start()
    assert start() == 0
    assert "Resuming from 64 images" in (tmp_path / "train.log").read_text()
    assert "micro_batch_size: 4" in (tmp_path / "config.yaml").read_text()
    assert {*compared} == {"G", "D"}
