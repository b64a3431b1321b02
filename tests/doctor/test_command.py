"""`pggan doctor` looks at the machine, and says what is missing without failing itself."""

import json
from math import ceil, nan

import pytest
import torch

from pggan.cli.main import main
from pggan.config import DoctorConfig, Precision
from pggan.core.errors import EXIT_FAILED
from pggan.performance.doctor import accelerator, command, machine
from pggan.performance.doctor.finding import Check, Finding, Verdict


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch):
    monkeypatch.setattr(accelerator, "matmul_rate", lambda *_: 1e9)


def fails(device):
    raise OSError("no such thing\nsecond line")


def shown_by(capsys, **options):
    """The exit code and the output of the command on the CPU."""
    return command.run(DoctorConfig(device="cpu", **{"json": False} | options)), capsys.readouterr().out


def test_one_screen_has_a_line_for_every_check(capsys):
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(ceil(len(line) / 80) for line in lines) <= 24
    for check in command.checks(command.choose_device("cpu")):
        assert any(line.startswith(f"{check.name} ") for line in lines), check.name
    assert lines[-2] == "Training can run on cpu."
    assert lines[-1].startswith("Next: pggan train ")


def test_the_same_as_json(capsys):
    code, text = shown_by(capsys, json=True)
    found = json.loads(text)
    assert (code, found["can_train"], found["device"]) == (0, True, "cpu")
    assert {row["check"]: row["verdict"] for row in found["checks"]}["training"] == "ok"


def test_a_check_that_fails_is_a_line_with_the_reason_and_the_remedy(capsys, monkeypatch):
    monkeypatch.setattr(command, "checks", lambda device: [Check("disk", fails, remedy="Buy one.")])
    code, text = shown_by(capsys)
    assert code == 0
    assert text.splitlines()[:2] == [
        "disk          limited  OSError: no such thing",
        "                       Buy one.",
    ]


def test_the_exit_code_says_that_training_can_not_run(capsys, monkeypatch):
    monkeypatch.setattr(command, "checks", lambda device: [Check("training", fails, Verdict.broken)])
    code, text = shown_by(capsys)
    assert code == EXIT_FAILED
    assert text.splitlines()[-1] == "Training can't run: training."
    assert not json.loads(shown_by(capsys, json=True)[1])["can_train"]


def test_steps_that_a_trainer_can_not_take_as_configured_are_reported(monkeypatch):
    def step(self, *_):
        self.log("Training continues without CUDA graphs: no reason")
        return {"D/loss": accelerator.torch.ones(()), "G/loss": accelerator.torch.ones(())}

    monkeypatch.setattr("pggan.training.step.Trainer.step", step)
    found = accelerator.training_steps(command.choose_device("cpu"))
    assert found == Finding("Training continues without CUDA graphs: no reason", Verdict.limited)


def test_losses_that_are_not_finite_are_a_reason_not_to_train(monkeypatch):
    nan = accelerator.torch.tensor(float("nan"))
    monkeypatch.setattr("pggan.training.step.Trainer.step", lambda *_: {"D/loss": nan, "G/loss": nan})
    assert accelerator.training_steps(command.choose_device("cpu")).verdict is Verdict.broken


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_product_that_is_rounded_more_than_its_precision_says_is_reported(monkeypatch, precision):
    chosen, cpu = accelerator.Precision(precision), command.choose_device("cpu")
    assert accelerator.matmul(chosen, cpu).verdict is Verdict.ok
    right = accelerator.torch.Tensor.__matmul__

    def wrong(a, b):
        return right(a, b) if a.dtype is accelerator.torch.float64 else right(a, b) * 0.5

    monkeypatch.setattr(accelerator.torch.Tensor, "__matmul__", wrong)
    expected = Verdict.broken if precision == "fp32" else Verdict.limited
    assert accelerator.matmul(chosen, cpu).verdict is expected


