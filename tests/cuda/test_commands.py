"""Whole commands run on CUDA, alone and as one of two ranks: they end well and say nothing unusual."""

import json
import re
import subprocess
import sys

import pytest

from benchmarks.gpu_items import ITEMS
from tests.cuda.null_gpu.build import environment, started
from tests.processes import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.rare]
UNUSUAL = re.compile(r"without CUDA graphs|without fused kernels|Out of memory|Error|Warning|Traceback")
RUN = ["devices=cuda", "evaluation.interval_images=80", "evaluation.count=16"]
RUN += ["evaluation.metrics=[swd,kid]", "evaluation.extractor=pixels"]
STREAMING = ["loss=logistic", "loss.reg_interval=2", "precision=fp16", "augmentation=ada"]
STREAMING += ["model.residual=true", "model.blur=true", "model.bilateral=2"]


def said(null_gpu, *words):
    """The output of a command that has to end well."""
    process = started(null_gpu, "pggan", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text[-5000:]
    assert not UNUSUAL.search(text), text[-5000:]
    return text


def test_runs_resume_and_commands_that_draw_use_them(null_gpu, tiny_overrides, tmp_path):
    run, train = tmp_path / "run", ["train", *tiny_overrides, *RUN]
    said(null_gpu, *train, f"run_dir={run}", "schedule.total_images=88")
    resumed = said(null_gpu, *train, f"run_dir={run}", "schedule.total_images=160")
    assert "Resuming from 88 images" in resumed
    assert "Done: 160 images" in resumed
    assert "Done: 160 images" in said(null_gpu, *train, f"run_dir={tmp_path / 'streaming'}", *STREAMING)
    for name, *options in (
        ("sample", "seeds=0-5", f"out={tmp_path / 'sample.png'}"),
        ("interpolate", "seeds=[1,2]", "frames=3", f"out={tmp_path / 'strip.png'}"),
        ("timelapse", f"out={tmp_path / 'growth.gif'}"),
        ("project", f"image={tmp_path / 'sample.png'}", "steps=3", f"out={tmp_path / 'found'}"),
        ("evaluate", "metrics=[swd,ms_ssim,kid,fid]", "extractor=pixels", "count=32", f"out={tmp_path / 'evaluation'}"),
    ):
        said(null_gpu, name, f"run={run}", *options)


def test_ranks_sum_gradients_in_captured_steps_and_close_their_connections(null_gpu, tiny_overrides, tmp_path):
    """Each sees a GPU of its own."""
    ranks, (port,) = [], free_ports(1)
    for rank in range(2):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        own |= {"MASTER_ADDR": "localhost", "GLOO_SOCKET_IFNAME": "lo"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in own.items():
                patch.setenv(name, str(value))
            words = ["train", *tiny_overrides, *RUN, f"run_dir={tmp_path / 'run'}", "elastic=true"]
            ranks.append(started(null_gpu, "pggan", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    texts = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], texts
    assert not any(UNUSUAL.search(text) for text in texts), texts
    assert ["Done: 160 images" in text for text in texts] == [True, False]


def test_make_gpu_runs_to_its_end_though_its_figures_mean_nothing(null_gpu, tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--small", "--seconds=3000", "--out", str(out)]
    assert subprocess.run(command, env=environment(null_gpu), check=False).returncode == 1
    items = json.loads(out.read_text())["items"]
    assert set(items) == set(ITEMS)
    assert not {name: item["failed"] for name, item in items.items() if item["failed"] is not None}
    for name in ("bits", "failures", "ranks"):  # these do not depend on numbers
        figures = {key: one for key, one in items[name]["figures"].items() if not isinstance(one["measured"], float)}
        assert all(one["expected"] in (None, [one["measured"]] * 2) for one in figures.values()), figures
