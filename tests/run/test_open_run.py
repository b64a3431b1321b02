"""What is found out and announced when a run is opened."""

from types import SimpleNamespace

import pytest
import torch

from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.run.open_run import few_images, idle_cores, values_of_all_ranks


def test_elastic_training_says_how_to_use_all_cores(tiny_config, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = ProcessGroup.single_process(torch.device("cpu"))

    def notes(config, cores):
        batches = (phase.batch for phase in config.schedule.build().phases)
        return idle_cores(config, BatchPartition.of(config, batches, 1), alone, cores)

    elastic = tiny_config("elastic=true", "distributed.elastic_chunks=3", "schedule.batch=16")
    (note,) = notes(elastic, 8)
    assert "devices=cpu:2" in note  # of 4 groups, at most 2 in each of 3 chunks
    assert not notes(elastic, 1)
    assert not notes(tiny_config("schedule.batch=16"), 8)


@pytest.mark.parametrize(
    ("images", "total", "augmentation", "resumed", "warns"),
    [
        (400, 65_000, "none", False, True),
        (400, 65_000, "ada", False, False),
        (400, 65_000, "none", True, False),
        (400, 400, "none", False, False),
        (4096, 10**6, "none", False, False),
    ],
)
def test_few_images_shown_often_are_a_reason_to_augment(tiny_config, images, total, augmentation, resumed, warns):
    run = SimpleNamespace(
        pyramid=SimpleNamespace(images=images),
        schedule=SimpleNamespace(total=total),
        config=tiny_config(f"augmentation={augmentation}"),
        checkpoint=object() if resumed else None,
    )
    notes = few_images(run)
    assert len(notes) == warns
    if warns:
        assert "each of the 400 images 162 times" in notes[0]
        assert notes[0].endswith("augmentation=ada keeps it from that; pggan train hours= chooses it for photographs.")
        run.config = tiny_config("hours=1")
        assert few_images(run)[0].endswith("augmentation=ada keeps it from that.")  # and hours= has not chosen it


@pytest.mark.parametrize(
    ("key", "same"),
    [("seed", False), ("run_dir", True), ("distributed.nnodes", False)],
)
def test_ranks_may_differ_in_their_own_place_only(key, same):
    first, _, last = key.rpartition(".")
    here = {"seed": 0, "run_dir": "a", "distributed": {"nnodes": 1}, "versions": {"torch": "2"}}
    there = {**here, "distributed": {**here["distributed"]}}
    (there[first] if first else there)[last] = 7
    assert (values_of_all_ranks(here) == values_of_all_ranks(there)) == same
    assert values_of_all_ranks(here) != values_of_all_ranks({**here, "versions": {"torch": "3"}})
    assert values_of_all_ranks(here) == values_of_all_ranks({**here, "versions": {"torch": "2", "pillow": "12"}})


def test_what_the_run_will_do_is_announced(finished_run):
    log = (finished_run / "train.log").read_text()
    for line in (
        f"Run directory  {finished_run}",
        "Data           48 images, 3 channels, up to 16x16",
        "Schedule       4x4 to 16x16, 5 phases, 160 images",
        f"Watch          pggan monitor run={finished_run}",
        "Phase 1 of 5: 4x4 stable, batch 8",
        "Done: 160 images.",
    ):
        assert log.count(line) == 1, line
