"""Evaluations during training: when they come, what they leave, and that training does not notice them."""

import json
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from pggan.checkpoints.read import checkpoints_of, choose_checkpoint, mark_of, open_checkpoint
from pggan.cli.main import main
from pggan.config.train import EvaluationConfig
from pggan.core.errors import UserError
from pggan.run import train
from pggan.run.evaluation import is_better
from pggan.run.inspect import facts_of_run
from pggan.run.summary import last_quality, records_of
from tests.processes import in_processes, values_of

EVERY = ["evaluation.metrics=[swd]", "evaluation.interval_images=48", "evaluation.count=16", "checkpoint.keep=1"]
# Of 8x8 and above: at 4x4 there is no SWD.  48 is in the first fade, 96 the end of 8x8, 144 and 160 are of 16x16.
POINTS = [48, 96, 144, 160]
MEAN = "metrics/swd/mean@patches-16"


def evaluations_in(run_dir: Path) -> dict[int, dict[str, float]]:
    """The numbers of each evaluation, by images."""
    found = {line["images"]: {name: line[name] for name in line if "@" in name} for line in records_of(run_dir)}
    return {images: values for images, values in found.items() if values}


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory, tiny_config) -> Path:
    """A run of 160 images, evaluated every 48; not to be written to."""
    run_dir = tmp_path_factory.mktemp("evaluated") / "run"
    assert train.run(tiny_config(f"run_dir={run_dir}", *EVERY)) == 0
    return run_dir


@pytest.mark.parametrize(("share", "points"), [(1e-9, [64, 160]), (1e9, [64, 96, 128, 160])])
def test_evaluations_keep_to_their_share_but_for_the_first_and_the_end(
    tiny_config, tmp_path, monkeypatch, share, points
):
    monkeypatch.setattr(EvaluationConfig, "max_share", share)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "evaluation.metrics=[swd]", "evaluation.count=16")) == 0
    assert list(evaluations_in(tmp_path)) == points  # at 4x4 there is no SWD


def test_a_later_stage_of_growth_is_better_than_a_lower_number():
    def mark(resolution, fading, value, metric="swd"):
        return {"metric": metric, "value": value, "resolution": resolution, "fading": fading}

    assert is_better(mark(16, True, 9.0), mark(8, False, 1.0))
    assert is_better(mark(16, False, 9.0), mark(16, True, 1.0))
    assert not is_better(mark(16, False, 2.0), mark(16, False, 1.0))
    assert is_better(mark(16, False, 2.0, "kid"), mark(16, False, 1.0))


def test_training_does_not_notice_evaluations(evaluated_run, finished_run):
    assert facts_of_run(evaluated_run)["state_sha256"] == facts_of_run(finished_run)["state_sha256"]


def test_the_best_checkpoint_is_that_of_the_lowest_number_at_the_highest_resolution(evaluated_run):
    found = evaluations_in(evaluated_run)
    best = min((144, 160), key=lambda images: found[images][MEAN])
    place = Path(choose_checkpoint(str(evaluated_run), "best"))
    assert int(place.name) == best
    assert facts_of_run(evaluated_run)["best_checkpoint"] == str(place)
    mark = {"metric": "swd/mean@patches-16", "value": found[best][MEAN], "resolution": 16, "fading": False}
    assert mark_of(place, "best") == mark
    assert {int(path.name) for path in place.parent.iterdir()} == {best, 160}


def test_pggan_evaluate_finds_the_same_numbers_in_fades_too(tiny_config, tmp_path, capsys):
    kept = ["checkpoint.every_images=8", "checkpoint.keep=20"]
    assert train.run(tiny_config(f"run_dir={tmp_path}", *EVERY, *kept)) == 0
    here, words = evaluations_in(tmp_path), ["metrics=[swd]", "count=16", "json=true", "device=cpu"]
    for images, fades in ((48, True), (96, False)):
        capsys.readouterr()
        assert main(["evaluate", f"run={tmp_path}", f"checkpoint={images}", *words]) == 0
        (there,) = json.loads(capsys.readouterr().out)["evaluations"]
        assert (there["alpha"] < 1) == fades
        assert {f"metrics/{name}": value for name, value in there["metrics"].items()} == here[images]


