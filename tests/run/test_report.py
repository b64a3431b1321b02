"""Speed, time left and alarms, from numbers that can be checked by hand."""

import errno
import json
import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from pggan.checkpoints import write as saving
from pggan.run import train
from pggan.run.eta import Eta
from pggan.run.report import MAX_QUEUE, Reporter, without_copies
from pggan.sampling.images import save_png
from pggan.training.timing import PhaseTimes
from tests.losses.critics import WGAN_GP


def even_pace(schedule, images=0):
    """The time left where every image is expected to take as long as every other."""
    return Eta(schedule, PhaseTimes((1.0,) * len(schedule.phases), measured=frozenset()), images, 0.0)


def test_the_first_tick_after_a_resume_counts_the_images_and_seconds_since_then(tiny_config, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pggan.run.report.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    schedule = tiny_config().schedule.build()
    reporter = Reporter(tmp_path, schedule, even_pace(schedule), torch.device("cpu"), images=160)
    with reporter:
        now[0] = 500.0  # the run was rolled back, say
        reporter.restart(96)
        for images in (112, 128):
            now[0] += 4.0
            reporter.tick(images, schedule.at(images - 1), {"G/loss": 1.0, "D/loss": math.nan})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["images_per_second"] for line in lines] == [4.0, 4.0]
    assert lines[1]["eta_seconds"] == pytest.approx(32 / 4.0)
    assert lines[0]["D/loss"] is None
    assert "4.0 img/s" in (tmp_path / "train.log").read_text()


def test_what_an_interrupted_run_wrote_beyond_its_checkpoint_is_dropped(tiny_config, tmp_path):
    lines = [json.dumps({"images": images}) for images in (8, 16, 24)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"images": 3']))
    schedule = tiny_config().schedule.build()
    with Reporter(tmp_path, schedule, even_pace(schedule), torch.device("cpu"), images=16):
        pass
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines[:2]


def test_gs_only_term_is_left_out_and_of_several_none():
    numbers = {"D/wasserstein": 1.0, "G/loss": 2.0, "G/wasserstein": 2.0, "G/gradient_norm": 3.0}
    assert without_copies(numbers, WGAN_GP.terms_of_g) == {"D/wasserstein": 1.0, "G/loss": 2.0, "G/gradient_norm": 3.0}
    several = numbers | {"G/class_loss_fakes": 0.5}
    assert without_copies(several, WGAN_GP.terms_of_g) == several


# ---- pictures --------------------------------------------------------------------------------------------


PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.fixture
def reporter(tiny_config, tmp_path):
    schedule = tiny_config().schedule.build()
    return Reporter(tmp_path, schedule, even_pace(schedule), torch.device("cpu"), images=0)


def pictures_in(run_dir):
    """(step, tag, bytes) of all pictures in the event files, in their order there."""
    found = []
    for path in sorted(run_dir.glob("events*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            found += [(event.step, value.tag, value.image.encoded_image_string) for value in event.summary.value]
    return found


def test_pictures_are_encoded_once_in_their_order_while_training_goes_on(reporter, tmp_path, monkeypatch):
    """Three wait for the first at most; the one after them waits itself, so that memory does not fill up."""
    go, encoded, result = threading.Event(), [], Future.result

    def slow(picture, path):
        assert go.wait(60)
        encoded.append(threading.current_thread().name)
        return save_png(picture, path)

    monkeypatch.setattr("pggan.run.tensorboard.save_png", slow)
    # As soon as one is waited for, they go on.
    monkeypatch.setattr(Future, "result", lambda self, *rest: go.set() or result(self, *rest))
    with reporter:
        for number in range(MAX_QUEUE):
            reporter.picture("fakes", PICTURE + number, tmp_path / f"{number}.png", number)
        reporter._board.scalar("loss", 1.0, 9)
        assert (encoded, go.is_set()) == ([], False)
        reporter.picture("fakes", PICTURE + MAX_QUEUE, tmp_path / f"{MAX_QUEUE}.png", MAX_QUEUE)
        assert len(encoded) >= 1
    assert [name.split("_")[0] for name in encoded] == ["pictures"] * (MAX_QUEUE + 1)
    shown = [one for one in pictures_in(tmp_path) if one[1] == "fakes"]
    assert shown == [(step, "fakes", (tmp_path / f"{step}.png").read_bytes()) for step in range(MAX_QUEUE + 1)]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "1.png")), PICTURE + 1)


@pytest.mark.parametrize("after", ["tick", "flush", "picture", "end"])
def test_a_picture_that_the_disk_does_not_take_is_told(reporter, tiny_config, tmp_path, monkeypatch, after):
    def full(picture, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pggan.run.tensorboard.save_png", full)
    later = {
        "tick": lambda: reporter.tick(8, tiny_config().schedule.build().at(0), {}),
        "flush": reporter.flush,
        "picture": lambda: reporter.picture("fakes", PICTURE, tmp_path / "1.png", 1),
        "end": lambda: reporter.__exit__(None),
    }
    with suppress(OSError), reporter:
        reporter.picture("fakes", PICTURE, tmp_path / "0.png", 0)
        wait([*reporter._pictures])
        with pytest.raises(OSError, match="No space"):
            later[after]()


def test_a_checkpoint_is_written_after_the_pictures_before_it(tiny_config, tmp_path, monkeypatch):
    """Or a run that is killed and resumed from it would never have them."""
    found, write = {}, saving.write_checkpoint

    class Encoder(ThreadPoolExecutor):
        """Begins with a picture when it is waited for."""

        def submit(self, function, *arguments):
            wanted = threading.Event()
            future = super().submit(lambda: wanted.wait(60) and function(*arguments))
            result = future.result
            future.result = lambda: wanted.set() or result()
            return future

    def noting(run_dir, snapshot):
        found[snapshot.images] = {int(path.stem[6:]) for path in run_dir.glob("samples/fakes-*.png")}
        write(run_dir, snapshot)

    monkeypatch.setattr("pggan.run.report.ThreadPoolExecutor", Encoder)
    monkeypatch.setattr(saving, "write_checkpoint", noting)
    often = ["monitor.grid_images=16", "checkpoint.every_images=32", "schedule.total_images=48"]
    assert train.run(tiny_config(*often, f"run_dir={tmp_path}")) == 0
    assert {images: taken >= set(range(0, images + 1, 16)) for images, taken in found.items()} == {
        16: True,
        32: True,
        48: True,
    }
