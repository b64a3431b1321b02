"""The model of links, worked out by hand."""

import pytest

from pggan.plan.links import LINKS, Exchange, Link, all_gather_seconds, all_reduce_seconds, exchange_seconds

LINK = Link(bytes_per_second=1e9, latency_seconds=1e-3, source="a worked example")


def test_a_ring_all_reduce_sends_two_rounds_of_shares():
    # Four devices, 400 MB: 2 * 3 messages of 100 MB each, 0.1 s, and a millisecond for every message.
    assert all_reduce_seconds(LINK, 4, 400e6) == pytest.approx(6 * 0.1 + 6 * 1e-3)


def test_an_all_gather_passes_on_what_every_other_device_has():
    # Four devices, 5 MB each: 3 messages of 5 ms.
    assert all_gather_seconds(LINK, 4, 5e6) == pytest.approx(3 * (5e-3 + 1e-3))


def test_one_device_exchanges_nothing():
    for exchange in Exchange:
        assert exchange_seconds(LINK, exchange, 1, 10**6, 0.01) == 0


def test_what_is_sent_of_a_gradient():
    million = 10**6  # numbers, between two devices: an all-reduce sends them once in either round, half at a time
    assert exchange_seconds(LINK, Exchange.fp32, 2, million, 0.5) == pytest.approx(4e6 / 1e9 + 2e-3)
    assert exchange_seconds(LINK, Exchange.bf16, 2, million, 0.5) == pytest.approx(2e6 / 1e9 + 2e-3)
    # One in a thousand, at 3 bytes: position and value; rounded up to whole numbers.
    assert exchange_seconds(LINK, Exchange.dgc, 2, million, 0.001) == pytest.approx(3e3 / 1e9 + 1e-3)
    assert exchange_seconds(LINK, Exchange.dgc, 2, million + 1, 0.001) == pytest.approx(3003 / 1e9 + 1e-3)


def test_many_devices_with_sparse_gradients_are_slower_than_with_dense_ones():
    """All-gathers grow with the devices, all-reduces don't: sparse ones lose at about 2 * 4 / (3 * ratio) devices."""
    wide = Link(bytes_per_second=1e9, latency_seconds=0, source="no latency")

    def sparse_wins(devices):
        exchanges = [exchange_seconds(wide, kind, devices, 10**7, 0.01) for kind in (Exchange.dgc, Exchange.fp32)]
        return exchanges[0] < exchanges[1]

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