@pytest.mark.slow
def test_a_run_that_was_killed_after_its_best_has_each_point_once_and_the_same_best(
    evaluated_run, tiny_config, tmp_path, after_step
):
    """It dies after the checkpoint of 144 images at the latest, and what it did since the checkpoint comes again."""
    config = tiny_config(f"run_dir={tmp_path}", *EVERY)
    for at in (56, 152):

        def die(state, at=at) -> None:
            if state.images == at:
                raise RuntimeError("killed")

        after_step(die)
        with pytest.raises(RuntimeError, match="killed"):
            train.run(config)
    after_step(lambda state: None)
    assert train.run(config) == 0
    assert evaluations_in(tmp_path) == evaluations_in(evaluated_run)
    both = [Path(choose_checkpoint(str(run), "best")) for run in (tmp_path, evaluated_run)]
    assert both[0].name == both[1].name
    assert mark_of(both[0], "best") == mark_of(both[1], "best")
    is_last = both[1].name == checkpoints_of(evaluated_run)[-1].name
    assert is_last != ("; checkpoint=best: " in last_quality(evaluated_run))


@pytest.mark.slow
def test_the_best_of_checkpoints_that_are_damaged_is_not_the_one_to_beat(evaluated_run, tiny_config, tmp_path):
    """The run goes back before them; without the mark of a lost one, what comes again is the best again."""
    config = tiny_config(f"run_dir={tmp_path}", *EVERY, "checkpoint.keep=9")
    assert train.run(config) == 0
    for directory in checkpoints_of(tmp_path):
        if int(directory.name) >= 144:
            (directory / "weights.safetensors").write_bytes(b"")
    assert train.run(config) == 0
    best = [open_checkpoint(Path(choose_checkpoint(str(run), "best"))) for run in (tmp_path, evaluated_run)]
    assert best[0].images == best[1].images


@contextmanager
def files_of_at_most(size):
    """Inside, the system refuses what is written beyond `size` bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_evaluation_without_room_is_left_out_with_a_line(tiny_config, tmp_path):
    """Without a disk for a megabyte of patches."""
    short = ["schedule.first_resolution=8", "schedule.final_resolution=8", "schedule.total_images=56"]
    with files_of_at_most(2**20):
        assert train.run(tiny_config(f"run_dir={tmp_path}", *EVERY, *short)) == 0
    assert evaluations_in(tmp_path) == {}
    log = (tmp_path / "train.log").read_text()
    assert all(f"No evaluation at {images} images" in log for images in (48, 56))
    with pytest.raises(UserError, match="has no checkpoint=best"):
        choose_checkpoint(str(tmp_path), "best")


def test_what_an_evaluation_needs_is_missed_before_the_start(tiny_config, tmp_path):
    words = ["evaluation.metrics=[fid]", "evaluation.extractor=no_such_module:build"]
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (16, 16)).save(pictures / "0.png")
    data = [f"data.path={pictures}", f"data.cache={tmp_path / 'cache'}"]
    with pytest.raises(UserError, match="no_such_module"):
        train.run(tiny_config(f"run_dir={tmp_path}", *words, *data))
    assert not (tmp_path / "cache").exists()  # no image was prepared
    with pytest.raises(UserError, match=r"There is no metrics=kdi(?s:.*)'kid'"):
        train.run(tiny_config(f"run_dir={tmp_path}", "evaluation.metrics=[kdi]"))
    assert not (tmp_path / "metrics.jsonl").exists()


def _train_with_share(share, config) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaluationConfig, "max_share", share if os.environ.get("RANK", "0") == "0" else 0.0)
        assert train.run(config) == 0


@pytest.mark.slow
def test_two_ranks_evaluate_together_when_the_clock_of_one_says_so(tiny_config, tmp_path):
    """In elastic training, which has the bits of one rank that does not evaluate."""
    short, often = ["elastic=true", "schedule.total_images=96"], ["evaluation.count=16", "evaluation.metrics=[swd]"]
    two, one = tmp_path / "two", tmp_path / "one"
    values_of(in_processes(2, _train_with_share, 1e9, tiny_config(f"run_dir={two}", *short, *often)))
    assert train.run(tiny_config(f"run_dir={one}", *short)) == 0
    assert facts_of_run(two)["state_sha256"] == facts_of_run(one)["state_sha256"]
    assert list(evaluations_in(two)) == [64, 96]  # at 4x4 there is no SWD
    assert not evaluations_in(one)
