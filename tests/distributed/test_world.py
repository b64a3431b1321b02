"""What processes tell each other, and how they fail together."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from pggan.cli.main import guarded
from pggan.core.errors import EXIT_LEFT, EXIT_USER_ERROR, UserError
from pggan.distributed.process_group import PeerLost, ProcessGroup, RemoteUserError, rank_from_environment
from pggan.distributed.watchdog import Watchdog
from pggan.run import loop, run, train
from pggan.run.metrics import MetricAccumulator
from pggan.training.step import Stepper
from tests.processes import in_processes, values_of

CPU = torch.device("cpu")


def together(group):
    """Everything that is no collective of tensors alone; what each process saw."""
    found = {
        "gathered": group.all_gather_object("ä" * (3 - group.rank)),
        "told": group.broadcast_object({"a": [1, None]} if group.is_main else None),
        "lowest": (
            group.all_reduce_min(5 - group.rank),
            group.all_reduce_min(7 if group.is_main else None),
            group.all_reduce_min(None),
        ),
    }
    with group.collective_errors():
        found["all well"] = True
    try:
        with group.collective_errors():
            if group.rank == 2:
                raise UserError("No such thing.", "Take another.")
        found["one failed"] = "went on"
    except (UserError, RemoteUserError) as error:
        found["one failed"] = f"{type(error).__name__}: {error}"
    try:
        with group.collective_errors():
            raise UserError(f"Process {group.rank} too.", "Take another.")
    except (UserError, RemoteUserError) as error:
        found["all failed"] = f"{type(error).__name__}: {error}"
    try:
        group.require_same({"seed": 0, "torch": "2.13" if group.rank < 2 else "2.12"})
    except (UserError, RemoteUserError) as error:
        found["different"] = f"{type(error).__name__}: {error}"
    try:  # tables with other keys
        group.require_same({"batch.4": 8} if group.rank < 2 else {"batch.4": 8, "batch.8": 16})
    except (UserError, RemoteUserError) as error:
        found["more"] = f"{type(error).__name__}: {error}"
    try:
        group.require_same({"batch": 8} if group.is_main else {"batch.4": 8})
    except (UserError, RemoteUserError) as error:
        found["other"] = f"{type(error).__name__}: {error}"
    group.require_same({"seed": 0})
    return found


def flags(group):
    """The third of three processes flags something in the second round."""
    return [group.all_reduce_flags(4 if (group.rank, number) == (2, 1) else group.rank == 1) for number in range(4)]


def means(group):
    """MetricAccumulator of unequal shares: 1, 2 and 3 numbers."""
    averages = MetricAccumulator()
    for number in range(2):
        values = torch.full((group.rank + 1,), float(group.rank))
        norm = torch.tensor(10.0 * group.rank + number)
        averages.add({"scores/reals": values, "D/gradient_norm": norm, "D/skipped": torch.tensor(number == 1)})
    first = averages.flush(group)
    return first, averages.flush(group)


def weights(group):
    """Equal ones, then one with a flipped bit in process 1."""
    generator = torch.Generator().manual_seed(0)
    named = {"G": [torch.randn(3, generator=generator)], "D": [torch.randn(2, 2, generator=generator), torch.ones(2)]}
    group.require_equal_weights(named)
    if group.rank == 1:
        named["D"][0].view(torch.int32)[1, 1] ^= 1
    try:
        group.require_equal_weights(named)
    except (UserError, RemoteUserError) as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def swapped(group):
    """The same numbers in another order are other weights."""
    named = {"G": [torch.ones(2), torch.zeros(2)]}
    if group.rank == 1:
        named["G"].reverse()
    try:
        group.require_equal_weights(named)
    except (UserError, RemoteUserError):
        return "ended"
    return "went on"


def tensors(group):
    mine = torch.full((2, 3, 4, 4), float(group.rank)).contiguous(memory_format=torch.channels_last)
    gathered = [float(other.mean()) for other in group.all_gather(torch.tensor([float(group.rank)]))]
    group.broadcast([mine])
    return float(mine.mean()), gathered, group.all_reduce_sum(torch.tensor([1.0, group.rank])).tolist()


def interpolate_path():
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    found = [function(group) for function in (together, flags, means, weights, swapped, tensors)]
    group.shutdown()
    return found


@pytest.fixture(scope="module")
def visits():
    """What three processes saw: by function, then by rank."""
    return list(zip(*values_of(in_processes(3, interpolate_path)), strict=True))


def test_everyone_hears_everyone_in_order_of_rank(visits):
    for found in visits[0]:
        assert found["gathered"] == ["äää", "ää", "ä"]
        assert found["told"] == {"a": [1, None]}
        assert found["lowest"] == (3, 7, None)


def test_an_error_of_one_is_told_by_that_one_and_ends_all(visits):
    assert all(found["all well"] for found in visits[0])
    assert [found["one failed"].split(":")[0] for found in visits[0]] == [
        "RemoteUserError",
        "RemoteUserError",
        "UserError",
    ]
    assert "No such thing." in visits[0][2]["one failed"]
    assert [found["all failed"].split(":")[0] for found in visits[0]] == [
        "UserError",
        "RemoteUserError",
        "RemoteUserError",
    ]


def test_what_differs_between_processes_is_named(visits):
    assert "Process 2 has another torch than process 0: 2.12 instead of 2.13" in visits[0][0]["different"]
    assert sum(found["different"].startswith("UserError") for found in visits[0]) == 1
    assert "Process 2 has another batch.8 than process 0: 16 instead of nothing" in visits[0][0]["more"]
    assert "Process 1 has another batch than process 0: nothing instead of 8" in visits[0][0]["other"]


def test_a_wish_of_one_reaches_all_at_the_same_step_one_later(visits):
    assert visits[1] == ([0, 1, 4, 1],) * 3  # what is still wished for in the next round is not heard twice


def test_averages_are_those_of_all_images_and_skipped_updates_are_counted_once(visits):
    for first, second in visits[2]:
        assert first["scores/reals"] == pytest.approx((0 + 1 * 2 + 2 * 3) / 6)
        assert first["D/gradient_norm"] == pytest.approx(10.5)
        assert first["D/gradient_norm_max"] == 21
        assert first["D/skipped"] == 1
        assert second == {}


def test_one_flipped_bit_in_the_weights_of_a_process_ends_the_run_and_names_it(visits):
    told, *others = visits[3]
    assert "UserError: The weights of D in process 1 are no longer those of process 0" in told
    assert "goes on from the last checkpoint" in told
    assert all(other.startswith("RemoteUserError") for other in others)


def test_exchanged_tensors_are_noticed_too(visits):
    assert visits[4] == ("ended",) * 3


def test_tensors_of_the_first_reach_all_and_totals_are_of_all(visits):
    assert visits[5] == ((0.0, [0.0, 1.0, 2.0], [3.0, 3.0]),) * 3


# ---- losing one ------------------------------------------------------------------------------------------


def lose_one():
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_gather_object("there?")
    except PeerLost as error:
        return str(error)
    return "went on"


@pytest.mark.fault(15)
def test_a_process_that_is_gone_is_noticed_at_the_next_word():
    here, gone = in_processes(2, lose_one)
    assert gone.code == -signal.SIGKILL
    assert here.value.startswith("process 0 on ")
    assert "lost its connection to the others" in here.value


# ---- whole runs ------------------------------------------------------------------------------------------


def flip_and_train(config):
    """Train as one of two; a bit of D's weights flips in process 1 at 40 images.  The exit code."""
    begin = loop.Trainer.take_step

    def take_step(self, phase):
        begin(self, phase)
        if self.group.rank == 1 and self.state.images == 40:
            with torch.no_grad():
                next(iter(self.state.d.network.weights)).flatten()[:1] *= 1.5

    loop.Trainer.take_step = take_step
    return guarded(lambda: train.run(config))


