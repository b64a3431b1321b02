"""What only a GPU can show, in one call of nine minutes: `make gpu`, or `python -m benchmarks.first_gpu`.

The items of `gpu_items.py`, the most informative first.  Each is on disk as soon as it is measured; the same command
goes on with those that are missing or failed.  An item that breaks CUDA ends its process; the next ones get a new one.
The exit code is 0 when all items were measured and all figures are as expected, else 1.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_items import ALONE, ITEMS, Kit
from pggan.config.values import versions
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import configure_process
from pggan.performance.bench import hardware
from pggan.training.build import missing

RESULT = Path(__file__).parent / "results" / "first_gpu.json"
QUERY = "nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader"


def save(out: Path, found: dict[str, Any]) -> None:
    """Write all figures."""
    with atomic_write(out) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")


def clocks() -> str:
    """The clocks, power, temperature and limits of the GPU at this moment; empty if nvidia-smi is not there."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(QUERY.split(), text=True, timeout=10).strip()  # noqa: S603 - our own
    return ""


def work(out: Path, names: list[str], *, small: bool) -> int:
    """Measure items in this process; the one that begins is on disk before it can end the process."""
    configure_process(torch.device("cuda"))
    kit, found = Kit(small=small), json.loads(out.read_text())
    for name in names:
        kit.figures = {}
        item: Any = {"figures": kit.figures, "failed": "the process or the time ended", "clocks": [clocks()]}
        found["items"][name] = item
        save(out, found)
        began, item["failed"] = time.perf_counter(), None
        try:
            ITEMS[name](kit)
        except Exception as error:
            traceback.print_exc()
            item["failed"] = f"{type(error).__name__}: {str(error).strip()[:500]}"
        item |= {"clocks": [*item["clocks"], clocks()], "seconds": round(time.perf_counter() - began, 1)}
        save(out, found)
        if "CUDA error" in str(item["failed"]):  # CUDA works in no later item of this process
            return 1
    return 0


def table(found: dict[str, Any], out: Path, asked: Iterable[str]) -> int:
    """Print all figures, each beside its range; returns how many were not as expected, or not measured at all."""
    wrong = sum(item["failed"] is not None for item in found["items"].values())
    for name, item in found["items"].items():
        print(f"\n{name}: {item.get('seconds', '?')} s, {' -> '.join(item['clocks'])} {item['failed'] or ''}")
        for figure, values in item["figures"].items():
            value, (least, most) = values["measured"], values["expected"] or ("", "")
            good = least == "" or least <= value <= most
            shown = [f"{one:.3g}" if isinstance(one, float) else str(one)[:60] for one in (value, least, most)]
            words = "" if least == "" else f"{shown[1]} to {shown[2]}: {'as expected' if good else 'NOT AS EXPECTED'}"
            print(f"  {figure:<50} {shown[0]:>10}  {words}")
            wrong += not good
    missing = [name for name in asked if name not in found["items"]]
    print(f"\n{wrong} NOT AS EXPECTED; NOT MEASURED: {', '.join(missing) or 'none'}; all figures: {out}")
    return wrong + len(missing)


def main() -> int:
    """Measure the items that are missing in the result file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT, help="the result file")
    parser.add_argument("--items", nargs="+", choices=ITEMS, metavar="ITEM", help=f"measure anew: {', '.join(ITEMS)}")
    parser.add_argument("--seconds", type=float, default=540, help="no item goes on after this time")
    parser.add_argument("--small", action="store_true", help="small networks, to see that all items run")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work(given.out, given.items, small=given.small)
    end = time.monotonic() + given.seconds
    print(*missing(torch.device("cuda" if torch.cuda.is_available() else "cpu")), sep="\n")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU, and this program measures nothing else: `pggan doctor` says what is there.")
    if (free := torch.cuda.mem_get_info()[0] / 2**30) < 28:  # GiB of captured steps with the largest batches
        print(f"This GPU has {free:.1f} GiB free: items that do not fit fail, as batches of 32 at 1024x1024 do.")
    of = {"hardware": hardware(torch.device("cuda", 0)), "small": given.small, "versions": versions()}
    found = json.loads(given.out.read_text()) if given.out.is_file() else {"about": of, "items": {}}
    if (found["about"]["hardware"]["name"], found["about"]["small"]) != (torch.cuda.get_device_name(), given.small):
        sys.exit(f"{given.out} holds figures of another GPU, or of --small: name another file by --out=.")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    again = {*(given.items or ()), *(name for name, item in found["items"].items() if item["failed"] is not None)}
    found["items"] = {name: item for name, item in found["items"].items() if name not in again}
    save(given.out, found)
    while (left := [one for one in given.items or ITEMS if one not in found["items"]]) and time.monotonic() < end:
        number = next((number for number, one in enumerate(left) if one in ALONE), len(left))
        names, command = left[: number or 1], [sys.executable, "-m", "benchmarks.first_gpu", "--worker"]
        command += ["--out", str(given.out), *["--small"] * given.small, "--items", *names]
        try:
            subprocess.call(command, env=os.environ | ALONE.get(names[0], {}), timeout=end - time.monotonic())  # noqa: S603
        except subprocess.TimeoutExpired:
            print(f"The time is up ({given.seconds:g} s).")
        found = json.loads(given.out.read_text())
        found["items"].setdefault(names[0], {"figures": {}, "clocks": [], "failed": "its process did not start"})
        save(given.out, found)
    return min(table(found, given.out, given.items or ITEMS), 1)


if __name__ == "__main__":
    sys.exit(main())
