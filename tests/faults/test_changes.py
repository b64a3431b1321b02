"""Resuming with something changed, and beginning with the weights of another run."""

import hashlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import newest_checkpoint, write_header
from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, UserError
from pggan.run import train
from pggan.run.inspect import facts_of_run
from tests.conftest import TINY
from tests.data.images import save


@pytest.fixture(scope="module")
def stopped_once(tiny_config, tmp_path_factory) -> Path:
    """A run that ended at 104 of 160 images."""
    run_dir = tmp_path_factory.mktemp("stopped")
    assert train.run(tiny_config(f"run_dir={run_dir}", "schedule.total_images=104")) == 0
    return run_dir


@pytest.fixture
def stopped(stopped_once, tmp_path) -> Path:
    """The same, to write to."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def changed_lines(run_dir: Path) -> list[str]:
    log = (run_dir / "train.log").read_text()
    return re.findall(r"Changed since the checkpoint: (.*)", log)


ALLOWED = {
    "monitor.tick_images=16": "monitor.tick_images: 32 -> 16",
    "schedule.learning_rate_d=0.0005": "schedule.learning_rate_d: 0.001 -> 0.0005",
    "schedule.total_images=168": "schedule.total_images: 104 -> 168",
    "schedule.batch={4: 8, 16: 4}": "schedule.batch: 8 -> {'4': 8, '16': 4}",
    "loss.penalty_weight=5": "loss.penalty_weight: 10.0 -> 5.0",
}

REFUSED = {
    "seed=1": ("seed", "seed: 0 -> 1"),
    "loss=logistic": ("loss.name", "loss.name: wgan_gp -> logistic"),
    "schedule.stable_images=40": ("schedule", "schedule.stable_images: 32 -> 40"),
}


def test_changes_that_are_allowed_are_named_and_nothing_else_is(stopped, tiny_config):
    try:
        assert train.run(tiny_config(f"run_dir={stopped}", *ALLOWED, "threads=2")) == 0
    finally:
        torch.set_num_threads(1)
    assert sorted(changed_lines(stopped)) == sorted([*ALLOWED.values(), "threads: None -> 2"])


@pytest.mark.parametrize(("change", "answer"), REFUSED.items())
def test_a_change_that_is_refused_is_named_with_the_reason_and_what_allows_it(stopped, tiny_config, change, answer):
    name, line = answer
    settings = (f"run_dir={stopped}", change, "schedule.total_images=112")  # a step more
    with pytest.raises(UserError, match=rf"(?s){name}: .*{re.escape(line)}.*allow_changes=\[{name}\]"):
        train.run(tiny_config(*settings))
    assert facts_of_run(stopped)["images"] == 104
    assert train.run(tiny_config(*settings, f"allow_changes=[{name}]")) == 0
    assert line in changed_lines(stopped)


def test_other_images_under_the_same_name_are_noticed(tiny_config, make_pyramid, tmp_path):
    data = tmp_path / "data"
    make_pyramid(data)
    config = tiny_config(f"run_dir={tmp_path / 'run'}", f"data.path={data}")
    train.run(tiny_config(f"run_dir={tmp_path / 'run'}", f"data.path={data}", "schedule.total_images=104"))
    shutil.rmtree(data)
    make_pyramid(data, images=47)
    with pytest.raises(UserError, match=r"(?s)data: the data set is not the one.*allow_changes=\[data\]"):
        train.run(config)
    shutil.rmtree(data)
    make_pyramid(tmp_path / "moved")
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'moved'}")) == 0


# ---- resume= and init_from= --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A folder with photos, a run on them of 64 of 96 images, and the whole run."""
    folder = tmp_path_factory.mktemp("begun")
    for number in range(16):
        save(folder / "photos" / f"{number:02d}.png", number)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, images in (("run", 64), ("whole", 96)):
            words = [*TINY, "data.path=photos", f"run_dir={name}", f"schedule.total_images={images}"]
            assert main(["train", *words]) == 0
    config = OmegaConf.load(folder / "run" / "config.yaml")
    config.schedule.total_images = 96
    OmegaConf.save(config, folder / "run" / "config.yaml")
    return folder


@pytest.mark.parametrize("moved", ["renamed", "zipped", "one bad file more", "another directory", "a new run"])
def test_a_run_finds_its_images_wherever_they_are(begun, tmp_path, monkeypatch, capsys, moved):
    """With no keys but those that say where the run and the images are."""
    home, ended = Path(shutil.copytree(begun, tmp_path / "home")), "run"
    monkeypatch.chdir(home)
    words = ["run_dir=run", "data.path=pictures"]
    if moved == "another directory":
        monkeypatch.chdir(tmp_path)
        words = ["run_dir=home/run"]
    elif moved == "one bad file more":
        Path("photos/bad.png").write_bytes(b"bad")
        words = ["run_dir=run"]
    elif moved == "zipped":
        shutil.make_archive("photos", "zip", home, "photos")
        shutil.rmtree("photos")
        words = ["run_dir=run", "data.path=photos.zip"]
    else:
        Path("photos").rename("pictures")
    if moved == "a new run":
        words, ended = ["run_dir=new", "resume=run", "data.path=pictures"], "new"
    assert main(["train", *words]) == 0, capsys.readouterr().err
    found, expected = (facts_of_run(home / name)["state_sha256"] for name in (ended, "whole"))
    assert found == expected


