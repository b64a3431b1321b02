"""The process that measures: `python -m benchmarks.first_gpu.worker SECONDS OUT DEVICE FOLDER PARTS [small]`."""

import sys
import time
import traceback
from pathlib import Path

import torch

from benchmarks.first_gpu.context import Context, Judgement, Part
from benchmarks.first_gpu.parts import PARTS
from benchmarks.first_gpu.record import Figures, Record
from pggan.cli.main import guarded
from pggan.config.describe import code_in_use, versions
from pggan.core.devices import choose_device, synchronize
from pggan.core.errors import EXIT_FAILED, UserError
from pggan.training.device_rates import hardware

MIN_SECONDS = 5  # that have to be left for an item to begin


def measure(context: Context, deadline: float, names: str = "all") -> int:
    """Measure the items that are missing, until `deadline` of the monotonic clock; returns the exit code.

    Args: names: of parts, between commas, or 'all'.
    """
    record, parts = context.record, chosen_parts(names)
    about = {"hardware": hardware(context.device), "small": context.small}
    known = record.content["about"]
    if known and any(known.get(key) != value for key, value in about.items()):
        problem = f"{record.path} holds figures of {known.get('hardware', {}).get('name')}, small={known.get('small')}."
        raise UserError(problem, "Name another file: --out=…")
    record.content |= {"complete": False, "asked": names}
    record.content["about"] = about | {"versions": versions(), "memory": memory(context.device)}
    code = code_in_use()
    for number, part in enumerate(parts, 1):
        if part.cuda_only and not context.on_cuda:
            note(record, number, part, {"measured": "", "expected": "", "verdict": "skipped: no CUDA"})
            continue
        if not measure_part(context, part, deadline, code):
            return 0
        note(record, number, part, judged(context, part))
        if not usable(context.device):  # as after an illegal access: only a new process can use the device again
            return EXIT_FAILED
    record.content["complete"] = True
    record.write()
    return 0


def chosen_parts(names: str) -> list[Part]:
    """The parts of these names, between commas, in the order of the kit; all parts for 'all'."""
    known = {part.name: part for part in PARTS}
    chosen = [*known] if names == "all" else names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(f"There is no part {', '.join(unknown)}.", f"There are {', '.join(known)}.")
    return [part for name, part in known.items() if name in chosen]


def measure_part(context: Context, part: Part, deadline: float, code: str) -> bool:
    """Measure the items of a part that are missing; whether there was time for all of them."""
    record = context.record
    for name, work in part.items(context):
        if record.has(part.name, name):
            continue
        if time.monotonic() > deadline - MIN_SECONDS:
            return False
        record.begin(part.name, name)
        start = time.perf_counter()
        try:
            context.begin_item()
            figures = work()
        except Exception as error:
            reason = str(error).strip().splitlines() or ["no reason given"]
            figures = {"failed": f"{type(error).__name__}: {reason[0]}", "traceback": traceback.format_exc()}
            print(f"{part.name}/{name}: {figures['failed']}", flush=True)
        record.end(part.name, name, {**figures, "seconds": time.perf_counter() - start, "code": code})
        if "failed" in figures and not usable(context.device):
            raise SystemExit(EXIT_FAILED)
    return True


def judged(context: Context, part: Part) -> dict[str, str]:
    """The judgement of a part whose items have all been tried."""
    items = context.record.items(part.name)
    failures = [name for name in context.record.failures if name.startswith(f"{part.name}/")]
    judgement = part.judge(context, items) if items else Judgement("nothing")
    words = {None: "noted", True: "as expected", False: "NOT AS EXPECTED"}
    verdict = f"FAILED: {', '.join(failures)}" if failures else words[judgement.good]
    return {"measured": judgement.measured, "expected": judgement.expected, "verdict": verdict}


def note(record: Record, number: int, part: Part, judgement: dict[str, str]) -> None:
    """Write the judgement of a part, and print it when it is new."""
    known = record.content["parts"].get(part.name, {})
    if any(known.get(key) != value for key, value in judgement.items()):
        record.judge(part.name, judgement)
    expected = f"  (expected: {judgement['expected']})" if judgement["expected"] else ""
    print(f"{number:>2} {part.name:<13} {judgement['verdict']}  {judgement['measured']}{expected}", flush=True)


def usable(device: torch.device) -> bool:
    """Whether the device still answers."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


def memory(device: torch.device) -> Figures:
    """Free and total bytes of a GPU."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"free_bytes": free, "total_bytes": total}


def main() -> int:
    seconds, out, device, folder, names, *small = sys.argv[1:]
    deadline, chosen = time.monotonic() + float(seconds), choose_device(device)
    context = Context(chosen, bool(small) or chosen.type != "cuda", Path(folder), Record(Path(out)))
    return measure(context, deadline, names)


if __name__ == "__main__":
    sys.exit(guarded(main))
