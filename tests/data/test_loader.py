"""Which images come to the device, and when they are read."""

import contextlib
import threading

import numpy as np
import pytest
import torch

from pggan.data import loader as loading
from pggan.data.loader import CPU_BUDGET_BYTES, Loader, Request, budget_bytes
from pggan.data.pyramid import ImagePyramid

CPU = torch.device("cpu")


class Noting(ImagePyramid):
    """Notes of every read whether the training's own thread reads, and how many images."""

    def read(self, resolution, indices, out=None):
        self.reads.append((threading.current_thread() is threading.main_thread(), len(indices)))
        return super().read(resolution, indices, out)


class NoMemory(Loader):
    """For no level does the memory suffice."""

    def _level(self, resolution):
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture
def pyramid(make_pyramid, tmp_path):
    noting = Noting(make_pyramid(tmp_path / "set", classes=3, images=50).path)
    noting.reads = []
    return noting


def test_a_level_lives_on_the_device_when_it_fits_the_budget_and_travels_in_pieces(pyramid, monkeypatch):
    monkeypatch.setattr(loading, "PIECE_BYTES", 20 * 8 * 8 * 3 + 100)
    loader = Loader(pyramid, CPU, budget=pyramid.level_bytes(8))
    assert [loader.fits(level) for level in (4, 8, 16)] == [True, True, False]
    found = [loader.get(Request(8, np.array(indices))) for indices in ([4, 9, 4], [49, 0])]
    assert pyramid.reads == [(True, 20), (True, 20), (True, 10)]
    assert np.array_equal(torch.cat(found).numpy(), pyramid.read(8, np.array([4, 9, 4, 49, 0])))


def test_a_level_for_which_the_memory_does_not_suffice_is_read_batch_by_batch(pyramid):
    loader = NoMemory(pyramid, CPU, budget=pyramid.level_bytes(16))
    for numbers in ([4, 9, 4], [1, 2]):
        request = Request(16, np.array(numbers))
        assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    assert [loader.fits(level) for level in (8, 16)] == [True, False]


def test_what_is_read_ahead_is_not_read_again_and_what_was_not_asked_for_is_dropped(pyramid):
    loader = Loader(pyramid, CPU, budget=0)
    loader.prefetch(Request(16, np.array([1, 2])))
    loader.get(Request(16, np.array([1, 2])))
    loader.prefetch(Request(16, np.array([3, 4, 5])))
    found = loader.get(Request(8, np.array([5])))
    assert pyramid.reads == [(False, 2), (False, 3), (False, 1)]
    assert np.array_equal(found.numpy(), pyramid.read(8, np.array([5])))


def test_an_error_while_reading_ahead_reaches_the_training(pyramid):
    loader = Loader(pyramid, CPU, budget=0)
    loader.prefetch(Request(16, np.array([99])))
    with pytest.raises(IndexError):
        loader.get(Request(16, np.array([99])))


def test_on_a_gpu_the_step_waits_for_the_copy_from_pinned_memory(pyramid, monkeypatch):
    """The order of events on a CUDA device, with stand-ins for its streams."""
    log, empty = [], torch.empty

    class Stream:
        def record_event(self):
            return "copied"

        def wait_event(self, event):
            log.append(f"step waits until {event}")

    current = Stream()
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(log.append("on the copy stream")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda images, stream: log.append(stream is current))
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: log.append(f"pinned {pin_memory}") or empty(shape, dtype=dtype)
    )
    loader = Loader(pyramid, CPU, budget=0)
    loader._stream = Stream()
    request = Request(16, np.array([3, 0]))
    assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    assert log == ["pinned True", "on the copy stream", "step waits until copied", True]


def test_the_budget_is_a_share_of_what_is_there(monkeypatch):
    assert budget_bytes(CPU) == 4 * budget_bytes(CPU, 4) == CPU_BUDGET_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30, 90 * 2**30))
    assert budget_bytes(torch.device("cuda")) == 20 * 2**30
