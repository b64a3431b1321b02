"""Which images come to the device, when they are read, and in which memory."""

import contextlib
import threading
from concurrent.futures import wait

import numpy as np
import pytest
import torch

from pggan.data.loader import CPU_BUDGET_BYTES, Loader, Request, budget_bytes
from pggan.data.pyramid import ImagePyramid

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pyramid(make_pyramid, tmp_path_factory):
    return make_pyramid(tmp_path_factory.mktemp("reals") / "set", classes=3, images=50)


def test_a_level_lives_on_the_device_when_it_fits_the_budget(pyramid, monkeypatch):
    loader = Loader(pyramid, CPU, budget=pyramid.level_bytes(8))
    assert [loader.fits(level) for level in (4, 8, 16)] == [True, True, False]
    request = Request(8, np.array([4, 9, 4]))
    expected = pyramid.read(8, request.indices)
    assert np.array_equal(loader.get(request).numpy(), expected)
    monkeypatch.setattr(ImagePyramid, "read", None)  # it is never read again
    assert np.array_equal(loader.get(request).numpy(), expected)


def test_a_level_for_which_the_memory_does_not_suffice_is_read_batch_by_batch(pyramid, monkeypatch):
    loader, tried = Loader(pyramid, CPU, budget=pyramid.level_bytes(16)), []

    def whole_level(self, resolution):
        tried.append(resolution)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Loader, "_whole_level", whole_level)
    for numbers in ([4, 9, 4], [1, 2]):
        request = Request(16, np.array(numbers))
        assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    assert tried == [16]
    assert [loader.fits(level) for level in (8, 16)] == [True, False]


def test_what_is_read_ahead_is_not_read_again_and_what_was_not_asked_for_is_dropped(pyramid, monkeypatch):
    reads, read = [], ImagePyramid.read

    def noting(self, resolution, indices, out=None):
        reads.append((threading.current_thread() is threading.main_thread(), indices.tolist()))
        return read(self, resolution, indices, out)

    monkeypatch.setattr(ImagePyramid, "read", noting)
    loader = Loader(pyramid, CPU, budget=0)
    loader.prefetch(Request(16, np.array([1, 2])))
    assert np.array_equal(loader.get(Request(16, np.array([1, 2]))).numpy(), read(pyramid, 16, np.array([1, 2])))
    loader.prefetch(Request(16, np.array([3, 4])))
    assert np.array_equal(loader.get(Request(8, np.array([5]))).numpy(), read(pyramid, 8, np.array([5])))
    assert reads == [(False, [1, 2]), (False, [3, 4]), (False, [5])]


def test_two_buffers_take_turns(pyramid):
    loader = Loader(pyramid, CPU, budget=0)
    places = [loader.get(Request(16, np.array([number, 0]))).data_ptr() for number in range(6)]
    assert len(set(places)) == 2
    assert places[0] != places[1]
    assert places[::2] == places[:1] * 3


def test_large_batches_are_read_in_parts_without_a_gap(make_pyramid, tmp_path, monkeypatch):
    monkeypatch.setattr("pggan.data.loader.MIN_BYTES_PER_READER", 1000)
    pyramid = make_pyramid(tmp_path / "set", images=20)
    indices = np.random.default_rng(0).permutation(20)[:17]
    found = Loader(pyramid, CPU, budget=0).get(Request(16, indices)).numpy()
    assert np.array_equal(found, pyramid.read(16, indices))


def test_an_error_while_reading_ahead_reaches_the_training(pyramid, monkeypatch):
    loader = Loader(pyramid, CPU, budget=0)
    loader.prefetch(Request(16, np.array([99])))
    with pytest.raises(IndexError):
        loader.get(Request(16, np.array([99])))


