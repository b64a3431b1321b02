"""Keys of several machines, and of the gradient reduction."""

import pytest
import yaml

from pggan.cli.commands import CONFIGS
from pggan.config import DGC_RATIO, DgcConfig, DistributedConfig, dgc_options
from pggan.config.distributed import GRADIENTS
from pggan.core.errors import UserError

DGC = yaml.safe_load((CONFIGS / "gradients" / "dgc.yaml").read_text())


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


def test_the_default_ratio_is_that_of_the_yaml():
    assert DGC["ratio"] == DGC_RATIO


def test_every_choice_has_a_yaml_of_its_name():
    for name in GRADIENTS:
        assert yaml.safe_load((CONFIGS / "gradients" / f"{name}.yaml").read_text())["name"] == name
    assert len(list((CONFIGS / "gradients").iterdir())) == len(GRADIENTS)


def test_only_dgc_has_options():
    assert dgc_options({"name": "fp32"}, elastic=False) is None
    assert dgc_options({"name": "bf16"}, elastic=False) is None
    assert dgc_options(DGC, elastic=False) == DgcConfig(ratio=0.1, warmup_images=1000)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"name": "dense"}, "bf16, dgc, fp32"),
        ({}, "bf16, dgc, fp32"),
        ({"name": "fp32", "ratio": 0.1}, "gradients=fp32 has no key 'ratio'"),
        ({**DGC, "ratio": 0}, r"gradients.ratio=0.0"),
        ({**DGC, "ratio": 1.5}, "at most 1"),
        ({**DGC, "warmup_images": -1}, "at least 0"),
        ({**DGC, "rato": 1}, "'gradients.ratio'"),
        ({"name": "dgc"}, "'gradients.ratio' needs a value"),
    ],
)
def test_options_that_do_not_exist_are_refused(options, hint):
    with pytest.raises(UserError) as caught:
        dgc_options(options, elastic=False)
    assert hint in str(caught.value)


def test_elastic_training_adds_up_exactly():
    assert dgc_options({"name": "fp32"}, elastic=True) is None
    for options in ({"name": "bf16"}, DGC):
        with pytest.raises(UserError, match="Set gradients=fp32"):
            dgc_options(options, elastic=True)
