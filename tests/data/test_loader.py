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


@pytest.fixture(scope="module")
def pyramid(make_pyramid, tmp_path_factory):
    return make_pyramid(tmp_path_factory.mktemp("reals") / "set", classes=3, images=50)


@pytest.fixture
def reads(monkeypatch):
    """Whether the training's own thread reads, and how many images, for every read."""
    found, read = [], ImagePyramid.read

    def noting(self, resolution, indices, out=None):
        found.append((threading.current_thread() is threading.main_thread(), len(indices)))
        return read(self, resolution, indices, out)

    monkeypatch.setattr(ImagePyramid, "read", noting)
    return found


def test_a_level_lives_on_the_device_when_it_fits_the_budget_and_travels_in_pieces(pyramid, reads, monkeypatch):
    monkeypatch.setattr(loading, "PIECE_BYTES", 20 * 8 * 8 * 3 + 100)
    loader = Loader(pyramid, CPU, budget=pyramid.level_bytes(8))
    assert [loader.fits(level) for level in (4, 8, 16)] == [True, True, False]
    for indices in ([4, 9, 4], [49, 0]):
        found = loader.get(Request(8, np.array(indices)))
        assert reads[:3] == [(True, 20), (True, 20), (True, 10)]
        assert np.array_equal(found.numpy(), pyramid.read(8, np.array(indices)))
    assert len(reads) == 3 + 2  # the level once, and what the test compares with


def test_a_level_for_which_the_memory_does_not_suffice_is_read_batch_by_batch(pyramid, monkeypatch):
    loader, tried = Loader(pyramid, CPU, budget=pyramid.level_bytes(16)), []

    def no_memory(resolution):
        tried.append(resolution)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(loader, "_level", no_memory)
    for numbers in ([4, 9, 4], [1, 2]):
        request = Request(16, np.array(numbers))
        assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    assert tried == [16]
    assert [loader.fits(level) for level in (8, 16)] == [True, False]


def test_what_is_read_ahead_is_not_read_again_and_what_was_not_asked_for_is_dropped(pyramid, reads):
    loader = Loader(pyramid, CPU, budget=0)
    loader.prefetch(Request(16, np.array([1, 2])))
    loader.get(Request(16, np.array([1, 2])))
    loader.prefetch(Request(16, np.array([3, 4, 5])))
    found = loader.get(Request(8, np.array([5])))
    assert reads == [(False, 2), (False, 3), (False, 1)]
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
