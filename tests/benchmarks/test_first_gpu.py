"""The kit for the first GPU: every item on disk at once, goes on where it stopped, survives what crashes or hangs."""

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.first_gpu import __main__ as command
from benchmarks.first_gpu import collectives, convolutions, kernels, metrics, parity, parts, resume, stages, worker
from benchmarks.first_gpu.context import Context, Judgement, Part
from benchmarks.first_gpu.expected import ORDER, STAGES
from benchmarks.first_gpu.record import Record
from benchmarks.first_gpu.runs import Runs
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError
from tests.processes import in_processes, values_of

CPU = torch.device("cpu")
LATER = float("inf")


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "versions", dict)  # they ask git
    monkeypatch.setattr(worker, "code_in_use", lambda: "this")
    return Context(CPU, True, tmp_path, Record(tmp_path / "result.json"))


def part_of(name, cuda_only=False, **items):
    """A part of items that call these functions."""
    return Part(name, lambda context: iter(items.items()), lambda context, found: Judgement(str(found)), cuda_only)


def broken():
    raise RuntimeError("no such kernel\nsecond line")


def on_disk(context):
    return json.loads(context.record.path.read_text())


# ---- the process that measures ---------------------------------------------------------------------------


def test_every_item_is_on_disk_before_the_next_one_begins(context, monkeypatch):
    seen = []

    def look():
        seen.append(on_disk(context))
        return {"found": 2}

    monkeypatch.setattr(worker, "PARTS", [part_of("one", first=lambda: {"found": 1}, second=look)])
    assert worker.measure(context, LATER) == 0
    assert seen[0]["parts"]["one"]["items"]["first"]["found"] == 1
    assert seen[0]["running"] == ["one", "second"]
    assert not seen[0]["complete"]
    assert on_disk(context)["complete"]
    assert on_disk(context)["running"] is None


def test_parts_are_measured_alone_by_their_names(context, monkeypatch, capsys):
    known = [part_of(name, item=lambda name=name: {"found": name}) for name in ("one", "two", "three")]
    monkeypatch.setattr(worker, "PARTS", known)
    assert worker.measure(context, LATER, "three,one") == 0
    assert [*on_disk(context)["parts"]] == ["one", "three"]
    assert on_disk(context)["complete"]
    with pytest.raises(UserError, match=r"no part four.\n.*one, two, three"):
        worker.measure(context, LATER, "one,four")


def test_an_item_that_fails_costs_nothing_but_itself(context, monkeypatch, capsys):
    monkeypatch.setattr(
        worker, "PARTS", [part_of("one", bad=broken, good=lambda: {"found": 1}), part_of("two", bad=broken)]
    )
    assert worker.measure(context, LATER) == 0
    items = on_disk(context)["parts"]["one"]["items"]
    assert items["bad"]["failed"] == "RuntimeError: no such kernel"
    assert "broken" in items["bad"]["traceback"]
    assert items["good"]["found"] == 1
    assert context.record.failures == ["one/bad", "two/bad"]
    shown = capsys.readouterr().out
    assert " 1 one           FAILED: one/bad" in shown
    assert " 2 two           FAILED: two/bad" in shown


def test_a_second_call_goes_on_where_the_first_one_stopped(context, monkeypatch):
    calls = []
    items = {name: lambda name=name: calls.append(name) or {} for name in ("first", "second", "third")}
    monkeypatch.setattr(worker, "PARTS", [part_of("one", **items)])
    context.record.end("one", "first", {})
    assert worker.measure(context, time.monotonic() + worker.MIN_SECONDS - 1) == 0
    assert calls == []
    assert not on_disk(context)["complete"]
    assert worker.measure(Context(CPU, True, context.folder, Record(context.record.path)), LATER) == 0
    assert calls == ["second", "third"]


def test_failed_items_are_tried_again_only_when_asked_for(context, monkeypatch):
    calls = []
    monkeypatch.setattr(worker, "PARTS", [part_of("one", item=lambda: calls.append(1) or {})])
    context.record.end("one", "item", {"failed": "once"})
    worker.measure(context, LATER)
    assert not calls
    context.record.forget_failures()
    worker.measure(context, LATER)
    assert calls


def test_what_a_cpu_does_not_have_is_skipped(context, monkeypatch, capsys):
    monkeypatch.setattr(worker, "PARTS", [part_of("one", cuda_only=True, item=broken)])
    assert worker.measure(context, LATER) == 0
    assert "skipped: no CUDA" in capsys.readouterr().out
    assert not context.record.failures


def test_figures_of_different_machines_do_not_mix(context, monkeypatch):
    monkeypatch.setattr(worker, "PARTS", [])
    worker.measure(context, LATER)
    with pytest.raises(UserError, match="small=True"):
        worker.measure(Context(CPU, False, context.folder, context.record), LATER)


