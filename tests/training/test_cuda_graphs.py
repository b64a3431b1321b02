"""Replayed steps are the steps; a capture that fails leaves nothing behind; captured steps don't live too long.

A stand-in for CUDA graphs captures on the CPU: on replay it does what the function did, on the same tensors.
"""

import dataclasses
import gc
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pggan.training.step
from pggan.config import ComputeConfig, ModelConfig, TrainerConfig
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import PeerLost, ProcessGroup, rank_from_environment
from pggan.losses.logistic import Logistic
from pggan.networks.convolution import DIRECT
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state
from pggan.training import build, cuda_graphs, trainer_factory
from pggan.training.cuda_graphs import WARMUP_STEPS, CapturedStep, CudaGraphs, GraphPool
from pggan.training.inputs import draw_inputs
from pggan.training.passes import Passes
from pggan.training.step import Trainer
from tests.definitions import ADAM, WGAN_GP
from tests.processes import in_processes, values_of
from tests.training.short_run import ARCHITECTURE, CPU, assert_alike, digest, short_run


def stand_in(function, _):
    """Does on replay what a captured function did."""
    metrics = {}

    def replay():
        metrics.update(function())

    return replay, metrics


@pytest.fixture
def captures(monkeypatch):
    """The replays that were made, in order; weak references, so that none is kept alive."""
    made = []

    def capture(function, memory):
        replay, metrics = stand_in(function, memory)
        made.append(weakref.ref(replay))
        return replay, metrics

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    return made


FEW = 8 * (WARMUP_STEPS + 2)  # images until after a capture


@pytest.fixture(scope="module")
def eager():
    return digest(short_run(images=FEW)[0])


@pytest.fixture(scope="module")
def eager_with_tensors():
    """Of the whole run."""
    return digest(short_run(scalars_as_tensors=True)[0])


def phase_of(index, images, resolution=4, **changes):
    phase = Phase(index, resolution, False, 1.0, images, images + 1000, 8, 0.001, 0.001, 2)
    return dataclasses.replace(phase, **changes)


def take(trainer, phase, count=1):
    """The metrics of the last of these steps."""
    for _ in range(count):
        reals = Reals(torch.zeros(8, 3, phase.resolution, phase.resolution), None, None)
        metrics = trainer.step(phase, reals, StepRng(0, trainer.state.images, CPU), 0.9)
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("loss", [WGAN_GP, Logistic(gamma=1.0, reg_interval=2)])
def test_replayed_steps_are_the_steps(captures, loss):
    plain, _ = short_run(loss)
    replayed, lines = short_run(loss, capture=True)
    # Settings are tensors in a graph, and a product with one may round differently: by an ulp of a step of 0.001 or of
    # the average.  Adam may make a whole step of that where a gradient is rounding only, hence a few exceptions.
    assert_alike(replayed, plain, 1e-4, share=0.02)
    assert not lines
    assert len(captures) == 3 * loss.reg_interval  # per phase, with and without the lazy penalty
    assert replayed.images == plain.images


@pytest.mark.slow
def test_where_settings_are_tensors_replayed_and_eager_steps_have_the_same_bits(captures, eager_with_tensors):
    state, _ = short_run(scalars_as_tensors=True, capture=True)
    assert len(captures) == 3
    assert digest(state) == eager_with_tensors


def test_a_run_resumed_in_the_middle_of_a_phase_warms_up_with_the_bits_of_replayed_steps(captures):
    trainer = partial(
        Trainer, loss=WGAN_GP, options=ComputeOptions(), reset_at_phase=False, scalars_as_tensors=True, capture=True
    )
    whole, resumed = (trainer(new_state(ARCHITECTURE, ADAM, 0, CPU)) for _ in range(2))
    phase = phase_of(0, 0, resolution=8, fading=True, alpha=0.3)
    take(whole, phase, WARMUP_STEPS + 3)
    take(resumed, phase, WARMUP_STEPS + 1)
    resumed = trainer(resumed.state)
    take(resumed, phase, 2)
    assert len(captures) == 2
    assert digest(whole.state) == digest(resumed.state)


