"""Small programs that show how the null GPU behaves; prints what each has found as JSON.  Run by test_null_gpu.py."""

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tests.cuda.null_gpu import session

CUDA = torch.device("cuda")
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # Triton 3.9 warns where nobody has chosen


@triton.jit
def add_one(x, size: tl.constexpr):
    """x[i] += 1."""
    places = tl.arange(0, size)
    tl.store(x + places, tl.load(x + places) + 1)


def captured(function: Callable[[], Any], mode: str = "thread_local") -> str:
    """The error, if any, with which capturing `function` ends."""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            function()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def counted(function: Callable[[], Any]) -> dict[str, int]:
    """What `function` asks of the device."""
    session.reset()
    function()
    return dict(session.counts())


def launches() -> dict[str, int]:
    """Counts of eager work, of every kind."""
    x, w = torch.empty(8, 4, 16, 16, device=CUDA), torch.empty(4, 4, 3, 3, device=CUDA)

    def work() -> None:
        torch.nn.functional.conv2d(x.add_(1), w)
        x[0, 0] @ x[0, 1]
        x.zero_()
        x[0].copy_(x[1])
        add_one[(1,)](x, 16)
        x.cpu()

    work()  # makes streams, workspaces and binaries
    return counted(work)


def shapes() -> list[Any]:
    """Shapes and layouts of convolutions and their derivatives, for channels-last operands."""
    x = torch.empty(2, 4, 16, 16, device=CUDA, requires_grad=True).to(memory_format=torch.channels_last)
    down = torch.empty(6, 4, 4, 4, device=CUDA, requires_grad=True)
    up = torch.empty(4, 6, 4, 4, device=CUDA, requires_grad=True)
    results = [
        torch.nn.functional.conv2d(x, down, stride=2, padding=1),
        torch.nn.functional.conv_transpose2d(x, up, stride=2, padding=1),
    ]
    gradients = torch.autograd.grad([result.sum() for result in results], [x, down, up])
    return [[list(t.shape), t.is_contiguous(memory_format=torch.channels_last)] for t in (*results, *gradients)]


def nodes() -> int:
    """Nodes of a graph of four: a kernel of PyTorch's, one of Triton's, a product and a copy."""
    x = torch.empty(64, 64, device=CUDA)

    def work() -> None:
        x.add_(1)
        add_one[(1,)](x, 64)
        torch.mm(x, x, out=x)
        x[0].copy_(x[1])

    work()
    session.reset()
    assert not captured(work)
    return session.counts()["graph nodes"]


def refusals() -> dict[str, str]:
    """Errors of captures, by what is done inside."""
    x, side, early = torch.zeros(4, device=CUDA), torch.cuda.Stream(), torch.cuda.Event()
    early.record()

    def fork(*, join: bool) -> None:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            x.add_(1)
        if join:
            here.wait_stream(side)

    actions = {
        "nothing": lambda: None,
        "item": lambda: x.sum().item(),
        "pageable copy": lambda: x.copy_(torch.ones(4)),
        "synchronize": torch.cuda.synchronize,
        "event from outside": lambda: torch.cuda.current_stream().wait_event(early),
        "fork": lambda: fork(join=False),
        "fork and join": lambda: fork(join=True),
        "afterwards": lambda: None,
    }
    return {name: captured(lambda action=action: [x.add_(1), action()]) for name, action in actions.items()}


def memory() -> dict[str, Any]:
    """A card of 1 GiB: what fits, what does not, and what is free again after."""
    torch.cuda.empty_cache()
    used = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    session.set_card_bytes(used + 2**30)
    half = torch.empty(2**29, dtype=torch.uint8, device=CUDA)
    free = torch.cuda.mem_get_info()[0]
    try:
        torch.empty(2**30, dtype=torch.uint8, device=CUDA)
        error = ""
    except torch.OutOfMemoryError as problem:
        error = type(problem).__name__
    del half
    torch.cuda.empty_cache()
    found = {"free": free, "error": error, "free again": torch.cuda.mem_get_info()[0]}
    session.set_card_bytes(2**37)
    return found


def places() -> list[str]:
    """Where the host waited, by lines of the package: a calibration waits for its work."""
    from pggan.training.timing import copy_rate

    noted: Counter[tuple[str, str]] = Counter()
    x = torch.ones(4, device=CUDA)
    with session.watched(noted):
        copy_rate(CUDA, 16)
        x.sum().item()
    return sorted({where for what, where in noted if what.startswith("wait")})


if __name__ == "__main__":
    print(
        json.dumps({function.__name__: function() for function in (launches, shapes, nodes, memory, places, refusals)})
    )
