"""A run composed of its parts: what is found out and announced when it is opened."""

from types import SimpleNamespace

import pytest

from pggan.run.compose import few_images, values_of_all_ranks


def test_few_images_shown_often_are_a_reason_to_augment(tiny_config):
    def notes(images=400, total=65_000, augmentation="none", hours="null", checkpoint=None):
        pyramid, schedule = SimpleNamespace(images=images), SimpleNamespace(total=total)
        source = SimpleNamespace(pyramid=pyramid, schedule=schedule, checkpoint=checkpoint)
        return few_images(tiny_config(f"augmentation={augmentation}", f"hours={hours}"), source)

    (note,) = notes()
    assert "each of the 400 images 162 times" in note
    assert note.endswith("augmentation=ada keeps it from that; pggan train hours= chooses it for photographs.")
    assert notes(hours="1")[0].endswith("augmentation=ada keeps it from that.")  # and hours= has not chosen it
    for silent in ({"augmentation": "ada"}, {"checkpoint": object()}, {"total": 400}, {"images": 4096}):
        assert notes(**silent) == []


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