def test_nothing_is_captured_before_the_step_has_run_a_few_times(captures):
    short_run(capture=True, images=8 * WARMUP_STEPS)
    assert not captures
    short_run(capture=True, images=8 * WARMUP_STEPS + 8)
    assert len(captures) == 1


# ---- captures that fail ----------------------------------------------------------------------------------


def test_without_captures_training_goes_on_and_says_so_once(monkeypatch, eager):
    def fails(function, _):
        raise RuntimeError("operation not permitted when stream is capturing\nsecond line")

    monkeypatch.setattr(cuda_graphs, "capture", fails)
    state, lines = short_run(capture=True, images=FEW)
    assert digest(state) == eager
    assert lines == ["Training continues without CUDA graphs: operation not permitted when stream is capturing"]


def test_a_capture_that_breaks_off_half_way_leaves_nothing_behind(monkeypatch, eager):
    """What was captured has not been done, so the gradients that it seems to have made are garbage."""
    update, told = pggan.training.step.update, []

    def breaks(function, _):
        def broken(trainable, *_):
            for weight in trainable.network.weights:
                if weight.grad is not None:
                    weight.grad.fill_(7.0)
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(pggan.training.step, "update", broken)
        try:
            function()
        finally:
            monkeypatch.setattr(pggan.training.step, "update", update)

    monkeypatch.setattr(cuda_graphs, "capture", breaks)
    state, lines = short_run(capture=True, images=FEW, any_rank=lambda here: told.append(here) or here)
    assert digest(state) == eager
    assert len(lines) == 1
    assert told == [True, True]  # that it has failed, and that the memory was not the reason


def test_the_loss_of_a_step_whose_capture_broke_off_between_micro_batches_is_counted_once(monkeypatch):
    options, found = ComputeOptions(micro_batch_size=4), {}
    for capture in (False, True):
        trainer = Trainer(new_state(ARCHITECTURE, ADAM, 0, CPU), WGAN_GP, options, capture=capture)
        monkeypatch.setattr(cuda_graphs, "capture", partial(breaks_in_the_second_part, trainer))
        take(trainer, phase_of(0, 0), WARMUP_STEPS)
        found[capture] = take(trainer, phase_of(0, 0))
    assert found[True]["D/loss"] == found[False]["D/loss"]


