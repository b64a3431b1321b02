"""Many devices and the links between them, worked out by hand."""

import pytest

from pggan.performance.scaling import (
    Interconnect,
    Link,
    Load,
    Reduction,
    Scaling,
    communication_bound_from,
    scaled,
    split,
)

LINK = Link(bytes_per_second=1e9, latency_seconds=1e-3, source="a worked example")
MILLION = 10**6  # numbers
# 100 steps of 16 images: 1 s each, of which 0.2 s are there with any batch.  A gradient takes 4 MB.
LOAD = Load(steps=100, batch=16, group=4, seconds=1.0, fixed_seconds=0.2, numels=(600_000, 400_000))
FREE = Interconnect(Link(bytes_per_second=1e30, latency_seconds=0.0, source="a wish"), Reduction.fp32, 1.0)
SLOW = Interconnect(Link(bytes_per_second=10e6, latency_seconds=0.0, source="a slow one"), Reduction.fp32, 1.0)


def test_whole_groups_stay_together():
    assert LOAD.compute_seconds(3) == LOAD.compute_seconds(2)  # 2, 1 and 1 groups: as slow as the first
    assert LOAD.compute_seconds(16) == LOAD.compute_seconds(4)
    assert [LOAD.users(n) for n in (1, 3, 4, 16)] == [1, 3, 4, 4]
    odd = LOAD._replace(batch=3, group=3)
    assert [odd.users(8), odd.compute_seconds(8)] == pytest.approx([1, 1.0])


def test_strong_scaling_shares_every_update():
    run = scaled([LOAD], FREE, 4, Scaling.strong)
    assert run["hours"] == pytest.approx(100 * 0.4 / 3600)
    assert run["device_hours"] == pytest.approx(4 * run["hours"])
    assert run["efficiency"] == pytest.approx(100 / (4 * 40))
    assert run["communication"] == pytest.approx(0, abs=1e-9)


def test_weak_scaling_takes_fewer_updates():
    run = scaled([LOAD], FREE, 4, Scaling.weak)
    assert run["hours"] == pytest.approx(100 / 4 * 1.0 / 3600)
    assert run["efficiency"] == pytest.approx(1)


def test_every_update_adds_up_the_gradients_of_both_networks():
    # 4 MB between two devices: each sends half, twice: 0.4 s at 10 MB/s.
    assert split([LOAD], SLOW, 2, Scaling.strong) == pytest.approx((60, 40))
    assert split([LOAD], SLOW, 2, Scaling.weak) == pytest.approx((50, 20))
    assert scaled([LOAD], SLOW, 2, Scaling.strong)["communication"] == pytest.approx(0.4)


def test_communication_dominates_where_it_takes_more_than_half():
    # Strong: 0.4 of 0.6 s with two devices; 2 * 2/3 * 0.4 = 0.53 of 0.6 with three; 0.6 of 0.4 with four.
    assert communication_bound_from([LOAD], SLOW, Scaling.strong) == 4
    assert communication_bound_from([LOAD], FREE, Scaling.strong) is None
    assert (
        communication_bound_from([LOAD], SLOW, Scaling.weak) is None
    )  # at most 0.8 s of communication to 1 s of compute
    slower = SLOW._replace(link=Link(6e6, 0.0, "slower"))  # 4/3 s at most: more than 1 s from n = 4 on
    assert communication_bound_from([LOAD], slower, Scaling.weak) == 5


def test_a_ring_all_reduce_sends_two_rounds_of_shares():
    # Four devices, 400 MB: 2 * 3 messages of 100 MB each, 0.1 s, and a millisecond for every message.
    assert Interconnect(LINK, Reduction.fp32, 1.0).seconds(4, 100 * MILLION) == pytest.approx(6 * 0.1 + 6 * 1e-3)


def test_an_all_gather_passes_on_the_message_of_every_other_device():
    # Four devices, 6 MB of compressed gradient each: 3 messages of 6 ms, and a millisecond for every message.
    assert Interconnect(LINK, Reduction.dgc, 0.5).seconds(4, 4 * MILLION) == pytest.approx(3 * (6e-3 + 1e-3))


def test_the_size_of_a_gradient_depends_on_the_reduction():
    def seconds(reduction, numel, ratio):
        return Interconnect(LINK, reduction, ratio).seconds(2, numel)

    # Between two devices, an all-reduce sends the numbers once in either round, half at a time.
    assert seconds(Reduction.fp32, MILLION, 0.5) == pytest.approx(4e6 / 1e9 + 2e-3)
    assert seconds(Reduction.bf16, MILLION, 0.5) == pytest.approx(2e6 / 1e9 + 2e-3)
    # One in a thousand, at 3 bytes: position and value; rounded up to whole numbers.
    assert seconds(Reduction.dgc, MILLION, 0.001) == pytest.approx(3e3 / 1e9 + 1e-3)
    assert seconds(Reduction.dgc, MILLION + 1, 0.001) == pytest.approx(3003 / 1e9 + 1e-3)
