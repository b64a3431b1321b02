"""Whole commands run on CUDA: they end well, capture their steps, say nothing unusual and make no needless wait."""

import json
import re

import pytest

from pggan.core.errors import EXIT_INTERRUPTED

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]
# What a steady step of a run may cost the host, by where the images come from.
RESIDENT = {
    "pageable copy to the device in pggan/data/loader.py:get",  # the indices of a batch, 8 bytes per image
}
STREAMING = {  # all of it in the thread that reads ahead
    "cudaHostAlloc in pggan/data/loader.py:_load",  # a few per phase, then PyTorch uses them again
}
UNUSUAL = re.compile(r"without CUDA graphs|without fused kernels|Out of memory|Error|Warning|Traceback")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def found(program, toy_data, folder):
    return program("commands", str(toy_data), str(folder))


DRAWING = ["sample", "interpolate", "timelapse", "directions", "project", "evaluate", "explore"]


@pytest.mark.parametrize("name", ["train", "resume", "streaming", "bench", *DRAWING])
def test_commands_end_well_and_say_nothing_unusual(found, name):
    ended = found["commands"][name]
    assert ended["code"] == (EXIT_INTERRUPTED if name == "train" else 0), ended["said"]
    assert not UNUSUAL.search(ended["said"]), ended["said"]


def test_no_kernel_has_failed(found):
    assert found["fused_kernels"]


@pytest.mark.parametrize("name", ["train", "resume", "streaming", "bench"])
def test_commands_replay_captured_steps(found, name):
    assert found["commands"][name]["replays"] > 0


def test_a_run_resumes_where_it_was_interrupted_and_ends(found):
    assert "Interrupted at 88 images" in found["commands"]["train"]["said"]
    assert "Resuming from 88 images" in found["commands"]["resume"]["said"]
    assert "Done: 280 images" in found["commands"]["resume"]["said"]


def test_the_benchmark_has_figures_beside_the_reference(found):
    said = found["commands"]["bench"]["said"]
    (stage,) = json.loads(said[said.index("{\n") :])["stages"]
    assert stage["ratio"] > 0


def test_a_steady_step_on_images_in_device_memory_only_copies_their_indices(found):
    assert set(found["steady"]["resident"]) <= RESIDENT


def test_a_steady_step_on_images_that_are_read_ahead_leaves_all_waiting_to_the_reader(found):
    assert set(found["steady"]["streaming"]) <= STREAMING
