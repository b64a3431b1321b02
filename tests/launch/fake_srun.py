"""`srun OPTIONS COMMAND` without Slurm: the command once per node, all of them here; signals are passed on."""

import os
import signal
import subprocess
import sys

command = sys.argv[1:]
while command[0].startswith("-"):
    del command[: 2 if command[0] in ("--output", "--error") else 1]
nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
tasks = [
    subprocess.Popen(command, env={**os.environ, "SLURM_NODEID": str(node), "SLURM_STEP_NUM_TASKS": str(nodes)})
    for node in range(nodes)
]


def pass_on(number, frame):
    for task in tasks:
        task.send_signal(number)


for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, pass_on)
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