def breaks_in_the_second_part(trainer, function, _):
    """A capture that fails in D's second micro-batch."""
    passes, calls = trainer.passes, []

    def d(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return passes.d(*arguments, **options)

    trainer.passes = passes._replace(d=d)
    try:
        function()
    finally:
        trainer.passes = passes


def test_all_ranks_do_without_captures_when_one_can_not_capture(captures, eager):
    state, lines = short_run(capture=True, images=FEW, any_rank=lambda _: True)
    assert digest(state) == eager
    assert lines == ["Training continues without CUDA graphs: another rank could not capture its step"]
    assert len(captures) == 1


def agreed():
    """The trainer of `build_trainer`, when rank 1 can neither capture nor compile: what it does, logs and ends with."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)

    def fails(*_, **__):
        raise RuntimeError("not on this rank")

    able = group.rank == 0
    cuda_graphs.capture, trainer_factory.captures_graphs = stand_in if able else fails, lambda *_: True
    build.compiled_passes = lambda: Passes() if able else Passes(d=fails)
    sizes = {
        name: getattr(ARCHITECTURE, name) for name in ModelConfig.__dataclass_fields__ if hasattr(ARCHITECTURE, name)
    }
    loss, compute = {"name": "logistic", "gamma": 1.0, "reg_interval": 1}, ComputeConfig(compile=True)
    config = TrainerConfig(model=ModelConfig(**sizes), loss=loss, compute=compute)
    phase, lines = phase_of(0, 0), []
    trainer, _ = build.build_trainer(config, ARCHITECTURE, [phase], group, log=lines.append)
    for _ in range(WARMUP_STEPS + 2):
        reals = Reals(torch.zeros(4, 3, 4, 4), None, None)
        trainer.step(phase, reals, StepRng(0, trainer.state.images, CPU), 0.9)
    found = trainer.graphs.enabled, trainer.options.compiled, lines, digest(trainer.state)
    group.shutdown()
    return found


@pytest.mark.slow
def test_ranks_agree_about_captures_and_compiling_through_the_trainer_that_all_commands_build():
    one, other = values_of(in_processes(2, agreed))
    assert one[:2] == other[:2] == (False, False)
    assert one[2] == [
        "Training continues without torch.compile: another rank could not compile its step",
        "Training continues without CUDA graphs: another rank could not capture its step",
    ]
    assert other[2] == [
        "Training continues without torch.compile: not on this rank",
        "Training continues without CUDA graphs: not on this rank",
    ]
    assert one[3] == other[3]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("operation not permitted when stream is capturing"),
        PeerLost("rank 0 lost its connection"),
    ],
)
def test_whatever_breaks_a_capture_training_goes_on(monkeypatch, eager, error):
    """A collective that can't be captured reports that the other rank is lost."""

    def breaks(function, _):
        raise error

    monkeypatch.setattr(cuda_graphs, "capture", breaks)
    state, lines = short_run(capture=True, images=FEW)
    assert digest(state) == eager
    assert lines == [f"Training continues without CUDA graphs: {error}"]


@pytest.mark.slow
def test_graphs_that_do_not_fit_into_the_memory_are_given_up_for_one_phase(monkeypatch, eager_with_tensors):
    tried = []

    def capture(function, memory):
        tried.append(function)
        if len(tried) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return stand_in(function, memory)

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    state, lines = short_run(scalars_as_tensors=True, capture=True)
    assert lines == ["CUDA graphs do not fit into the memory at 8x8: this phase continues without them."]
    assert len(tried) == 3  # one in each phase
    assert digest(state) == eager_with_tensors


class Cuda:
    """Stands in for what `capture` uses of torch.cuda; notes what is done to put things right."""

    def __init__(self, monkeypatch, *, allocator_in_capture):
        self.stream, self.done, self.allocator_in_capture = "before", [], allocator_in_capture
        cuda, replaced = self, {}

        class Graph:
            """Leaving fails, as it does after an error, and the stream is not put back."""

            def __init__(self, graph, pool, **_):
                assert pool == "pool"

            def __enter__(self):
                cuda.stream = "capturing"

            def __exit__(self, *_):
                raise RuntimeError("operation failed due to a previous error during capture")

            def reset(self):
                cuda.done.append("reset")

        class Stream:
            device_index = 0

        before = Stream()
        replaced["synchronize"] = lambda: None
        replaced["CUDAGraph"] = lambda: Graph(None, "pool")
        replaced["graph"] = Graph
        replaced["graph_pool_handle"] = lambda: "pool"
        replaced["current_stream"] = lambda: before
        replaced["set_stream"] = lambda stream: cuda.done.append(("stream", stream is before))
        for name, replacement in replaced.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocation, raising=False)
        workspaces = lambda: self.done.append("workspaces")  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", workspaces, raising=False)
        monkeypatch.setattr(
            torch._C, "_cuda_releasePool", lambda *pool: self.done.append(("release", *pool)), raising=False
        )

    def end_allocation(self, device, pool):
        if not self.allocator_in_capture:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.done.append(("end", device, pool))


@pytest.mark.parametrize("before_2_15", [True, False])
def test_a_failed_capture_leaves_stream_and_allocator_as_they_were(monkeypatch, before_2_15):
    """PyTorch 2.11 leaves both in the capture; with 2.15, releasing the pool twice would end the process."""
    cuda = Cuda(monkeypatch, allocator_in_capture=before_2_15)

    def fails():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="previous error") as caught:
        cuda_graphs.capture(fails)
    assert "not permitted" in str(caught.value.__context__)
    released = [("end", 0, "pool"), ("release", 0, "pool")] if before_2_15 else []
    assert cuda.done == [("stream", True), "reset", "workspaces", *released]


# ---- how long captured steps live ------------------------------------------------------------------------


