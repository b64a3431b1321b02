"""The table of cards."""

import pytest

from pggan.config import Precision
from pggan.core.errors import UserError
from pggan.performance.plan.device_table import DEVICE_SPECS, device_spec
from pggan.performance.plan.summary import watts_of


def test_cards_have_names_in_letters_of_any_case():
    assert device_spec("H200") is device_spec("h200") is DEVICE_SPECS["h200"]


@pytest.mark.parametrize(("name", "hint"), [("h20", "'h200'"), ("rtx4090", "'4090'"), ("list", "4090, a100, h100")])
def test_an_unknown_card_is_refused_with_the_nearest_or_all(name, hint):
    with pytest.raises(UserError, match=hint):
        device_spec(name)


def test_a_run_takes_bf16_where_there_is_hardware_for_it_and_else_fp16():
    chosen = {key: card.precision(Precision.auto) for key, card in DEVICE_SPECS.items()}
    assert chosen == {key: Precision.fp16 if key == "t4" else Precision.bf16 for key in DEVICE_SPECS}
    assert DEVICE_SPECS["a100"].precision(Precision.tf32) is Precision.tf32
    with pytest.raises(UserError, match="fp16, fp32"):
        DEVICE_SPECS["t4"].precision(Precision.bf16)


def test_the_power_of_every_card_is_known():
    assert all("data sheet" in watts_of("cuda", card.name)[1] for card in DEVICE_SPECS.values())
