"""`pggan doctor`: every check in turn, one line each."""

import json
from functools import partial

import torch

from pggan.config import DoctorConfig, Precision
from pggan.core.devices import choose_device
from pggan.core.errors import EXIT_FAILED
from pggan.core.next_command import next_command
from pggan.performance.doctor import accelerator, machine
from pggan.performance.doctor.finding import Check, Finding, Verdict

REPORT = "Report the line above with the output of pggan doctor json=true."


def run(config: DoctorConfig) -> int:
    """Print what this machine has and what works on it; returns the exit code: 0 when training can run."""
    device = choose_device(config.device, "device")
    findings = {}
    for check in checks(device):
        findings[check.name] = finding = check.finding(device)
        if not config.json:
            print(line(check.name, finding), flush=True)
    broken = [name for name, finding in findings.items() if finding.verdict is Verdict.broken]
    if config.json:
        rows = [{"check": name, **finding._asdict()} for name, finding in findings.items()]
        print(json.dumps({"device": str(device), "can_train": not broken, "checks": rows}, indent=1))
    else:
        print(f"Training can't run: {', '.join(broken)}." if broken else f"Training can run on {device}.")
        if not broken:
            print(next_command("train", "experiment=demo", "run_dir=outputs/demo"))
    return EXIT_FAILED if broken else 0


def checks(device: torch.device) -> list[Check]:
    """The checks that there are for `device`, the cheapest first."""
    cuda = device.type == "cuda"
    precisions = [Precision.fp32, *[Precision.tf32] * cuda, Precision.bf16, Precision.fp16]
    return [
        Check("program", machine.program),
        Check("PyTorch", machine.pytorch),
        Check("libraries", machine.libraries),
        Check("extras", machine.extras),
        Check("images", machine.images),
        Check("CPU", machine.processor),
        Check("threads", machine.threads),
        Check("memory", machine.memory),
        Check("disk", machine.disk, remedy="Name a place that can be written to: run_dir=/…/run."),
        Check("GPU", accelerator.gpu),
        *[Check("GPU memory", accelerator.gpu_memory, Verdict.broken)] * cuda,
        *(
            Check(str(one), partial(accelerator.matmul, one), remedy=f"Use another precision than {one}.")
            for one in precisions
        ),
        *[Check("CUDA graphs", accelerator.cuda_graphs, remedy="Train with compute.cuda_graphs=off.")] * cuda,
        *[Check("fused kernels", accelerator.fused_kernels, remedy="Training does without them.")] * cuda,
        Check("torch.compile", machine.compiler),
        Check("ranks", accelerator.collectives),
        Check("training", accelerator.training_steps, Verdict.broken, REPORT),
    ]


def line(name: str, finding: Finding) -> str:
    """A finding in one line, with its remedy in a second one."""
    text = f"{name:<13} {finding.verdict:<8} {finding.found}"
    return f"{text}\n{'':>22} {finding.remedy}" if finding.remedy else text
