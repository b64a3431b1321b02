"""The model of links, worked out by hand."""

import pytest

from pggan.plan.links import LINKS, Link, Network, Reduction

LINK = Link(bytes_per_second=1e9, latency_seconds=1e-3, source="a worked example")
MILLION = 10**6  # numbers


def test_a_ring_all_reduce_sends_two_rounds_of_shares():
    # Four devices, 400 MB: 2 * 3 messages of 100 MB each, 0.1 s, and a millisecond for every message.
    assert Network(LINK, Reduction.fp32, 1.0).seconds(4, 100 * MILLION) == pytest.approx(6 * 0.1 + 6 * 1e-3)


def test_an_all_gather_passes_on_the_message_of_every_other_device():
    # Four devices, 6 MB of compressed gradient each: 3 messages of 6 ms, and a millisecond for every message.
    assert Network(LINK, Reduction.dgc, 0.5).seconds(4, 4 * MILLION) == pytest.approx(3 * (6e-3 + 1e-3))


def test_one_device_sends_nothing():
    for reduction in Reduction:
        assert Network(LINK, reduction, 0.01).seconds(1, MILLION) == 0


def test_the_size_of_a_gradient_depends_on_the_reduction():
    def seconds(reduction, numbers, ratio):
        return Network(LINK, reduction, ratio).seconds(2, numbers)

    # Between two devices, an all-reduce sends the numbers once in either round, half at a time.
    assert seconds(Reduction.fp32, MILLION, 0.5) == pytest.approx(4e6 / 1e9 + 2e-3)
    assert seconds(Reduction.bf16, MILLION, 0.5) == pytest.approx(2e6 / 1e9 + 2e-3)
    # One in a thousand, at 3 bytes: position and value; rounded up to whole numbers.
    assert seconds(Reduction.dgc, MILLION, 0.001) == pytest.approx(3e3 / 1e9 + 1e-3)
    assert seconds(Reduction.dgc, MILLION + 1, 0.001) == pytest.approx(3003 / 1e9 + 1e-3)


def test_sparse_gradients_are_slower_than_dense_ones_between_many_devices():
    """All-gathers grow with the devices, all-reduces do not: sparse ones lose at about 2 * 4 / (3 * ratio) devices."""
    wide = Link(bytes_per_second=1e9, latency_seconds=0, source="no latency")

    def sparse_wins(devices):
        sparse, dense = (Network(wide, kind, 0.01).seconds(devices, 10**7) for kind in (Reduction.dgc, Reduction.fp32))
        return sparse < dense

    assert sparse_wins(266)
    assert not sparse_wins(267)


def test_no_link_is_faster_than_its_line_and_they_are_listed_from_fast_to_slow():
    lines = {
        "nvlink": 450e9,
        "pcie": 31.5e9,
        "400g": 50e9,
        "100g": 12.5e9,
        "25g": 3.125e9,
        "10g": 1.25e9,
        "1g": 0.125e9,
    }
    assert set(LINKS) == set(lines)
    assert all(0 < LINKS[name].bytes_per_second < line for name, line in lines.items())
    latencies = [link.latency_seconds for link in LINKS.values()]
    assert latencies == sorted(latencies)