def test_a_device_that_does_not_answer_after_a_failure_gets_a_new_process(context, monkeypatch):
    monkeypatch.setattr(worker, "usable", lambda device: False)
    monkeypatch.setattr(worker, "PARTS", [part_of("one", bad=broken, good=dict)])
    with pytest.raises(SystemExit, match=str(EXIT_FAILED)):
        worker.measure(context, LATER)
    assert list(on_disk(context)["parts"]["one"]["items"]) == ["bad"]


# ---- the process that looks after it ---------------------------------------------------------------------

SCRIPT = """#!/bin/sh
cd {folder}
echo call >> calls
{work}
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The exit code of the command with a script in place of the process that measures, and its calls."""

    def run(work, *arguments):
        script = tmp_path / "worker.sh"
        script.write_text(SCRIPT.format(folder=tmp_path, work=work))
        script.chmod(0o700)
        monkeypatch.setattr(command.sys, "executable", str(script))
        monkeypatch.setattr(command.sys, "argv", ["first_gpu", "--out", str(tmp_path / "result.json"), *arguments])
        monkeypatch.setattr(command, "POLL_SECONDS", 0.01)
        code = command.main()
        return code, len((tmp_path / "calls").read_text().split())

    return run


def state(running, complete=False):
    """A shell command that writes a result file; `running`: an item."""
    parts = {"one": {"items": {"first": {}}}}
    content = {"about": {}, "complete": complete, "running": running and ["one", running], "parts": parts}
    return f"echo '{json.dumps(content)}' > result.json"


def items_in(folder):
    return json.loads((folder / "result.json").read_text())["parts"]["one"]["items"]


@pytest.mark.slow
def test_an_item_that_kills_its_process_is_noted_and_another_process_goes_on(call, tmp_path):
    """The second process makes no progress, so there is no third."""
    crash = f"if [ $(wc -l < calls) = 1 ]; then {state('second')}; fi; kill -SEGV $$"
    assert call(crash) == (EXIT_FAILED, 2)
    assert "exit code -11" in items_in(tmp_path)["second"]["failed"]


@pytest.mark.slow
def test_an_item_that_hangs_is_ended(call, tmp_path):
    hang = f"if [ $(wc -l < calls) = 1 ]; then {state('second')}; sleep 60; fi; exit 1"
    assert call(hang, "--item-seconds", "3") == (EXIT_FAILED, 2)
    assert "no end within the 3 s of --item-seconds" in items_in(tmp_path)["second"]["failed"]


@pytest.mark.slow
def test_nothing_runs_longer_than_the_deadline_and_what_was_running_is_not_held_against_it(call, tmp_path):
    start = time.monotonic()
    assert call(f"{state('second')}; sleep 60", "--seconds", "4") == (EXIT_INTERRUPTED, 1)
    assert time.monotonic() - start < 30
    assert list(items_in(tmp_path)) == ["first"]


@pytest.mark.slow
def test_a_user_error_is_not_tried_again(call):
    assert call("exit 2") == (EXIT_USER_ERROR, 1)