@pytest.mark.fault(9)
def test_a_run_ends_with_code_2_at_the_next_tick_after_weights_have_come_apart(tiny_config, tmp_path):
    config = tiny_config(f"run_dir={tmp_path / 'run'}", "devices=cpu")
    assert values_of(in_processes(2, flip_and_train, config)) == [EXIT_USER_ERROR] * 2
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2  # at 64 images they are compared
    assert not (tmp_path / "run" / "checkpoints" / "000000064").exists()


def hang_and_train(config):
    """Train as one of two; the main thread of process 1 stands still at 56 images, its other threads live."""
    step, log = Stepper.step, Path(config.run_dir) / "train.log"

    def watched_step(self, *arguments):
        if os.environ["RANK"] == "1" and self.state.images == 48:
            while "Hung" not in log.read_text():
                time.sleep(0.1)
            os._exit(0)
        return step(self, *arguments)

    Stepper.step = watched_step
    run.Watchdog = lambda group, _, say: Watchdog(group, 3.0, say)  # keys begin at 5 seconds
    train.run(config)


@pytest.mark.fault(16)
def test_a_process_whose_main_thread_hangs_is_named_with_its_place_and_given_up(tiny_config, tmp_path):
    config = tiny_config(f"run_dir={tmp_path / 'run'}")
    waiting, hanging = in_processes(2, hang_and_train, config)
    assert waiting.code == EXIT_LEFT
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"(pid {hanging.pid}) does not come to its end; it was last seen at 48 images" in log
    assert "Hung: process 1 on" in log
