"""The power that a device draws: of a GPU its limit (thermal design power), which training comes close to."""

# By watts, parts of the names that PyTorch gives; the longest that fits counts.  Source: NVIDIA's data sheets.
WATTS = {
    1000: ["B200"],
    700: ["H200", "H100"],
    600: ["H200 NVL"],
    575: ["RTX 5090"],
    450: ["RTX 4090"],
    400: ["H100 NVL", "A100"],
    350: ["H100 PCIe", "L40S", "RTX 3090"],
    300: ["A100-PCIE", "A100 80GB PCIe", "V100", "L40"],
    250: ["V100-PCIE"],
    72: ["L4"],
    70: ["T4"],
}
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}  # guesses


def watts_of(device_type: str, name: str) -> tuple[float, str]:
    """Watts of a device of `device_type` (cpu, cuda, mps) called `name`, and where the figure is from."""
    known = {part: watts for watts, parts in WATTS.items() for part in parts if device_type == "cuda" and part in name}
    if known:
        part = max(known, key=len)
        return known[part], f"data sheet of the {part}"
    return OTHER_WATTS[device_type], f"a guess for {device_type}; set watts= for a better figure"
