"""Steps that are compiled, recorded or taken again are the same steps."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pggan.training.step
from pggan.core.batch import Reals
from pggan.core.errors import UserError
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.losses.logistic import Logistic
from pggan.networks.convolution import DIRECT
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state, state_sha256
from pggan.training.memory_fit import fit
from pggan.training.step import STEPS_BEFORE_RECORDING, Recording, Stepper, learn, set_up, tensors_for
from tests.definitions import ADAM, WGAN_GP, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=64, fmap_max=8)
SCHEDULE = Schedule(
    first_resolution=4,
    final_resolution=8,
    stable_images={4: 80},
    fade_images={4: 80},
    batch={4: 8},
    learning_rate_g={4: 0.001},
    learning_rate_d={4: 0.002},
)


def run(loss=WGAN_GP, compute=ComputeOptions(), images=240, before_step=None, first=0, **options):  # noqa: B008
    """The state after a short run through two levels and a fade, and what was noticed."""
    state, notices = new_state(ARCHITECTURE, ADAM, 0, CPU), []
    state.images = first
    stepper = Stepper(state, loss, compute, **{"record": False, "notice": notices.append, **options})
    while state.images < images:
        phase = SCHEDULE.at(state.images)
        reals = torch.rand(8, 3, phase.resolution, phase.resolution, generator=torch.Generator().manual_seed(0))
        if before_step:
            before_step(stepper)
        if phase.index != state.phase_index:
            state.reset_optimizers()
            stepper.forget()
        stepper.step(phase, Reals(reals, None, None), StepRng(0, state.images, CPU), 0.9)
    return state, notices


def digest(state):
    return state_sha256(state.tensors(), state.images, state.phase_index)


@pytest.fixture
def recordings(monkeypatch):
    """Stands in for CUDA graphs: a recording does on replay what the function did, on the same tensors."""
    made = []

    def capture(function):
        watched = {}

        def replay():
            watched.update(function())

        made.append(replay)
        return replay, watched

    monkeypatch.setattr(pggan.training.step, "capture_cuda", capture)
    return made


@pytest.mark.parametrize("loss", [WGAN_GP, Logistic(gamma=1.0, reg_interval=2)])
def test_recorded_steps_are_the_steps(recordings, loss):
    plain, _ = run(loss)
    recorded, notices = run(loss, record=True)
    # Turned scalars are tensors in a recording, and a product with one may round differently.
    for (name, found), expected in zip(
        recorded.g.network.named_parameters(), plain.g.network.parameters(), strict=True
    ):
        assert (found - expected).abs().max() < 1e-4, name
    assert not notices
    penalised = len({bool(loss.interval == 1), loss.interval > 1} if loss.interval > 1 else {True})
    assert len(recordings) == 3 * penalised  # per phase, with and without the lazy penalty
    assert recorded.images == plain.images


def test_nothing_is_recorded_before_the_step_has_run_a_few_times(recordings):
    run(record=True, images=8 * STEPS_BEFORE_RECORDING)
    assert not recordings
    run(record=True, images=8 * STEPS_BEFORE_RECORDING + 8)
    assert len(recordings) == 1


def test_without_recordings_training_goes_on_and_says_so_once(monkeypatch):
    def fails(function):
        raise RuntimeError("operation not permitted when stream is capturing\nsecond line")

    monkeypatch.setattr(pggan.training.step, "capture_cuda", fails)
    plain, _ = run()
    state, notices = run(record=True)
    assert digest(state) == digest(plain)
    assert notices == ["Goes on without CUDA graphs: operation not permitted when stream is capturing"]


def test_a_recording_that_breaks_off_half_way_leaves_nothing_behind(monkeypatch):
    """What was recorded has not been done, so the gradients that it seems to have made are garbage."""
    update, told = pggan.training.step.update, []

    def breaks(function):
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

    monkeypatch.setattr(pggan.training.step, "capture_cuda", breaks)
    plain, _ = run()
    state, notices = run(record=True, any_rank=lambda here: told.append(here) or here)
    assert digest(state) == digest(plain)
    assert len(notices) == 1
    assert told == [True]


def test_all_processes_do_without_recordings_when_one_can_not_record(recordings):
    plain, _ = run()
    state, notices = run(record=True, any_rank=lambda _: True)
    assert digest(state) == digest(plain)
    assert notices == ["Goes on without CUDA graphs: another process could not record its step"]
    assert len(recordings) == 1


def test_no_recording_outlives_the_memory_it_works_on(monkeypatch):
    """A rehearsal loads the state anew: moments move, and what was recorded before would go on with the old ones."""
    steppers, checked = [], []

    def addresses():
        tensors = steppers[-1].state.tensors()
        return {f"{part}/{name}": tensor.data_ptr() for part in tensors for name, tensor in tensors[part].items()}

    def capture(function):
        recorded, watched = addresses(), {}

        def replay():
            assert addresses() == recorded
            checked.append(True)
            watched.update(function())

        return replay, watched

    monkeypatch.setattr(pggan.training.step, "capture_cuda", capture)
    # From the second update on: by the time of the first penalty, steps without one have been recorded.
    loss = Logistic(gamma=1.0, reg_interval=8)
    run(loss, record=True, rehearse=True, first=8, images=160, before_step=steppers.append)
    assert len(checked) > 6


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


@pytest.mark.parametrize(
    ("loss", "compute"),
    [
        (WGAN_GP, ComputeOptions()),
        (WGAN_GP, ComputeOptions(dtype=torch.bfloat16, micro_batch_size=4)),
        (WGAN_GP, ComputeOptions(jvp=True)),
        (Logistic(gamma=1.0, reg_interval=1), ComputeOptions(activation_checkpointing=True)),
    ],
)
def test_a_recorded_step_reads_nothing_back_and_convolves_with_no_feature_maps(loss, compute):
    compute = dataclasses.replace(compute, method=DIRECT)  # as on a GPU
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    phase = Phase(0, 16, True, 0.5, 0, 10**6, 8, 0.001, 0.001, 0)
    reals = Reals(torch.rand(8, 3, 16, 16), None, None)
    stage, inputs, scalars = set_up(state, phase, reals, loss, StepRng(0, 0, CPU), decay=0.9, compute=compute)
    scalars = tensors_for(scalars, stage, CPU)
    train_step(state, stage, inputs, scalars)
    with Operations() as seen:
        train_step(state, stage, inputs, scalars)
    assert seen.waits == []
    assert seen.largest_kernel == 4  # joined with resampling


class NoGraph:
    """Stands in for torch.cuda.graph: what is done inside fails; so may leaving, and the stream is not put back."""

    streams = ("before", "recording")

    def __init__(self, *_, **__):
        NoGraph.now = self.streams[1]

    def __enter__(self):
        pass

    def __exit__(self, *_):
        NoGraph.now = "before" if self.leaves else "recording"


@pytest.mark.parametrize(("leaves", "error"), [(True, RuntimeError), (False, UserError)])
def test_a_stream_that_is_lost_ends_the_run(monkeypatch, leaves, error):
    NoGraph.now, NoGraph.leaves = "before", leaves
    for name, stand_in in {
        "synchronize": lambda: None,
        "CUDAGraph": object,
        "graph": NoGraph,
        "current_stream": lambda: NoGraph.now,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def fails():
        raise RuntimeError("capture invalidated")

    with pytest.raises(error, match="capture invalidated"):
        pggan.training.step.capture_cuda(fails)


def test_a_recording_reads_its_own_copies_of_inputs_and_dials(recordings):
    inputs, seen = {"x": torch.ones(2)}, []
    from pggan.training.step import StepInputs, StepScalars

    given = StepInputs(Reals(torch.ones(1, 3, 4, 4), None, None), torch.ones(1, 2), torch.ones(1, 2), None)
    scalars = StepScalars(1.0, torch.tensor(0.1), torch.tensor(0.2), torch.tensor(0.9))
    recording = Recording(lambda i, d: seen.append((i, d)) or inputs, given, scalars)
    other = StepInputs(Reals(torch.zeros(1, 3, 4, 4), None, None), torch.zeros(1, 2), torch.full((1, 2), 5.0), None)
    recording.replay(other, StepScalars(1.0, 0.3, 0.4, 0.5))
    (kept, turned) = seen[0]
    assert kept.latents_g.tolist() == [[5.0, 5.0]]
    assert given.latents_g.tolist() == [[1.0, 1.0]]
    assert turned.learning_rate_d.item() == pytest.approx(0.3)


@pytest.mark.fault(28)
def test_out_of_memory_is_answered_once_by_smaller_passes_with_the_same_result(monkeypatch):
    plain, _ = run(compute=ComputeOptions())
    learn, calls = pggan.training.step.learn, []

    def scarce(state, stage, inputs, scalars, **how):
        calls.append((stage.resolution, stage.compute.micro_batch_size))
        watched = train_step(state, stage, inputs, scalars, **how)  # both networks have moved when memory runs out
        if stage.resolution == 8 and stage.compute.micro_batch_size is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return watched

    monkeypatch.setattr(pggan.training.step, "learn", scarce)
    state, notices = run(rehearse=True)
    assert notices == ["Out of memory at 8x8 with 8 images per pass: goes on with 4, which gives the same updates."]
    assert {size for resolution, size in calls if resolution == 8} == {None, 4}
    for found, expected in zip(state.g.network.parameters(), plain.g.network.parameters(), strict=True):
        assert ((found - expected).abs() > 1e-3).float().mean() < 0.02  # Adam turns rounding into signs


@pytest.mark.fault(28)
def test_out_of_memory_again_ends_the_run(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pggan.training.step, "learn", full)
    with pytest.raises(UserError, match="Out of memory at 4x4 with at most 4 images per pass"):
        run(rehearse=True)


@pytest.mark.slow
# torch looks for .grad of what one compiled pass hands to the next, and hides the warning unless all are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_steps_are_the_steps(monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile(f, backend="aot_eager", **options))
    plain, _ = run(compute=ComputeOptions(jvp=True), images=104)
    compiled, _ = run(compute=ComputeOptions(jvp=True, compiled=True), images=104)  # into the fade
    for found, expected in zip(compiled.g.network.parameters(), plain.g.network.parameters(), strict=True):
        assert ((found - expected).abs() > 1e-4).float().mean() < 0.02
    torch._dynamo.reset()


# ---- fitting into memory ---------------------------------------------------------------------------------


def fitted(free, compute=ComputeOptions(), **more):  # noqa: B008
    schedule = dataclasses.replace(SCHEDULE, final_resolution=16, batch={4: 16})
    return fit(ARCHITECTURE, schedule, WGAN_GP, optimizer=ADAM, compute=compute, device=CPU, free=free, **more)


def test_a_schedule_that_fits_keeps_its_batches(monkeypatch):
    text, sizes = fitted(2**34)
    assert not sizes
    assert text == "less than 512 MiB"
    monkeypatch.setattr("pggan.training.cost.memory_fit.SMALL", 0)
    text, sizes = fitted(2**34)
    assert not sizes
    assert text.endswith("at 16x16 of 16.0 GiB free")


def test_the_need_of_every_phase_is_told_if_asked_for(monkeypatch):
    from pggan.training.fake_step import FakeStep

    monkeypatch.setattr("pggan.training.cost.memory_fit.SMALL", 0)
    looked_at = []

    def peak_bytes(self, phase, loss, compute):
        looked_at.append(phase.name)
        return phase.resolution * 2**30

    monkeypatch.setattr(FakeStep, "peak_bytes", peak_bytes)
    text, sizes = fitted(2**36, every_phase=True)
    assert text == "16.00 GiB at most, at 16x16 of 64.0 GiB free; 4x4 4.00, 8x8 8.00, 16x16 16.00"
    assert not sizes
    assert set(looked_at) == {"4x4 stable", "8x8 fade", "8x8 stable", "16x16 fade", "16x16 stable"}
    looked_at.clear()
    fitted(2**36)
    assert set(looked_at) == {"16x16 fade", "16x16 stable"}


@pytest.mark.fault(28)
def test_a_batch_that_does_not_fit_is_passed_in_parts_that_do():
    from pggan.training.fake_step import FakeStep

    phase = Phase(0, 16, False, 1.0, 0, 1, 16, 0.001, 0.001, 0)
    whole = FakeStep(ARCHITECTURE, ADAM, CPU, half=False).peak_bytes(phase, WGAN_GP, ComputeOptions())
    text, sizes = fitted(int(0.8 * whole))
    assert sizes[16, 16] in (8, 4)
    assert f"16x16 in passes of {sizes[16, 16]}" in text


@pytest.mark.fault(28)
def test_steps_that_are_recorded_by_turns_get_half_of_the_memory():
    def sizes(loss, need, recorded):
        schedule = dataclasses.replace(SCHEDULE, final_resolution=16, batch={4: 16})
        given = {"optimizer": ADAM, "compute": ComputeOptions(), "device": CPU, "free": int(need / 0.6)}
        return fit(ARCHITECTURE, schedule, loss, recorded=recorded, **given)[1]

    from pggan.training.fake_step import FakeStep

    phase = Phase(0, 16, False, 1.0, 0, 1, 16, 0.001, 0.001, 0)
    every, lazy = Logistic(gamma=1.0, reg_interval=1), Logistic(gamma=1.0, reg_interval=4)
    need = FakeStep(ARCHITECTURE, ADAM, CPU, half=False).peak_bytes(phase, every, ComputeOptions())
    assert not sizes(every, need, recorded=True)
    assert not sizes(lazy, need, recorded=False)
    assert (16, 16) in sizes(lazy, need, recorded=True)


@pytest.mark.fault(28)
def test_smaller_levels_are_looked_at_too_when_the_largest_does_not_fit(monkeypatch):
    """Here everything needs as much as its images, whatever the level."""
    from pggan.training.fake_step import FakeStep

    monkeypatch.setattr("pggan.training.cost.memory_fit.SMALL", 0)
    monkeypatch.setattr(
        FakeStep, "peak_bytes", lambda self, phase, loss, compute: (compute.micro_batch_size or phase.batch) * 2**30
    )
    _, sizes = fitted(9 * 2**30)
    assert sizes == {(4, 16): 8, (8, 16): 8, (16, 16): 8}


@pytest.mark.fault(28)
def test_what_can_not_fit_is_refused_with_the_figures():
    with pytest.raises(UserError, match=r"needs 0\.0 GiB with 4 images per pass"):
        fitted(1000)
    with pytest.raises(UserError, match="with 8 images per pass"):
        fitted(1000, ComputeOptions(micro_batch_size=8))