def addresses(state):
    tensors = state.state_dict()
    return {f"{part}/{name}": tensor.data_ptr() for part in tensors for name, tensor in tensors[part].items()}


def test_no_captured_step_outlives_the_memory_it_works_on(monkeypatch):
    """A probe of the memory loads the state anew: moments move, and what was captured would go on with the old ones."""
    state, checked = new_state(ARCHITECTURE, ADAM, 0, CPU), []

    def capture(function, _):
        captured, metrics = addresses(state), {}

        def replay():
            assert addresses(state) == captured
            checked.append(state.images)
            metrics.update(function())

        return replay, metrics

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    state.images = 8  # so that steps without the penalty are captured before the first one with it is probed
    trainer = Trainer(state, Logistic(gamma=1.0, reg_interval=6), ComputeOptions(), capture=True, dry_run=True)
    take(trainer, phase_of(0, 0), 8)
    assert checked == [4 * 8, 5 * 8, 7 * 8, 8 * 8]


@pytest.mark.parametrize("reset", [True, False])
def test_captured_steps_are_released_when_a_phase_begins_and_the_same_step_warms_up_again(captures, reset):
    """They hold memory; and where Adam's moments are new ones, they would go on with the old ones."""
    trainer = Trainer(
        new_state(ARCHITECTURE, ADAM, 0, CPU), WGAN_GP, ComputeOptions(), capture=True, reset_at_phase=reset
    )
    first, second = phase_of(0, 0), phase_of(1, 1000)
    take(trainer, first, WARMUP_STEPS + 2)
    assert len(captures) == 1
    take(trainer, second)
    gc.collect()
    assert captures[0]() is None
    take(trainer, second, WARMUP_STEPS - 1)
    assert len(captures) == 1
    take(trainer, second)
    assert len(captures) == 2
    # Adam's steps are counted since the phase began, or since the beginning.
    count = {int(step) for name, step in trainer.state.state_dict()["optimizer_d"].items() if name.endswith("/step")}
    assert count == {WARMUP_STEPS + 1 if reset else 2 * WARMUP_STEPS + 3}


def graphs_of(step):
    return CudaGraphs(step, lambda: None, bool, nullcontext, print)


def test_releasing_the_memory_of_captured_steps_costs_no_second_warm_up(captures):
    graphs, inputs = graphs_of(lambda inputs: {"x": inputs.latents_d}), inputs_of(phase_of(0, 0))
    found = [graphs.replay(inputs) for _ in range(WARMUP_STEPS + 1)]
    assert [metrics is None for metrics in found] == [True] * WARMUP_STEPS + [False]
    graphs.release_memory()
    assert graphs.replay(inputs) is not None
    graphs.clear()
    assert graphs.replay(inputs) is None


def test_captured_steps_share_their_memory_and_leave_it_to_eager_ones(monkeypatch):
    memories = []

    def capture(function, memory):
        memories.append(memory)
        return stand_in(function, memory)

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    graphs = graphs_of(lambda inputs: {"x": inputs.latents_d})
    one, other = inputs_of(phase_of(0, 0)), inputs_of(phase_of(0, 0, fading=True))
    for _ in range(WARMUP_STEPS + 1):
        graphs.replay(one)
    assert graphs.replay(other) is None  # the first of its kind, which is enough after the others
    assert not graphs.captured
    assert None not in [graphs.replay(inputs) for inputs in (one, other, one, other)]
    assert list(graphs.captured) == [one.spec, other.spec]
    first, second, third = memories
    assert first is not second  # nothing of the first was left, and the allocator forgets what nobody uses
    assert second is third


def test_all_kinds_of_steps_at_the_beginning_of_a_phase_warm_up_together(captures):
    graphs = graphs_of(lambda inputs: {"x": inputs.latents_d})
    one, other = inputs_of(phase_of(0, 0)), inputs_of(phase_of(0, 0, fading=True))
    found = [graphs.replay(inputs) is None for inputs in (other, one, one, one, one, other)]
    assert found == [True] * WARMUP_STEPS + [False] * 3
    assert len(captures) == 2


