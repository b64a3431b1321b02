"""Two machines with a bad network between them: slow, long, lossy, cut."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pggan.cli.main import main
from pggan.run.inspect import facts_of_run
from tests.launch.cable import Cable
from tests.launch.conftest import require_done, wait_for

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(sys.platform != "linux", reason="makes network interfaces as on Linux"),
]


@pytest.fixture
def cable() -> Iterator[Callable[..., Cable]]:
    made: list[Cable] = []

    def make(**qualities: float) -> Cable:
        try:
            made.append(Cable(**qualities))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces: {error}")
        return made[-1]

    yield make
    for cable in made:
        cable.remove()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def last_start(run_dir: Path) -> str:
    """What train.log says from the last start on, which has no false alarms."""
    log = (run_dir / "train.log").read_text().rpartition("Run directory")[2]
    assert "has taken no step" not in log
    return log


@pytest.mark.fault(37)
def test_over_a_slow_link_a_run_ends_and_what_it_sends_is_what_the_plan_says(
    ranks, cable, tiny_overrides, run_dir, capsys
):
    """100 Mbit/s, at which the gradients of a step take longer than the step."""
    wide = ["schedule.first_resolution=16", "schedule.total_images=24", "model.fmap_max=64"]
    link = cable(bits_per_second=100e6)
    require_done(
        ranks(*2 * [[*tiny_overrides, *wide, f"run_dir={run_dir}"]], master_port=29500, machines=link.machines)
    )
    assert "Done: 24 images" in last_start(run_dir)
    assert main(["plan", *tiny_overrides, *wide, "devices=cpu:2", "json=true"]) == 0
    (phase,) = json.loads(capsys.readouterr().out)["phases"]
    gradients = phase["steps"] * phase["gradient_bytes"]
    assert gradients == 3 * 2_006_288
    # Headers of packets, and small messages; rank 0 sends the weights as well, at the start: G, D, averaged G and the
    # moments of Adam, all in all as much as 3 updates.
    assert gradients < link.bytes_from[1] < 1.1 * gradients
    assert link.bytes_from[1] < link.bytes_from[0] < 2.5 * gradients


@pytest.mark.fault(38)
@pytest.mark.fault(39)
def test_over_a_lossy_link_the_rendezvous_host_is_lost_and_comes_back(
    launch, ranks, cable, tiny_overrides, run_dir, expected_state, tmp_path
):
    """1 % of the packets lost, 40 ms there and back; then the first machine vanishes.

    The second one has a disk of its own: nothing of the run is written there.
    """
    link = cable(delay=0.02, loss=0.01)
    elsewhere = tmp_path / "elsewhere" / "run"
    own = [[f"run_dir={run_dir}"], [f"run_dir={elsewhere}"]]
    machines = [
        *("monitor.tick_images=8", "devices=cpu:1", "distributed.nnodes=2"),
        f"distributed.rdzv_endpoint={link.machines[0].address}:29500",
    ]
    for machine, where in zip(link.machines, own, strict=True):
        launch.train(*tiny_overrides, *machines, *where, machine=machine, GLOO_SOCKET_IFNAME=machine.interface)
    wait_for((run_dir / "metrics.jsonl").is_file, launch)
    link.cut = True
    link.machines[0].kill()
    assert launch.processes[1].wait(150) == 1, launch.output()  # within a minute, on a quiet machine
    assert "The machines have lost each other: " in launch.file(1).read_text()
    link.cut = False
    require_done(ranks(*([*tiny_overrides, *where] for where in own), master_port=29501, machines=link.machines))
    assert "Done: 160 images" in last_start(run_dir)
    assert link.lost > 10
    assert facts_of_run(run_dir)["state_sha256"] == expected_state(2)
    assert not elsewhere.parent.exists()
