"""Trains on cards that turn out to be too small, and with captures that fail; prints what happened as JSON.

Run by test_memory.py, which says what has to happen.
"""

import gc
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.training import cuda_graphs
from pggan.training.trainer import Trainer
from tests.cuda.null_gpu import session
from tests.cuda.programs.steps import attempt
from tests.cuda.programs.trainers import CUDA, growth, new_trainer, take_step

LARGE = 2**37  # bytes of a card on which everything fits
SEGMENT = 2**21  # bytes that PyTorch takes from a card at a time, or multiples of them
WARMUP_STEPS = 1  # instead of three, which would only take longer
FLOATS = 2**20  # of tensors that are much larger than the inputs of a step
STEPS = WARMUP_STEPS + 2  # of a phase: until a captured step has been replayed once more


def peak(work: Callable[[], object]) -> int:
    """Bytes that PyTorch takes from the card at most during `work`."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_reserved(CUDA)


def train(trainer: Trainer, phase: Phase, steps: int = STEPS) -> None:
    """Take `steps` of a phase."""
    for _ in range(steps):
        take_step(trainer, phase)


def outcome(trainer: Trainer, notices: list[str], phase: Phase) -> dict[str, Any]:
    """What a trainer has come to: steps taken, notices, images per pass, and whether its steps are captured."""
    return {
        "images": trainer.state.images,
        "notices": notices,
        "images_per_pass": trainer.micro_batch_sizes.get((phase.resolution, phase.batch)),
        "captured": trainer.graphs is not None and len(trainer.graphs.captured) > 0,
    }


def too_small_for_the_next_phase() -> dict[str, Any]:
    """The card suffices for half of the images of the next phase at a time."""
    session.set_card_bytes(LARGE)
    phases = [phase for phase in growth(16, 32, 48) if not phase.fading]
    needs = []
    for size in (None, 24):
        trainer, _ = new_trainer(phases, width=32, compute={"micro_batch_size": size, "cuda_graphs": "off"})
        needs.append(peak(lambda trainer=trainer: train(trainer, phases[1], 2)))
        del trainer
    gc.collect()
    trainer, notices = new_trainer(phases, width=32, compute={"cuda_graphs": "off"}, check_memory=True)
    train(trainer, phases[0], 2)
    torch.cuda.empty_cache()
    session.set_card_bytes(sum(needs) // 2)
    train(trainer, phases[1])
    return outcome(trainer, notices, phases[1])


def too_small_for_moments() -> dict[str, Any]:
    """The card suffices for the first step of a phase, which has no moments of Adam's yet, but not for the second."""
    session.set_card_bytes(LARGE)
    (phase,) = growth(8, 8, 64)  # whose activations need about as much as the moments
    options = {"cuda_graphs": "off"}
    trainer, _ = new_trainer((phase,), width=128, compute=options)
    needs = [peak(lambda: train(trainer, phase, 1)), peak(lambda: train(trainer, phase, 1))]
    del trainer
    gc.collect()
    trainer, notices = new_trainer((phase,), width=128, compute=options, check_memory=True)
    torch.cuda.empty_cache()
    session.set_card_bytes(sum(needs) // 2)
    train(trainer, phase)
    return outcome(trainer, notices, phase)


def smallest_card(phase: Phase) -> int:
    """Bytes of the smallest card on which eager steps of a phase can be taken: a graph needs more."""
    trainer, _ = new_trainer((phase,), compute={"cuda_graphs": "off"})
    card = peak(lambda: train(trainer, phase, 2))
    while True:
        gc.collect()
        torch.cuda.empty_cache()
        session.set_card_bytes(card - SEGMENT)
        try:
            train(trainer, phase, 1)
        except UserError:  # it is too small
            break
        card -= SEGMENT
    session.set_card_bytes(LARGE)
    return card


def too_small_for_graphs() -> dict[str, Any]:
    """The card suffices for eager steps of a phase, but not for the memory of a graph besides; then for both."""
    session.set_card_bytes(LARGE)
    first, second = (phase for phase in growth(32, 64, 32) if not phase.fading)
    smallest = smallest_card(first)
    gc.collect()
    torch.cuda.empty_cache()
    trainer, notices = new_trainer((first, second))
    session.set_card_bytes(smallest)
    train(trainer, first)
    found = {"first": outcome(trainer, list(notices), first)}
    session.set_card_bytes(LARGE)
    train(trainer, second)
    return found | {"second": outcome(trainer, notices, second)}


def autograd_lags() -> dict[str, Any]:
    """The backward pass of a capture fails, and its thread comes to rest long after the error was raised.

    That thread shares one processor with the main one, and runs only while that waits.
    """
    session.set_card_bytes(LARGE)
    (phase,) = growth(4, 4, 8)
    trainer, notices = new_trainer((phase,))
    train(trainer, phase, WARMUP_STEPS)
    main_thread, processors, left = threading.get_native_id(), os.sched_getaffinity(0), []

    def fail(gradient: torch.Tensor) -> None:
        assert threading.get_native_id() != main_thread
        os.sched_setaffinity(0, {min(processors)})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def step(inputs: Any) -> Any:
        x = torch.ones(FLOATS, device=CUDA, requires_grad=True).exp()
        x.register_hook(fail)
        x.square().sum().backward()

    before = torch.cuda.memory_allocated(CUDA)
    trainer.graphs.step = step
    trainer.graphs.log = lambda text: (notices.append(text), left.append(torch.cuda.memory_allocated(CUDA) - before))
    os.sched_setaffinity(0, {min(processors)})
    train(trainer, phase, 1)
    os.sched_setaffinity(0, processors)
    return {"left_bytes": left, "notices": notices}


def waits_inside_a_capture() -> dict[str, Any]:
    """The step reads a number from the device, which no capture allows."""
    session.set_card_bytes(LARGE)
    (phase,) = growth(4, 4, 8)
    trainer, notices = new_trainer((phase,))
    step, stream = trainer._train_step, torch.cuda.current_stream()

    def waits(inputs: Any) -> Any:
        metrics = step(inputs)
        metrics["D/loss"].item()
        return metrics

    trainer.graphs.step = waits
    train(trainer, phase)
    reserved = torch.cuda.memory_reserved(CUDA)
    train(trainer, phase)
    grown = torch.cuda.memory_reserved(CUDA) - reserved
    same_stream = torch.cuda.current_stream() == stream
    return outcome(trainer, notices, phase) | {"same_stream": same_stream, "grown_bytes": grown}


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    cases: tuple[Callable[[], dict[str, Any]], ...] = (
        too_small_for_the_next_phase,
        too_small_for_moments,
        too_small_for_graphs,
        waits_inside_a_capture,
        autograd_lags,  # the last one: its thread of autograd stays slow
    )
    print(json.dumps({case.__name__: attempt(case) for case in cases}))
