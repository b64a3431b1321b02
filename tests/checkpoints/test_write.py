"""Checkpoints are written as a whole or not at all, and removed when they are no longer needed."""

import pytest
from safetensors import SafetensorError

from pggan.checkpoints.read import COMPONENTS, checkpoints_of, choose_checkpoint, newest_checkpoint
from pggan.checkpoints.write import NonFiniteError, prune, write_checkpoint
from pggan.core.atomic_io import clean_partials
from pggan.run.inspect import facts_of_run


def test_leftovers_of_a_killed_process_are_removed(run_dir, newest):
    half = run_dir / "checkpoints" / ".partial-000000064"
    half.mkdir()
    (half / "generator.safetensors").write_bytes(b"half")
    (run_dir / ".partial-generator.safetensors").write_bytes(b"half")
    (run_dir / "checkpoints" / ".partial-link").symlink_to(newest)
    clean_partials(run_dir)
    clean_partials(run_dir / "checkpoints")
    assert not list(run_dir.rglob(".partial-*"))
    checkpoint, _ = newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert checkpoint.images == 160


def test_a_checkpoint_killed_while_its_successor_takes_its_name_is_put_back(run_dir, newest):
    before = facts_of_run(run_dir)
    newest.rename(run_dir / "checkpoints" / ".replaced-000000160")
    clean_partials(run_dir / "checkpoints")
    assert facts_of_run(run_dir) == before


def test_a_failed_save_keeps_what_was_there(run_dir, snapshot_of, monkeypatch):
    before, snapshot = facts_of_run(run_dir), snapshot_of(run_dir, 199)
    generator = (run_dir / "generator.safetensors").read_bytes()

    def full_disk(*arguments, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="No space") as caught:
        write_checkpoint(run_dir, snapshot)
    assert caught.value.errno == 28
    assert facts_of_run(run_dir) == before
    assert (run_dir / "generator.safetensors").read_bytes() == generator
    assert not list(run_dir.rglob(".partial-*"))


@pytest.mark.parametrize("component", COMPONENTS)
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


def test_the_newest_and_the_milestones_are_kept_and_what_lies_ahead_is_removed(run_dir, snapshot_of):
    for images, milestone in ((168, True), (176, False), (184, False), (192, True), (200, False)):
        write_checkpoint(run_dir, snapshot_of(run_dir, images, milestone))
    (run_dir / "checkpoints" / "000000999").mkdir()
    prune(run_dir, newest=200, keep=2)
    assert [path.name for path in checkpoints_of(run_dir)] == ["000000168", "000000184", "000000192", "000000200"]


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


def test_whoever_may_read_one_file_of_a_run_may_read_all(run_dir, newest):
    files = [run_dir / "generator.safetensors", *newest.iterdir()]
    assert len({file.stat().st_mode for file in files}) == 1
