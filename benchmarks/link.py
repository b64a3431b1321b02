"""Steps of two machines over a slow link: how much faster they are when less is sent.

`python -m benchmarks.link rate=100mbit resolution=8` as root, on Linux.  The machines are two network namespaces with a
cable of that rate between them; each has as many threads as OMP_NUM_THREADS says, or one.  What is timed is
`pggan bench scaling`, all variants in turn for `rounds`, of which the median counts.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIANTS = (
    "gradients=fp32",
    "gradients=bf16",
    "gradients=dgc gradients.ratio=0.05",
    "gradients=dgc gradients.ratio=0.01",
    "gradients=dgc gradients.ratio=0.001",
)
PORT = 29417


@contextmanager
def two_machines(rate: str) -> Iterator[list[tuple[str, str, str]]]:
    """Two namespaces joined by a link of `rate`, each with (name, network interface, address)."""
    machines = [(f"pggan{end}", f"pgg{end}", f"10.77.0.{end}") for end in (1, 2)]
    for name, *_ in machines:
        run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", "pgg1", "netns", "pggan1", "type", "veth", "peer", "name", "pgg2", "netns", "pggan2")
        for name, interface, address in machines:
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "addr", "add", f"{address}/24", "dev", interface)
            run(*inside, "ip", "link", "set", interface, "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
            run(*inside, "tc", "qdisc", "add", "dev", interface, "root", *limit)
        yield machines
    finally:
        for name, *_ in machines:
            run("ip", "netns", "delete", name)


def run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - our own words


def measure(machines: list[tuple[str, str, str]], overrides: list[str]) -> float:
    """Milliseconds of a step of both machines together."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scaling.json"
        meet = ["distributed.nnodes=2", f"distributed.rdzv_endpoint={machines[0][2]}:{PORT}"]
        command = [sys.executable, "-m", "pggan", "bench", "scaling", "processes=[2]", "devices=cpu", *meet]
        started = [
            subprocess.Popen(  # noqa: S603 - our own words
                ["ip", "netns", "exec", name, *command, f"distributed.local_addr={address}", f"out={out}", *overrides],
                env={**os.environ, "GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR"},
                stdout=subprocess.DEVNULL,
            )
            for name, interface, address in machines
        ]
        if any(process.wait() for process in started):
            sys.exit("A machine failed.")
        return float(json.loads(out.read_text())["stages"][0]["milliseconds_per_step"])


def main() -> None:
    options = {"rate": "100mbit", "resolution": "8", "batch": "4", "steps": "3", "rounds": "3"}
    options |= dict(argument.split("=", 1) for argument in sys.argv[1:])
    overrides = [f"stages=[{options['resolution']}]", f"batch={options['batch']}", f"steps={options['steps']}"]
    # The networks of a run to 1024x1024: 23 million weights each, of which a lower stage uses most.
    taken: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    with two_machines(options["rate"]) as machines:
        for _ in range(int(options["rounds"])):
            for variant in VARIANTS:
                taken[variant].append(measure(machines, [*overrides, *variant.split()]))
    fp32 = statistics.median(taken[VARIANTS[0]])
    for variant, all_taken in taken.items():
        median = statistics.median(all_taken)
        spread = f"({min(all_taken):.0f} to {max(all_taken):.0f})"
        print(f"{variant:<40} {median:>10.0f} ms/step {spread:<18} {fp32 / median:6.1f} times fp32")


if __name__ == "__main__":
    main()
