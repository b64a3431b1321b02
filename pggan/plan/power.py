"""What a device rng.  Standard library only.

Of a GPU this is the limit of its data sheet (thermal design power), which training comes close to; of a CPU a guess.
"""

# By a part of the name that PyTorch gives; the first that fits.  Source: NVIDIA's data sheets.
WATTS = {
    "B200": 1000,
    "H200 NVL": 600,
    "H200": 700,
    "H100 PCIe": 350,
    "H100 NVL": 400,
    "H100": 700,
    "A100-PCIE": 300,
    "A100 80GB PCIe": 300,
    "A100": 400,
    "V100-PCIE": 250,
    "V100": 300,
    "L40S": 350,
    "L40": 300,
    "L4": 72,
    "T4": 70,
    "RTX 5090": 575,
    "RTX 4090": 450,
    "RTX 3090": 350,
}
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}


def watts_of(device_type: str, name: str) -> tuple[float, str]:
    """Watts of a device of `device_type` (cpu, cuda, mps) called `name`, and where the figure is from."""
    for part, watts in WATTS.items():
        if device_type == "cuda" and part in name:
            return watts, f"data sheet of the {part}"
    return OTHER_WATTS[device_type], f"a guess for {device_type}; watts= says better"
