"""Keys of several machines."""

import pytest

from pggan.config import DistributedConfig
from pggan.core.errors import UserError


def test_several_machines_need_a_rendezvous():
    assert DistributedConfig(nnodes=2, rdzv_endpoint="node0:29500").nnodes == 2
    with pytest.raises(UserError, match=r"distributed\.rdzv_endpoint=HOST:PORT"):
        DistributedConfig(nnodes=2)


@pytest.mark.parametrize(
    "endpoint", ["node0", "node0:", ":29500", "node0:port", "node0:0", "node0:65536", "node0:-1", ""]
)
def test_a_rendezvous_is_a_host_and_a_port(endpoint):
    with pytest.raises(UserError, match="HOST:PORT, for example"):
        DistributedConfig(rdzv_endpoint=endpoint)


@pytest.mark.parametrize("endpoint", ["node0:1", "10.0.0.1:65535", "[::1]:29500"])
def test_hosts_are_names_or_addresses(endpoint):
    assert DistributedConfig(rdzv_endpoint=endpoint).rdzv_endpoint == endpoint
