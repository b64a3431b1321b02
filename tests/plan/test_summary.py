"""The figures of a plan: watts of devices."""

from pggan.performance.plan.summary import watts_of


def test_a_device_draws_what_its_data_sheet_says():
    watts = {
        "NVIDIA H200": 700,
        "NVIDIA H200 NVL": 600,
        "NVIDIA H100 80GB HBM3": 700,
        "NVIDIA H100 PCIe": 350,
        "NVIDIA A100 80GB PCIe": 300,
        "NVIDIA A100-SXM4-80GB": 400,
        "Tesla V100-SXM2-16GB": 300,
        "NVIDIA L40S": 350,
        "NVIDIA L4": 72,
        "NVIDIA GeForce RTX 4090": 450,
    }
    assert {name: watts_of("cuda", name)[0] for name in watts} == watts


def test_the_power_of_other_devices_is_a_guess():
    assert watts_of("cuda", "Nameless") == (300, "a guess for cuda; set watts= for a better figure")
    assert watts_of("cpu", "H100") == (100, "a guess for cpu; set watts= for a better figure")