@pytest.mark.slow
def test_make_takes_a_python_that_has_all_libraries():
    made = ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}", "OPTIONS=--help"]
    shown = subprocess.run(made, cwd=command.ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("usage:")


@pytest.mark.slow
def test_the_exit_code_says_whether_all_is_there(call):
    assert call(state(None, complete=True))[0] == 0


def test_the_decision_follows_from_the_step_at_1024(tmp_path):
    record = Record(tmp_path / "result.json")
    assert "not measured" in record.conclusion()
    record.end("stages", "graph 1024", {"milliseconds": 35.0})
    assert "look at the fused kernels first" in record.conclusion()
    record.end("compiled", "1024", {"milliseconds": 23.0})
    assert "gradients are not measured: compute.compile=true stays off" in record.conclusion()
    record.end("compiled", "gradients", {"good": False})
    assert "gradients are NOT right: compute.compile=true stays off" in record.conclusion()
    record.end("compiled", "gradients", {"good": True})
    assert "pays for long runs" in record.conclusion()
    record.end("compiled", "1024", {"milliseconds": 25.0})
    assert "stays off" in record.conclusion()


# ---- the parts -------------------------------------------------------------------------------------------


def errors(d, g=None, losses=0.0):
    return {"D": d, "G": d if g is None else g, "losses": losses}


@pytest.mark.parametrize(
    ("cases", "good"),
    [
        ([errors(1e-6)] * 3, True),
        ([errors(1e-6), errors(1e-6), errors(1e-2)], True),  # a kink
        ([errors(1e-6), errors(1e-6), errors(0.1)], False),  # one kind of step is wrong
        ([errors(1e-4)] * 3, False),  # all are less exact than float32 is
        ([errors(1e-6, losses=1e-5)] * 3, False),
        ([errors(float("nan"))] * 3, False),
    ],
)
def test_gradients_are_judged_by_their_usual_and_their_largest_error(context, cases, good):
    full = Context(CPU, False, context.folder, context.record)
    found = {"fp32 wgan_gp": {"errors": {str(number): one for number, one in enumerate(cases)}}}
    assert parity.judge(full, found).good is good


@pytest.mark.slow
def test_a_gradient_that_is_wrong_is_noticed(monkeypatch):
    case = parity.Case("wgan_gp", jvp=True, fading=True, labels=True, micro_batches=True)
    right = parity.errors_of(CPU, parity.Precision.fp32, case, 8)
    assert max(right["D"], right["G"]) < parity.largest(8, 2**-24)
    other = parity.step(CPU, None, replace(case, loss="logistic"), 8)
    monkeypatch.setattr(parity, "reference", lambda *_: other)
    assert parity.errors_of(CPU, parity.Precision.fp32, case, 8)["D"] > 2 * parity.largest(8, 2**-24)


def test_stages_are_those_of_the_official_schedule_and_all_are_predicted():
    batches = dict(stages.config(small=False, mode="graph").batches())
    assert set(ORDER) == set(STAGES) == set(batches)
    assert (batches[4], batches[64], batches[1024]) == (128, 32, 4)


def test_a_step_is_as_predicted_within_a_quarter():
    assert stages.as_predicted(1024, {"fused_kernels": True, "milliseconds": 25.0})
    assert not stages.as_predicted(1024, {"fused_kernels": True, "milliseconds": 35.5})
    assert stages.as_predicted(1024, {"fused_kernels": False, "milliseconds": 35.5})


@pytest.mark.parametrize(("launches", "matmul", "good"), [(900, 0.74, True), (1364, 0.74, False), (900, 0.6, False)])
def test_launches_without_fused_kernels_are_too_many(launches, matmul, good):
    """At 64x64, where 791 are predicted and 74 % of the time; without fused kernels there are 1,364."""
    figures = {"launches": launches, "milliseconds": 27.0, "share_of_matmul": matmul}
    assert kernels.judge(SimpleNamespace(on_h200=True), {"64": figures}).good is good


def test_convolutions_of_few_channels_may_be_further_from_the_limit():
    def judged(**shares):
        found = {name: {"milliseconds": 0.3, "share_of_limit": share} for name, share in shares.items()}
        items = {f"{name[1:]} from RGB": dict.fromkeys(convolutions.FUNCTIONS, one) for name, one in found.items()}
        return convolutions.judge(SimpleNamespace(on_h200=True), items)

    assert judged(_1024=0.16, _512=0.16, _64=0.4, _32=0.9).good
    assert not judged(_1024=0.14, _64=0.9).good
    assert not judged(_1024=0.9, _32=0.3).good
    assert "16% (1024 from RGB" in judged(_1024=0.16, _64=0.4).measured


Event = namedtuple("Event", "key device_type count self_device_time_total self_cpu_time_total")
PROFILE = [  # of three steps, as PyTorch writes one: what the host does is in it, too
    Event("sm90_xmma_fprop_implicit_gemm_bf16", SimpleNamespace(name="CUDA"), 6, 900.0, 0.0),
    Event("nvjet_hsh_128x128", SimpleNamespace(name="CUDA"), 3, 300.0, 0.0),
    Event("bias_act_forward", SimpleNamespace(name="CUDA"), 9, 300.0, 0.0),
    Event("Memcpy DtoD (Device -> Device)", SimpleNamespace(name="CUDA"), 3, 500.0, 0.0),
    Event("cuLaunchKernelEx", SimpleNamespace(name="CPU"), 9, 0.0, 700.0),
    Event("cudaLaunchKernel", SimpleNamespace(name="CPU"), 9, 0.0, 700.0),
    Event("Lazy Function Loading", SimpleNamespace(name="CPU"), 3, 0.0, 9000.0),
]


def test_what_the_host_does_to_launch_kernels_is_none_of_them():
    found = kernels.summary(kernels.kernels_of(PROFILE, on_cuda=True))
    assert found["launches"] == 6
    assert found["milliseconds"] == pytest.approx(0.5)
    assert found["share_of_matmul"] == pytest.approx(0.8)
    assert [one["name"] for one in found["kernels"]] == [
        "sm90_xmma_fprop_implicit_gemm_bf16",
        "nvjet_hsh_128x128",
        "bias_act_forward",
    ]


def found_by_two(store):
    return collectives.of_rank(2, store, "cpu", int(os.environ["RANK"]))


RIGHT = {"all_reduce": True, "all_to_all": True, "all_gather": True}


@pytest.mark.slow
def test_collectives_of_two_ranks_are_right(tmp_path):
    """By gloo, and without graphs."""
    assert values_of(in_processes(2, found_by_two, tmp_path / "store")) == [RIGHT, RIGHT]


def test_a_collective_that_is_wrong_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda numbers, async_op: SimpleNamespace(wait=numbers.neg_))
    alone = collectives.of_rank(1, tmp_path / "store", "cpu", 0)
    assert alone == {**RIGHT, "all_reduce": False}
    judged = collectives.judge(None, {"1 rank": alone | {"seconds": 0.0}, "elastic": {"same bits": True, "1": "8a"}})
    assert not judged.good
    assert "WRONG: all_reduce of 1 rank, connections" in judged.measured
    assert collectives.judge(None, {"2 ranks": RIGHT}).good


