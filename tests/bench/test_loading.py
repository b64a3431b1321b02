"""Measuring how fast images are loaded."""

import itertools

import numpy as np

from pggan.data.pyramid import ImagePyramid
from pggan.performance.bench import loading
from pggan.performance.bench.loading import drop_from_memory, rate


def test_cold_files_leave_the_page_cache_and_their_content_stays(toy_data):
    pyramid = ImagePyramid(toy_data)
    before = pyramid.read(16, np.arange(48)).copy()
    drop_from_memory(ImagePyramid(toy_data), 16)
    np.testing.assert_array_equal(ImagePyramid(toy_data).read(16, np.arange(48)), before)


def test_a_rate_is_batches_per_second_after_two_that_are_not_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(loading.time, "perf_counter", lambda: now[0])

    def batches(seconds):
        for number in itertools.count():
            now[0] += seconds if number >= 2 else 1000.0
            yield

    assert rate(batches(0.25), least=3, seconds=0.1) == 4  # at least three batches
    assert rate(batches(0.25), least=1, seconds=2.0) == 4  # for at least two seconds
    now[0] = 0.0
    assert rate(batches(0.25), least=2, seconds=0.0) == 2 / 2000  # a cold start counts