def test_fused_kernels_that_are_wrong_or_fail_are_reported(monkeypatch):
    cpu = command.choose_device("cpu")  # where the same functions calculate without kernels
    monkeypatch.setattr(accelerator, "find_spec", lambda name: name)
    monkeypatch.setattr(accelerator, "precision_on", lambda device, precision: Precision.bf16)
    assert accelerator.fused_kernels(cpu).verdict is Verdict.ok
    right = accelerator.activate
    for dtype, factor in (("float32", 1.001), ("bfloat16", 1.1), ("bfloat16", nan)):
        rounded = getattr(accelerator.torch, dtype)

        def wrong(x, bias, rounded=rounded, factor=factor):
            return right(x, bias) * (factor if x.dtype is rounded else 1.0)

        monkeypatch.setattr(accelerator, "activate", wrong)
        found = accelerator.fused_kernels(cpu)
        assert (found.verdict, found.found.endswith(f" in {dtype}")) == (Verdict.broken, True)
    monkeypatch.setattr(accelerator.KERNELS, "working", False)
    assert accelerator.fused_kernels(cpu).verdict is Verdict.limited
    monkeypatch.setattr(accelerator, "find_spec", lambda name: None)
    assert accelerator.fused_kernels(cpu).remedy == "pip install triton"


@pytest.mark.parametrize("name", ["fade", "bilateral"])
def test_every_kind_of_kernel_is_compared(monkeypatch, name):
    right = getattr(accelerator, name)
    monkeypatch.setattr(accelerator, "find_spec", lambda name: name)
    monkeypatch.setattr(
        accelerator, name, lambda *tensors: right(*tensors) * (1 + (tensors[0].dtype is torch.float32) / 99)
    )
    assert accelerator.fused_kernels(command.choose_device("cpu")).verdict is Verdict.broken


def test_a_gpu_that_pytorch_was_not_built_for_is_reported(monkeypatch):
    cuda = accelerator.torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(cuda, "get_device_capability", lambda index: [(9, 0), (12, 0)][index])
    monkeypatch.setattr(cuda, "get_device_name", lambda index: "NVIDIA Later")
    found = accelerator.gpu(command.choose_device("cpu"))
    assert found.verdict is Verdict.limited
    assert "GPU 1: NVIDIA Later has capability 12.0" in found.found
    assert "Install a PyTorch" in found.remedy


@pytest.mark.parametrize(
    ("compiler", "header", "verdict"), [("cc", "Python.h", "ok"), (None, "Python.h", "none"), ("cc", "", "none")]
)
def test_kernels_need_a_c_compiler_and_pythons_headers(monkeypatch, tmp_path, compiler, header, verdict):
    (tmp_path / (header or "other.h")).touch()
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.shutil, "which", lambda name: compiler)
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: tmp_path)
    found = machine.compiler(accelerator.torch.device("cuda"))
    assert found.verdict == verdict
    assert ("python3-dev" in found.remedy) == (verdict == "none")


def test_a_driver_without_a_gpu_in_pytorch_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(accelerator.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(accelerator, "which", lambda name: None)
    monkeypatch.setattr(accelerator, "DRIVER", tmp_path / "none")
    cpu = command.choose_device("cpu")
    assert accelerator.gpu(cpu).verdict is Verdict.none
    monkeypatch.setattr(accelerator, "DRIVER", tmp_path)
    monkeypatch.setattr(accelerator.torch.version, "cuda", None)
    assert accelerator.gpu(cpu).remedy == "Install PyTorch's build for CUDA."


def test_the_first_screen_of_a_gpu_has_its_own_checks():
    names = [check.name for check in command.checks(accelerator.torch.device("cuda"))]
    assert {"GPU memory", "tf32", "CUDA graphs", "fused kernels"} <= set(names)
    assert len(names) <= 23  # and a line at the end


def test_more_threads_than_cores_are_reported(monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 0)
    assert machine.threads(command.choose_device("cpu")).verdict is Verdict.limited
