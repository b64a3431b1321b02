"""Two ranks over a bad network: slow, and with lost packets."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from pggan.cli.main import main
from pggan.run.inspect import facts_of_run
from tests.launch.conftest import require_done

pytestmark = pytest.mark.rare

# 100 Mbit/s, at which the gradients of a step take longer than the step; packets that find no room to wait are lost.
LINK = "rate 100mbit burst 5kb limit 20kb"


@pytest.fixture
def network() -> Iterator[str]:
    """A network namespace of Linux whose loopback interface is such a link."""
    name = f"pggan{os.getpid()}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True)
        for line in ("ip link set lo mtu 1500 up", f"tc qdisc add dev lo root tbf {LINK}"):
            subprocess.run(["ip", "netns", "exec", name, *line.split()], check=True)
        yield name
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces: {error}")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def test_over_a_bad_link_a_run_ends_in_the_same_bits_and_sends_what_the_plan_says(
    ranks, network, tiny_overrides, tmp_path, port, capsys
):
    wide = [*tiny_overrides, "schedule.first_resolution=16", "schedule.total_images=24", "model.fmap_max=64"]
    for name, namespace in (("good", ""), ("bad", network)):
        require_done(ranks(*2 * [[*wide, f"run_dir={tmp_path / name}"]], master_port=port, namespace=namespace))
    assert len({str(facts_of_run(tmp_path / name)["state_sha256"]) for name in ("good", "bad")}) == 1
    asked = ["ip", "netns", "exec", network, "tc", "-json", "-statistics", "qdisc", "show", "dev", "lo"]
    (link,) = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert link["drops"] > 100
    assert main(["plan", *wide, "devices=cpu:2", "json=true"]) == 0
    (phase,) = json.loads(capsys.readouterr().out)["phases"]
    gradients = 2 * phase["steps"] * phase["gradient_bytes"]  # of both ranks
    assert gradients == 2 * 3 * 2_006_288
    # Headers of packets, small messages, and at the start the weights and moments, as much as 3 updates of one rank.
    assert gradients < link["bytes"] < 1.8 * gradients
