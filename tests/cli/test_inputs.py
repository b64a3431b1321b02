"""What a command reads and is not there is missed before the command, and with it torch, is imported."""

import pytest

from pggan.cli.main import main, require_inputs
from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.core.errors import UserError
from tests.composed import composed

MISSING = {
    "train data.path=nowhere": "nowhere does not exist",
    "train data.path=empty": "There are no images in empty",
    "train data.path=empty/file": "neither a folder nor an archive",
    "train resume=nowhere": "resume=nowhere has no checkpoint",
    "train init_from=nowhere": "init_from=nowhere has no generator",
    "plan data.path=nowhere hours=1": "nowhere does not exist",
    "sample run=nowhere": "run=nowhere has no generator",
    "interpolate run=pretrained:avatar": "no such generator comes with the package",
    "train data.path=http://example.org/faces.zip": "Addresses are not downloaded",
    "train data.path=cifar11": "Did you mean the known data set 'cifar10'?",
    "export run=empty checkpoint=best out=x.onnx": "run=empty has no checkpoint=best",
}


def train_config(*overrides):
    return validated(TrainConfig, composed("train", list(overrides)))


@pytest.mark.parametrize(("line", "problem"), MISSING.items())
def test_what_is_not_there_is_missed_and_nothing_is_written(line, problem, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_ranks_leave_it_to_the_training_which_tells_all_of_them(monkeypatch):
    config = train_config("data.path=nowhere")
    monkeypatch.setenv("RANK", "1")
    require_inputs(config)
    monkeypatch.delenv("RANK")
    machines = ["distributed.nnodes=2", "distributed.rdzv_endpoint=node0:29500", "run_dir=x"]
    require_inputs(train_config("data.path=nowhere", *machines))


def test_where_a_run_began_may_be_gone_when_it_resumes(tmp_path):
    began = {"resume": "gone has no checkpoint", "init_from": "gone has no generator"}
    for key, problem in began.items():
        with pytest.raises(UserError, match=f"{key}={problem}"):
            require_inputs(train_config(f"{key}=gone", f"run_dir={tmp_path}"))
    (tmp_path / "checkpoints" / "000000128").mkdir(parents=True)
    for key in began:
        require_inputs(train_config(f"{key}=gone", f"run_dir={tmp_path}"))
