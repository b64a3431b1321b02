"""Slips on the command line: each is refused in one sentence with what to write, and nothing is written."""

from pathlib import Path

import pytest

from pggan.cli.main import main

# A command line without `pggan`, and what the answer has to contain: one slip of a kind.
SLIPS = {
    # keys
    "train modle.fmap_base=5": "'model.fmap_base'",
    "train +loss.penalty_wieght=3": "'loss.penalty_weight'",
    "train loss.gama=3": "Did you mean 'loss.gamma'? It needs loss=logistic or loss=relativistic.",
    "train hours=1 loss.gamma=3": "'loss.gamma'.\n  It needs loss=logistic or loss=relativistic.",
    "train batch=16": "'schedule.batch'",
    "train zzzz=1": "--help lists the keys",
    "train compute.compile=true": "no longer exists",
    "prepare source=photos resolution=64": "Did you mean 'max_resolution'?",
    "sample hours=1": "It is a key of plan, train.",
    "sample run=x psi=1": "Here, the key is truncation=",
    # choices
    "train loss=wgangp": "'wgan_gp'",
    "train data=photos": "data.path=photos",
    "train augmentation=diffaugment": "Use augmentation=ada instead",
    "train loss=null": "must be a string",
    "train loss=logistic,wgan_gp": "add --multirun",
    # values
    "train name=${oc.env:NO_SUCH_VARIABLE}": "NO_SUCH_VARIABLE' not found\" full_key: name object_type=dict\n  Hydra",
    "train hours=0,05": "Write hours=0.05. To run once per value, add --multirun.",
    "sample run=pretrained:avatars64 truncation=1e308": "from -10 to 10",
    "train seed=1 data.labels=table.csv": "pggan prepare labels=FILE",
    "train seed=1 run_dir=": "set this variable",
    "train seed=1 run_dir=newest": "run=newest is the newest run of all",
    "train seed=1 run_dir=a\x1bb": "run_dir='a\\x1bb' has control characters",
    "train data.path=~/nowhere": f"{Path.home()}/nowhere does not exist",
    "train hours=15m": "15m are hours=0.25.",
    "train hours=1..5h": "a number above 0",
    "train seed=inf": "a whole number",
    "bench loss=logistic loss.gamma=auto": "loss.gamma=auto does not work.\n  It has to be a number.",
    "bench stages=[]": "stages=[] does not work",
    "train data.path=my photos hours=2": "'photos' is no key=value",
    "sample run=x seeds=1, 5, 9": "a list without spaces: key=1,2,3",
    "train schedule.batch={8": "can't be read",
    "bench stages=4, loss=x modle.fmap_max=4": "'model.fmap_max'",  # unknown keys come before all other mistakes
    # flags
    "train --seed=3": "Write seed=3 instead of --seed=3.",
    "sample --seeds 5": "Write seeds=5 instead of --seeds 5.",
    "train -cn other": "There is no flag -cn.\n  Write keys without dashes",
    "train -m --cfg job seed=1,2": "Only one of --run, --multirun",
    "train --multirun hydra=slurm seed=1,2": "Add run_dir=",
    "train hydra/launcher=joblib run_dir=x -m": "There is no hydra/launcher=joblib.",
    "train --config-dir nope experiment=demo": "nope' not found",
    "train --cfg=job loss=wgan": "'wgan_gp'",
    "train data.path=nowhere --multirun lr=1,2": "schedule.learning_rate_g",
    # keys that do not go together, or not with what is here
    "train hours=1 resume=elsewhere": "Leave out one of them",
    "plan hours=0.01 schedule.total_images=1000": "both say when training ends",
    "plan hours=1 device=h20": "h200",
    "plan device=t4 precision=bf16": "no units",
    "plan interconnect=100": "100g",
    "plan data.labels=true": "pggan prepare … labels=true",
    # what is not there
    "train seed=1 data.cache=empty/cache run_dir=empty/file/below": "can't be written",
    "train devices=cuda:7": "Use auto",
    "train run_dir=emty": "Did you mean 'empty'?",
    "train run_dir=run devices=cpu:2": "pggan train data.path=photos hours=2",  # not for days, on other images
    "sample": "There is no run with a checkpoint in ",
    "train data.path=empty": "There are no images in empty",
    "inspect data=empty": "`pggan prepare source=empty dest=data/empty`",
    "train data.path=empty/file": "can't be read as a zip or tar archive",
    "train grow=emtpy hours=1": "Give a run directory with a checkpoint",  # not 'empty', which has none
    "train grow=pretrained:portraits64 hours=1": "init_from= also takes generator files",
    "train init_from=portraits64": "init_from=portraits64 does not exist.\n  Did you mean 'pretrained:portraits64'?",
    "sample run=empty checkpoint=latest": "It has to be",
    "train resume=nowhere": "resume=nowhere does not exist",
    "train data.path=cifar10": "the name of a known data set: torchvision:NAME",
    "sample run=emtpy": "Did you mean 'empty'?",
    "train data.path=emtpy": "Did you mean 'empty'?",
    "interpolate run=pretrained:avatar": "No such generator comes with the package",
    "export run=empty checkpoint=best out=x.onnx": "run=empty has no checkpoint=best",
    # commands
    "smaple": "Did you mean 'sample'?",
    "benchscaling": "Did you mean 'bench scaling'?",
    "--hlp": "Did you mean '--help'?",
}


@pytest.mark.parametrize(("line", "hint"), SLIPS.items())
def test_a_slip_is_refused_with_what_to_write(line, hint, capsys, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert "error: " in message.lower()
    assert hint in message
    assert "Traceback" not in message
    assert [path.name for path in tmp_path.rglob("*")] == ["empty", "file"]


@pytest.mark.parametrize("text", ["fmap_maximum: 3", "defaults: [override /lss: logistic]", "- a", "a: [1"])
def test_a_file_that_can_not_be_composed_is_refused(text, tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert main(["train", "--config-dir", str(tmp_path), "experiment=mine", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "Error: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