def test_several_gpus_work_together_and_train_with_the_bits_of_one(context, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [name for name, _ in collectives.items(context)] == ["1 rank", "4 ranks", "elastic"]
    asked = []
    monkeypatch.setattr(Runs, "begin", lambda self, name, *keys: asked.append(keys))
    monkeypatch.setattr(Runs, "end", lambda self, process: None)
    for digests, same in ((["8a", "8a"], True), (["8a", "8b"], False)):
        left = iter(digests)
        monkeypatch.setattr(collectives, "facts_of_run", lambda run_dir, left=left: {"state_sha256": next(left)})
        assert collectives.elastic(context, 4)["same bits"] is same
    assert [keys[-1] for keys in asked[:2]] == ["devices=1", "devices=4"]
    assert "elastic=true" in asked[0]


@pytest.mark.parametrize(("digests", "verdict"), [(["8a", "8a"], "the same bits"), (["8a", "8b"], "other bits")])
def test_a_run_that_was_stopped_and_resumed_has_the_bits_of_a_whole_one(context, monkeypatch, digests, verdict):
    asked, left = [], iter(digests)
    monkeypatch.setattr(Runs, "begin", lambda self, name, *keys: asked.append((name, *keys)) or name)
    monkeypatch.setattr(Runs, "end", lambda self, process: asked.append(process))
    monkeypatch.setattr(resume, "facts_of_run", lambda run_dir: {"state_sha256": next(left)})
    found = resume.resume(context)
    half = ("stopped", "schedule.total_images=48")
    assert asked == [("whole",), half, "stopped", ("stopped",), "whole", "stopped"]
    assert resume.judge(context, {"resume": found}).measured == verdict


def test_metrics_of_a_device_are_compared_with_those_of_the_cpu(context, monkeypatch):
    monkeypatch.setattr(metrics, "in_new_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(metrics.efficientnet_lite0, "is_installed", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # which they set
    found = metrics.compare(context)
    assert found["cpu"] == found["device"]
    assert {"swd/mean@patches-24", "kid@pixels-24", "recall@pixels-24", "copies@pixels-24"} <= set(found["cpu"])
    assert metrics.judge(context, {"metrics": found}).good
    name, value = "swd/mean@patches-24", found["cpu"]["swd/mean@patches-24"]
    for times, good in ((1.009, True), (1.011, False)):
        changed = {"cpu": found["cpu"], "device": found["device"] | {name: times * value}}
        judged = metrics.judge(context, {"metrics": changed})
        assert judged.good is good
        assert name in judged.measured
    for images, good in ((1, True), (2, False)):  # that are in another ball
        changed = {"cpu": {"recall@x-24": 0.5}, "device": {"recall@x-24": 0.5 + images / 24}}
        assert metrics.judge(context, {"metrics": changed}).good is good


@pytest.mark.slow
def test_the_kit_trains_in_processes_of_their_own_and_says_why_one_failed(context):
    with Runs(context) as runs:
        process, mistaken = runs.begin("run", "schedule.total_images=8"), runs.begin("other", "schedule.batch=many")
        runs.end(process)
        with pytest.raises(RuntimeError, match="ended with 2: "):
            runs.end(mistaken)
    assert resume.facts_of_run(context.folder / "run")["images"] == 8


@pytest.mark.slow
def test_the_kit_runs_to_its_end_on_a_cpu(context, capsys):
    """But for the runs that are resumed, which take as long as all else, and metrics, above."""
    names = [part.name for part in parts.PARTS if part.name not in ("resume", "metrics")]
    assert worker.measure(context, LATER, ",".join(names)) == 0
    assert on_disk(context)["complete"]
    assert not context.record.failures
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:2].strip().isdigit()]
    assert [line.split()[1] for line in lines] == names
    assert not [line for line in lines if "NOT AS EXPECTED" in line]
    assert Path(context.record.path).stat().st_size < 2**20
