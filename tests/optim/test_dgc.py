"""Compressed gradients on two ranks: what each one takes in, and what it keeps over checkpoints and phases."""

import math
from types import SimpleNamespace

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.resume import broadcast_state
from pggan.config import DgcConfig, ModelConfig, TrainerConfig
from pggan.config.compute import Precision
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, RankInfo, rank_from_environment
from pggan.optim.dgc import EXTRA_STATE, DgcReducer
from pggan.optim.state import INIT_SCALE, new_state, state_sha256
from pggan.run import train
from pggan.training.build import build_trainer
from tests.definitions import ADAM, variant
from tests.processes import free_ports, in_processes, set_port, values_of

CPU = torch.device("cpu")
SMALL = variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8)
FIRST = Phase(0, 4, False, 1.0, 0, 16, 8, 0.001, 0.001, 1)
SECOND = Phase(1, 8, True, 0.5, 16, 32, 8, 0.001, 0.001, 0)
CLIP = 0.01  # far less than any gradient here


def trainer_of(group, clip=None, precision=Precision.fp32):
    config = TrainerConfig(
        model=ModelConfig(
            **{name: getattr(SMALL, name) for name in ModelConfig.__dataclass_fields__ if hasattr(SMALL, name)}
        ),
        loss={"name": "logistic", "gamma": 1.0, "reg_interval": 1},
        precision=precision,
        gradients={"name": "dgc", "ratio": 0.1, "warmup_images": 8, "clip": clip},
    )
    return build_trainer(config, SMALL, [FIRST, SECOND], group, check_memory=False)


def take(trainer, phase, count):
    for _ in range(count):
        images = trainer.state.images
        reals = torch.rand(8, 3, phase.resolution, phase.resolution, generator=torch.Generator().manual_seed(images))
        mine = Reals(reals, None, None).select(trainer.indices(8))
        trainer.step(phase, mine, StepRng(0, images, CPU), 0.9)


def digest(trainer):
    state = trainer.state
    return state_sha256({**state.state_dict(), **trainer.reducer.extra_state()}, state.images, state.phase_index)


def copied(state_dicts):
    return {key: {name: tensor.clone() for name, tensor in tensors.items()} for key, tensors in state_dicts.items()}


def load(trainer, saved, group):
    """As a resumed run, or one that rolls back, does: rank 0 alone has read the checkpoint."""
    state_dicts, extra, clock = saved
    trainer.state.load_state_dict(state_dicts)
    trainer.state.images, trainer.state.phase_index = clock
    checkpoint = SimpleNamespace(header={"files": [f"{EXTRA_STATE}.safetensors"]}, load=extra.get)
    broadcast_state(trainer.state, trainer.reducer, checkpoint if group.is_main else None, group)


def taken_in(group, clip=None, precision=Precision.fp32):
    """This rank's own gradient of D in the first step, and what became of it in the compressor."""
    trainer = trainer_of(group, clip, precision)
    reducer, found = trainer.reducer, {}
    start = reducer.start_all_reduce

    def watched(trainable, batch):
        name = "d" if trainable is trainer.state.d else "g"
        gradients = [weight.grad for weight in trainable.network.weights if weight.grad is not None]
        found.setdefault(name, torch.stack(torch._foreach_norm(gradients)).norm().item())
        return start(trainable, batch)

    reducer.start_all_reduce = watched
    take(trainer, FIRST, 1)
    exp_avg_sq = reducer._compressors["d"].exp_avg_sq
    return found["d"], (exp_avg_sq.double() / (1 - ADAM.beta2)).sum().sqrt().item()


def skipped(group):
    """Whether updates of D and G are skipped in a step in which the gradient of D on rank 1 alone is not finite."""
    trainer = trainer_of(group)
    if group.rank == 1:
        for weight in trainer.state.d.network.weights:
            weight.register_hook(lambda gradient: gradient * math.inf)
    reals = Reals(torch.rand(8, 3, FIRST.resolution, FIRST.resolution), None, None).select(trainer.indices(8))
    metrics = trainer.step(FIRST, reals, StepRng(0, 0, CPU), 0.9)
    return [int(metrics[f"{name}/skipped"]) for name in ("D", "G")]