# ---- what a captured step does and reads -----------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Notes what a device would have to be waited for, and the largest kernel that anything is convolved with."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "lift_fresh")

    def __init__(self):
        super().__init__()
        self.waits, self.largest_kernel = [], 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name.removeprefix("aten::")
        if name in self.WAITS:
            self.waits.append(name)
        if name == "convolution":
            self.largest_kernel = max(self.largest_kernel, *arguments[1].shape[2:])
        return function(*arguments, **(options or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (WGAN_GP, ComputeOptions()),
        (WGAN_GP, ComputeOptions(dtype=torch.bfloat16, micro_batch_size=4)),
        (WGAN_GP, ComputeOptions(jvp=True)),
        (Logistic(gamma=1.0, reg_interval=1), ComputeOptions(activation_checkpointing=True)),
    ],
)
def test_a_captured_step_reads_nothing_back_and_convolves_with_no_feature_maps(monkeypatch, loss, options):
    seen = []

    def capture(function, _):
        with Operations() as operations:
            metrics = function()
        seen.append(operations)
        return (lambda: None), metrics

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    options = dataclasses.replace(options, method=DIRECT)  # as on a GPU
    trainer = Trainer(new_state(ARCHITECTURE, ADAM, 0, CPU), loss, options, capture=True)
    take(trainer, phase_of(0, 0, resolution=16, fading=True, alpha=0.5, missing_levels=0), WARMUP_STEPS + 1)
    (operations,) = seen
    assert operations.waits == []
    assert operations.largest_kernel == 4  # joined with resampling


def inputs_of(phase, ema_decay=0.9, fill=0.0, labels=None):
    images = torch.full((8, 3, phase.resolution, phase.resolution), fill)
    reals, rng = Reals(images, labels, labels), StepRng(0, int(100 * fill), CPU)
    return draw_inputs(
        phase, reals, WGAN_GP, rng, latent_size=2, ema_decay=ema_decay, options=ComputeOptions(), indices=None
    )


def test_a_captured_step_reads_its_own_copies_of_inputs_and_settings(captures):
    """All of them, set before every replay."""
    seen = []
    fading = phase_of(0, 0, fading=True, alpha=0.25)
    given = inputs_of(fading, labels=torch.zeros(8, 2))
    captured = CapturedStep(lambda inputs: seen.append(inputs) or {}, given, GraphPool())
    changed = dataclasses.replace(fading, alpha=0.5, learning_rate_d=0.3, learning_rate_g=0.4)
    other = inputs_of(changed, ema_decay=0.75, fill=1.0, labels=torch.ones(8, 2))
    captured.replay(other)
    (read,) = seen
    for name in ("latents_d", "latents_g", "mix"):
        assert torch.equal(getattr(read, name), getattr(other, name))
        assert not torch.equal(getattr(given, name), getattr(other, name))  # which stay as they were
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(read.reals, other.reals, strict=True))
    assert not given.reals.images.any()
    settings = [float(setting) for setting in (read.alpha, read.learning_rate_d, read.learning_rate_g, read.ema_decay)]
    assert settings == pytest.approx([0.5, 0.3, 0.4, 0.75])


def test_the_first_step_of_a_kind_has_more_time_in_every_phase():
    entered = []

    @contextmanager
    def slow():
        entered.append(trainer.state.images)
        yield

    trainer = Trainer(new_state(ARCHITECTURE, ADAM, 0, CPU), WGAN_GP, ComputeOptions(), slow_section=slow)
    take(trainer, phase_of(0, 0), 2)
    take(trainer, phase_of(1, 1000), 2)  # steps of the same kind
    assert entered == [0, 2 * 8]


def test_released_graphs_are_gone_at_once(captures):
    """They hold on to connections, which could not be closed: nothing may wait for the next step."""
    trainer = Trainer(new_state(ARCHITECTURE, ADAM, 0, CPU), WGAN_GP, ComputeOptions(), capture=True)
    take(trainer, phase_of(0, 0), WARMUP_STEPS + 1)
    trainer.release_graphs()
    gc.collect()
    assert captures[0]() is None