def test_on_a_gpu_copies_are_waited_for_and_buffers_are_not_overwritten_early(pyramid, monkeypatch):
    """The order of events on a CUDA device, with stand-ins for its streams."""
    log = []

    class Event:
        def __init__(self, number):
            self.number = number

        def synchronize(self):
            log.append(f"buffer {self.number} copied")

    class Stream:
        events = 0

        def record_event(self):
            self.events += 1
            return Event(self.events)

        def wait_event(self, event):
            log.append(f"step waits for {event.number}")

    current, empty = Stream(), torch.empty
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(log.append("on the copy stream")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda images, stream: log.append(stream is current))
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: log.append(pin_memory) or empty(shape, dtype=dtype)
    )
    loader = Loader(pyramid, CPU, budget=0)
    loader._stream = Stream()
    requests = [Request(16, np.array([number, 0])) for number in range(3)]
    for request in requests:
        assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    pinned = [
        True,
        "on the copy stream",
        "step waits for 1",
        True,
        True,
        "on the copy stream",
        "step waits for 2",
        True,
    ]
    assert log == [*pinned, "buffer 1 copied", "on the copy stream", "step waits for 3", True]


def test_a_level_travels_to_a_gpu_in_pinned_pieces_two_of_which_take_turns(pyramid, monkeypatch):
    """50 images of 192 bytes, 20 to a piece; the third piece waits until the first has been copied."""
    log, read, empty = [], ImagePyramid.read, torch.empty

    class Event:
        def __init__(self, number):
            self.number = number

        def synchronize(self):
            log.append(f"waits for {self.number}")

    class Stream:
        events = 0

        def record_event(self):
            self.events += 1
            log.append(f"copies {self.events}")
            return Event(self.events)

    def noting(self, resolution, indices, out=None):
        log.append(f"reads {indices[0]} to {indices[-1]}")
        return read(self, resolution, indices, out)

    def empty_here(shape, dtype, device=None, pin_memory=False):
        log.append(f"{shape[0]} images{' pinned' * pin_memory}{f' on {device}' if device else ''}")
        return empty(shape, dtype=dtype)

    loader, current = Loader(pyramid, CPU, budget=pyramid.level_bytes(8)), Stream()
    loader.device, loader._stream = torch.device("cuda"), Stream()
    monkeypatch.setattr("pggan.data.loader.PIECE_BYTES", 20 * 8 * 8 * 3 + 100)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch, "empty", empty_here)
    monkeypatch.setattr(ImagePyramid, "read", noting)
    level = loader._level(8)
    assert log == [
        "50 images on cuda",
        *("20 images pinned", "reads 0 to 19", "copies 1"),
        *("20 images pinned", "reads 20 to 39", "copies 2"),
        *("waits for 1", "reads 40 to 49", "copies 3"),
    ]
    assert loader._buffers == []  # given back
    assert np.array_equal(level.numpy(), read(pyramid, 8, np.arange(50)))
    assert loader._level(8) is level


def test_after_a_rollback_to_a_level_on_the_device_what_was_read_ahead_is_waited_for(pyramid, monkeypatch):
    loader, release = Loader(pyramid, CPU, budget=pyramid.level_bytes(8)), threading.Event()
    read = ImagePyramid.read
    monkeypatch.setattr(
        ImagePyramid, "read", lambda self, *arguments, **out: release.wait(60) and read(self, *arguments, **out)
    )
    monkeypatch.setattr("pggan.data.loader.wait", lambda futures: release.set() or wait(futures))
    loader.prefetch(Request(16, np.array([1])))
    assert len(loader.get(Request(8, np.array([3])))) == 1
    assert release.is_set()
    assert loader._ahead is None


def test_the_budget_is_in_mebibytes_or_a_share_of_what_is_there(monkeypatch):
    assert budget_bytes(3, CPU) == 3 * 2**20
    assert budget_bytes(0, CPU) == 0
    assert budget_bytes(None, CPU) == 4 * budget_bytes(None, CPU, 4) == CPU_BUDGET_BYTES
    assert budget_bytes(3, CPU, 4) == 3 * 2**20  # what the user says is for each of them
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30, 90 * 2**30))
    assert budget_bytes(None, torch.device("cuda")) == 20 * 2**30