def seen_by_two():
    """All that these tests ask of two ranks, in one meeting."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    norms = {
        "plain": taken_in(group),
        "clipped": taken_in(group, clip=CLIP),
        "scaled": taken_in(group, precision=Precision.fp16),
    }
    trainer = trainer_of(group)
    take(trainer, FIRST, 2)
    clock = (trainer.state.images, trainer.state.phase_index)
    saved = copied(trainer.state.state_dict()), copied(trainer.reducer.extra_state()), clock
    take(trainer, SECOND, 2)
    second = digest(trainer)
    load(trainer, saved, group)
    take(trainer, FIRST, 1)
    rolled_back = digest(trainer)
    resumed = trainer_of(group)
    load(resumed, saved, group)
    take(resumed, SECOND, 2)
    resumed_later = trainer_of(group)
    load(resumed_later, saved, group)
    take(resumed_later, FIRST, 1)
    straight = trainer_of(group)
    take(straight, FIRST, 3)
    found = {
        "skipped": skipped(group),
        "norms": norms,
        "second": (second, digest(resumed)),
        "first": (digest(straight), digest(resumed_later), rolled_back),
    }
    group.shutdown()
    return found


@pytest.fixture(scope="module")
def of_two():
    return values_of(in_processes(2, seen_by_two))


@pytest.mark.slow
def test_each_rank_takes_in_the_gradient_of_the_mean_over_its_own_images(of_two):
    """What a rank has is its share of the mean over the batch, 1/2 of that; half precision has scaled it besides."""
    for found in of_two:
        own, taken = found["norms"]["plain"]
        assert taken == pytest.approx(2 * own, rel=1e-5)
        own, taken = found["norms"]["scaled"]
        assert taken == pytest.approx(2 * own / INIT_SCALE, rel=1e-5)


@pytest.mark.slow
def test_the_norm_of_each_rank_is_limited_to_that_of_the_mean_over_the_root_of_their_number(of_two):
    for found in of_two:
        own, taken = found["norms"]["clipped"]
        assert own > CLIP
        assert taken == pytest.approx(CLIP / 2**0.5, rel=1e-5)


@pytest.mark.slow
def test_a_gradient_of_one_rank_that_is_not_finite_skips_the_update_of_all_and_is_counted(of_two):
    assert [found["skipped"] for found in of_two] == [[1, 0], [1, 0]]


@pytest.mark.slow
def test_a_phase_that_begins_after_a_resume_begins_as_without_one(of_two):
    """What waits belongs to other levels then."""
    for found in of_two:
        straight, resumed = found["second"]
        assert straight == resumed


@pytest.mark.slow
def test_a_phase_goes_on_with_what_waits_after_a_resume_and_after_rolling_back_into_it(of_two):
    for found in of_two:
        straight, resumed, rolled_back = found["first"]
        assert straight == resumed == rolled_back


def reducer_of(group):
    options = DgcConfig(ratio=0.1, warmup_images=0, clip=None)
    return DgcReducer(group, new_state(SMALL, ADAM, 0, CPU, sparse=True), ADAM, options)


def test_the_warmup_counts_images_of_the_phase(monkeypatch):
    seen = []
    monkeypatch.setattr("pggan.optim.dgc.share_to_send", lambda ratio, images, since: seen.append(since) or 1.0)
    reducer = reducer_of(ProcessGroup.single_process(CPU))
    for phase, images in ((FIRST, 0), (FIRST, 8), (SECOND, 16), (SECOND, 24)):
        reducer.begin_step(phase, images)
    assert seen == [0, 8, 0, 8]


def test_more_ranks_get_the_mean_of_what_fewer_had_kept():
    reducer = reducer_of(ProcessGroup(RankInfo(2, 3, 2, 3), CPU, None, None))
    kept = {f"d/{rank}/{name}": torch.full((5,), rank + 1.0) for rank in (0, 1) for name in ("residual", "exp_avg_sq")}
    kept |= {f"d/{rank}/steps": torch.tensor(7.0) for rank in (0, 1)}
    reducer.load_extra_state({"compression": kept, "generator": {}})
    found = reducer._compressors["d"].state_dict()
    # What waits, in the mean of all, is what it was.
    assert found["residual"].tolist() == found["exp_avg_sq"].tolist() == [1.5] * 5
    assert float(found["steps"]) == 7


def test_as_many_ranks_get_each_what_it_had_kept():
    for rank in (0, 1):
        reducer = reducer_of(ProcessGroup(RankInfo(rank, 2, rank, 2), CPU, None, None))
        names = ("residual", "exp_avg_sq", "steps")
        kept = {f"g/{other}/{name}": torch.tensor([other + 1.0]) for other in (1, 0) for name in names}
        kept |= {f"g/{other}/steps": torch.tensor(7.0) for other in (0, 1)}
        reducer.load_extra_state({"compression": kept})
        assert reducer._compressors["g"].residual.tolist() == [rank + 1.0]


def states(run_dir):
    checkpoint, corrupt = newest_checkpoint(run_dir)
    assert not corrupt
    return checkpoint


@pytest.mark.slow
def test_a_run_resumes_with_what_had_not_been_sent(tiny_config, tmp_path):
    dgc = ("gradients=dgc", "gradients.ratio=0.1", "gradients.warmup_images=16", "schedule.final_resolution=8")
    straight = tiny_config(f"run_dir={tmp_path / 'straight'}", *dgc)
    first = tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=72", *dgc)
    rest = tiny_config(f"run_dir={tmp_path / 'parts'}", *dgc)
    assert values_of(in_processes(2, runs, [straight, first], free_ports(2))) == [[0, 0]] * 2
    stopped = states(tmp_path / "parts")
    assert stopped.images == 72
    kept = stopped.load("compression")
    assert {name.split("/")[0] + name.split("/")[1] for name in kept} == {"g0", "g1", "d0", "d1"}
    assert kept["d/0/residual"].count_nonzero() > 0
    assert not kept["d/0/residual"].equal(kept["d/1/residual"])  # each rank waits with its own
    assert values_of(in_processes(2, runs, [rest], free_ports(1))) == [[0], [0]]
    ends = [states(tmp_path / name).header["state_sha256"] for name in ("parts", "straight")]
    assert ends[0] == ends[1]
    # Alone, nothing is compressed: Adam begins anew, the weights go on.
    alone = tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=112", *dgc)
    assert train.run(alone) == 0
    assert states(tmp_path / "parts").images == 112


def runs(configs, ports):
    """The exit codes of runs, each at its own port: else a rank may meet the store of the run before."""
    codes = []
    for config, port in zip(configs, ports, strict=True):
        set_port(port)
        codes.append(train.run(config))
    return codes