@pytest.mark.parametrize("version", [1, 2])
def test_checkpoints_with_the_fingerprint_of_earlier_versions_resume(stopped, tiny_config, toy_data, version):
    directory = newest_checkpoint(stopped)[0].directory
    header, content = json.loads((directory / "state.json").read_text()), (toy_data / "index.json").read_bytes()
    index = json.loads(content)
    digests = {level: [shard["sha256"] for shard in shards] for level, shards in index["levels"].items()}
    with_names = [index["images"], index["channels"], digests, None, None]
    header["data"] = hashlib.sha256(json.dumps(with_names).encode() if version == 2 else content).hexdigest()
    write_header(directory, header)
    assert train.run(tiny_config(f"run_dir={stopped}")) == 0


def test_a_run_with_a_value_of_a_withdrawn_key_that_no_longer_works_is_refused(stopped, tiny_config, capsys):
    directory = newest_checkpoint(stopped)[0].directory
    header = json.loads((directory / "state.json").read_text())
    header["config"] |= {"optimizer": {"beta1": 0.5, "beta2": 0.99}}
    write_header(directory, header)
    with pytest.raises(UserError, match=r"no longer exist: optimizer\.beta1"):
        train.run(tiny_config(f"run_dir={stopped}"))
    write_header(directory, {**header, "architecture": {**header["architecture"], "fmap_decay": 0.5}})
    with pytest.raises(UserError, match="`pggan sample` can use them"):
        train.run(tiny_config(f"run_dir={stopped}"))
    config, old = stopped / "config.yaml", "augmentation: {name: diffaugment}"
    config.write_text(config.read_text().replace("augmentation:\n  name: none", old))
    assert main(["train", f"run_dir={stopped}"]) == 2
    assert "diffaugment no longer exists.\n  Draw images" in capsys.readouterr().err


def test_resume_with_a_path_continues_in_the_new_directory(stopped, tiny_config, tmp_path, after_step):
    after_step(lambda state: state.images == 128 and os.kill(os.getpid(), signal.SIGTERM))
    config = tiny_config(f"run_dir={tmp_path / 'new'}", f"resume={stopped}")
    assert train.run(config) == EXIT_INTERRUPTED
    assert facts_of_run(stopped)["images"] == 104
    shutil.rmtree(stopped)  # no longer needed
    after_step(lambda state: None)
    assert train.run(config) == 0  # the same command: not from 104 again
    log = (tmp_path / "new" / "train.log").read_text()
    assert "Resuming from 104 images" in log
    assert "Resuming from 128 images" in log
    assert "this run continues from its own newest checkpoint" in log
    assert {*changed_lines(tmp_path / "new")} == {"schedule.total_images: 104 -> None"}


def test_growth_that_hours_has_shortened_is_taken_from_the_checkpoint_and_an_ended_run_needs_more_images(
    stopped, tiny_config, tmp_path
):
    directory = newest_checkpoint(stopped)[0].directory
    header = json.loads((directory / "state.json").read_text())
    header["config"]["schedule"]["stable_images"] = 40  # as if the run had been slower than planned
    write_header(directory, header)
    again = (f"run_dir={tmp_path / 'new'}", f"resume={stopped}", "schedule.stable_images=40")
    with pytest.raises(UserError, match=r"(?s)104 images, .*ends at 104\..*schedule\.total_images="):
        train.run(tiny_config(*again, "schedule.total_images=104"))
    assert train.run(tiny_config(*again, "schedule.total_images=112")) == 0
    assert {*changed_lines(tmp_path / "new")} == {"schedule.total_images: 104 -> 112"}


@pytest.mark.parametrize("kind", ["run", "file"])
def test_init_from_takes_over_weights_only_and_says_so(finished_run, tiny_config, tmp_path, after_step, kind):
    source = finished_run if kind == "run" else finished_run / "generator.safetensors"
    seen = {}

    def look(state) -> None:
        if state.images == 8:
            seen.update({name: value.clone() for name, value in state.g_ema.state_dict().items()})

    after_step(look)
    settings = [f"run_dir={tmp_path}", f"init_from={source}", "ema.decay_per_update=0.999999"]
    config = tiny_config(*settings, "ema.half_life_images=null", "schedule.learning_rate_g=0")
    assert train.run(config) == 0
    log = (tmp_path / "train.log").read_text()
    assert f"Weights taken over from {source}. The optimizers and the schedule start anew." in log
    trained = load_generator(str(finished_run), torch.device("cpu")).network.state_dict()
    assert all(torch.allclose(seen[name], trained[name], atol=1e-5) for name in trained)
    discriminators = log.split("discriminator: ")[1].split(" of ")[0]
    assert (discriminators == "0") == (kind == "file")
    assert facts_of_run(tmp_path)["images"] == 160
    assert train.run(config) == 0  # the same command finds the run ended, and does not begin anew
    assert (tmp_path / "train.log").read_text() == log


def test_init_from_grows_further_with_new_layers_on_top(finished_run, tiny_config, make_pyramid, tmp_path):
    make_pyramid(tmp_path / "data", resolution=32)
    grown = ["schedule.final_resolution=32", "schedule.first_resolution=16", "schedule.total_images=8"]
    settings = [f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'data'}", f"init_from={finished_run}"]
    assert train.run(tiny_config(*settings, *grown)) == 0
    log = (tmp_path / "run" / "train.log").read_text()
    trained, _ = newest_checkpoint(finished_run)
    count = len(trained.load("generator"))
    taken, total = map(int, re.search(r"generator: (\d+) of (\d+) tensors", log).groups())
    assert taken == count < total
