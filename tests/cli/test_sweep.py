"""--multirun: what runs, in which directories, and the table."""

import json
import os
import signal

import pytest

from pggan.cli import sweep
from pggan.cli.commands import COMMANDS
from pggan.cli.main import main
from pggan.cli.sweep import SweepJob, jobs_of, run_job, table

TRAIN = COMMANDS["train"]


def test_runs_get_directories_named_by_what_differs():
    jobs = list(jobs_of(TRAIN, ["seed=1,2", "loss=logistic,wgan_gp", "run_dir=out", "schedule.batch=8"], None))
    assert [job.label for job in jobs][:2] == ["seed=1 loss=logistic", "seed=1 loss=wgan_gp"]
    assert [job.run_dir for job in jobs][2:] == ["out/seed-2_loss-logistic", "out/seed-2_loss-wgan_gp"]
    assert jobs[0].overrides == ["seed=1", "loss=logistic", "schedule.batch=8", "run_dir=out/seed-1_loss-logistic"]


def test_without_run_dir_a_sweep_has_a_directory_of_its_own():
    (job,) = jobs_of(TRAIN, ["seed=1"], None)
    assert job.run_dir.startswith("outputs/sweeps/")


def test_run_dir_may_name_each_run_by_its_keys():
    jobs = list(jobs_of(TRAIN, ["seed=range(1,3)", "run_dir='out/${seed}'"], None))
    assert [(job.run_dir, job.overrides[1]) for job in jobs] == [
        ("out/1", "run_dir='out/${seed}'"),
        ("out/2", "run_dir='out/${seed}'"),
    ]


def test_jobs_of_other_commands_are_told_apart_too():
    jobs = list(jobs_of(COMMANDS["sample"], ["run=x", "truncation=0.5,1.0"], None))
    assert [(job.label, job.run_dir) for job in jobs] == [("truncation=0.5", None), ("truncation=1.0", None)]


def test_all_jobs_run_though_one_fails_and_the_table_says_how_each_ended(monkeypatch, capsys, tmp_path):
    ends, calls = iter([0, 2, 0]), []
    monkeypatch.setattr(sweep, "run_job", lambda words: calls.append(words) or next(ends))
    (tmp_path / "seed-1").mkdir()
    last = {"images": 1600, "D/loss": 0.25, "G/loss": None}
    last |= {"metrics/kid@pixels-9": 3.0, "metrics/kid_floor@pixels-4": 1.0, "metrics/swd/16@patches-9": 2.0}
    last |= {"metrics/swd/mean@patches-9": 4.0, "metrics/swd_floor/mean@patches-9": 5.0}
    cut_short = '{"images": 3200, "D/lo'  # by a full disk
    (tmp_path / "seed-1" / "metrics.jsonl").write_text(f"{json.dumps(last)}\n{cut_short}")
    assert main(["train", "--multirun", "seed=1,2,3", f"run_dir={tmp_path}"]) == 2
    assert [words[:2] for words in calls] == [["train", f"seed={seed}"] for seed in (1, 2, 3)]
    shown = capsys.readouterr().out
    assert f"[2/3] seed=2  ({tmp_path}/seed-2)" in shown
    rows = [line.split() for line in shown.splitlines() if line[:1].isdigit()]
    assert rows[0] == ["1", "done", "1,600", "0.25", "3", "4", f"{tmp_path}/seed-1"]
    assert rows[1][:3] == ["2", "failed", "(2)"]
    assert shown.splitlines()[-1] == f"Next: pggan monitor run={tmp_path}"


def test_every_job_gets_a_recipe_by_its_path(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(sweep, "run_job", lambda words: calls.append(words) or 0)
    (tmp_path / "mine.yaml").write_text("# @package _global_\nschedule:\n  total_images: 9\n")
    word = f"experiment={tmp_path / 'mine.yaml'}"
    assert main(["train", "--multirun", word, "hours=1", "seed=1,2", f"run_dir={tmp_path}"]) == 0
    assert [words[:4] for words in calls] == [["train", word, "hours=1", f"seed={seed}"] for seed in (1, 2)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["precision=fp32,fp61"], "precision=fp61"),
        (["seed=1", "data.path=null,nowhere"], "nowhere does not exist"),
        (["seed=1,2", "loss=wgan_gp,logistic", "run_dir='out/${seed}'"], "Of 4 jobs, several would train in out/1."),
        (["data.cache=a/b,a-b"], "Of 2 jobs, several would train in "),
    ],
)
def test_a_mistake_in_the_last_job_is_found_before_the_first_one_starts(words, problem, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run_job", lambda words: pytest.fail("a job was started"))
    assert main(["train", "--multirun", *words]) == 2
    assert problem in capsys.readouterr().err


def test_an_interruption_ends_the_sweep(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run_job", lambda words: 75)
    assert main(["train", "--multirun", "seed=1,2", "run_dir=out"]) == 75
    shown = capsys.readouterr().out
    assert "[2/2]" not in shown
    assert "not started" in shown
    assert "The same command with run_dir=out finishes what is left." in shown


def test_columns_are_aligned():
    jobs = [SweepJob([], {"seed": "1"}, None), SweepJob([], {"seed": "100"}, None)]
    assert table(jobs, [0]) == "seed  end\n1     done\n100   not started"


@pytest.mark.slow
def test_a_job_is_a_process_that_gets_the_signals_of_this_one(monkeypatch, tmp_path):
    waiting = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print(flush=True); time.sleep(60)"
    popen = sweep.subprocess.Popen

    def instead(program, **options):
        process = popen([program[0], "-c", waiting], stdout=sweep.subprocess.PIPE, **options)
        process.stdout.readline()  # it has its handler
        wait = process.wait

        def wait_and_be_told() -> int:
            process.wait = wait
            os.kill(os.getpid(), signal.SIGTERM)
            return wait()

        process.wait = wait_and_be_told
        return process

    monkeypatch.setattr(sweep.subprocess, "Popen", instead)
    assert run_job(["train"]) == 75
