"""Several ranks on CUDA: gradients are summed by NCCL in captured steps, and its connections close at the end."""

import json
import subprocess

import pytest

from tests.cuda.null_gpu.build import started
from tests.cuda.test_commands import UNUSUAL
from tests.processes import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]
RANKS = 2  # each of which sees a GPU of its own


@pytest.fixture(scope="module")
def found(null_gpu, toy_data, tmp_path_factory):
    folder, ports = tmp_path_factory.mktemp("ranks"), map(str, free_ports(2))
    arguments, processes = [str(toy_data), str(folder / "run"), *ports], []
    with pytest.MonkeyPatch.context() as patch, (folder / "errors.txt").open("w") as errors:
        for name, value in {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": 1}.items():
            patch.setenv(name, str(value))
        patch.setenv("MASTER_ADDR", "localhost")
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(RANKS):
            patch.setenv("RANK", str(rank))
            patch.setenv("LOCAL_RANK", str(rank))
            streams = {"stdout": subprocess.PIPE, "stderr": errors}
            processes.append(started(null_gpu, "tests.cuda.programs.ranks", *arguments, **streams))
        said = [process.communicate(timeout=300)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * RANKS, (folder / "errors.txt").read_text()[-5000:]
    return [json.loads(one) for one in said]


def test_commands_end_well_replay_captured_steps_and_sum_gradients(found):
    name = "train"
    for one in found:
        assert one[name]["code"] == 0, one[name]["said"]
        assert not UNUSUAL.search(one[name]["said"]), one[name]["said"]
        assert one[name]["replays"] > 0
        assert one[name]["asked"]["collective"] > 0


def test_no_graph_holds_on_to_a_connection_that_is_closed(found):
    """NCCL would wait for ever."""
    for one in found:
        assert not [what for what in one["train"]["asked"] if what.startswith("hang")]


def test_rank_0_reports(found):
    first, second = found
    assert "Done: 280 images" in first["train"]["said"]
    assert "Done" not in second["train"]["said"]
