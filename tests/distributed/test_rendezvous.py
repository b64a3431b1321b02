"""The rendezvous of several machines: joined, or refused as soon as the reason is known."""

import socket
import threading
import time
from dataclasses import replace

import pytest
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from pggan.config import DistributedConfig
from pggan.core.errors import UserError
from pggan.distributed import connect, rendezvous
from pggan.distributed.rendezvous import open_rendezvous, rendezvous_failed
from tests.processes import free_ports

pytestmark = pytest.mark.slow  # starts processes


def config_for(endpoint: str, **keys) -> DistributedConfig:
    return DistributedConfig(nnodes=2, rdzv_endpoint=endpoint, local_addr="127.0.0.1", **keys)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(connect, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(rendezvous, "WRONG_SERVICE_SECONDS", 0.5)


@pytest.fixture
def stranger():
    """The address of something that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def full():
    """An address that leaves connections without an answer, as one behind a firewall does."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_of_something_else_is_not_waited_for_as_long_as_machines_are(quick, stranger):
    began = time.monotonic()
    with pytest.raises(UserError, match=rf"rdzv_endpoint={stranger} failed: something else answers there\."):
        open_rendezvous(config_for(stranger, rdzv_timeout_seconds=20))  # for so long, torch's thread goes on
    assert time.monotonic() - began < 15


def test_an_address_that_does_not_answer_is_given_up_after_the_timeout(quick, full):
    with pytest.raises(UserError, match="nobody answers there"):
        open_rendezvous(config_for(full, rdzv_timeout_seconds=1))


def test_a_host_name_that_does_not_exist_is_named(quick):
    with pytest.raises(UserError, match=r"rdzv_endpoint=nowhere\.invalid:29500 failed: .*(not known|resolution)"):
        open_rendezvous(config_for("nowhere.invalid:29500", rdzv_timeout_seconds=1))


def test_machines_that_do_not_come_are_not_waited_for_any_longer():
    (port,) = free_ports(1)
    config = config_for(f"127.0.0.1:{port}", rdzv_timeout_seconds=1)
    alone = open_rendezvous(config)
    with pytest.raises(RendezvousTimeoutError) as caught:
        alone.next_rendezvous()
    error = rendezvous_failed(config, caught.value)
    assert "not all 2 machines joined within 1 s" in error.problem
    assert "Start the same command on all 2 machines" in error.remedy


def test_two_machines_join_and_one_of_them_is_the_host():
    (port,) = free_ports(1)
    config = config_for(f"127.0.0.1:{port}", rdzv_timeout_seconds=60)
    found = {}

    def join(name: str, own: DistributedConfig) -> None:
        info = open_rendezvous(own).next_rendezvous()
        found[name] = (info.rank, info.world_size, info.store)

    names = {"host": config, "same machine": config}
    threads = [threading.Thread(target=join, args=item, daemon=True) for item in names.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(rank for rank, *_ in found.values()) == [0, 1]
    assert {size for _, size, _ in found.values()} == {2}


def test_a_run_on_one_machine_needs_no_address_and_meets_no_other_run():
    config = replace(config_for("x:1", rdzv_timeout_seconds=10), nnodes=1, rdzv_endpoint=None, local_addr=None)
    first, second = open_rendezvous(config), open_rendezvous(config)
    assert first.get_run_id() != second.get_run_id()
    for handler in (first, second):
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)


def test_a_run_on_one_machine_that_meets_nobody_names_the_network_of_this_machine():
    config = replace(config_for("x:1", rdzv_timeout_seconds=10), nnodes=1, rdzv_endpoint=None)
    failed = rendezvous_failed(config, OSError(99, "Cannot assign requested address"))
    assert "The ranks of this machine can't meet at 127.0.0.1" in str(failed)
    assert "machines" not in str(failed)
