"""Part 4: a run that was stopped and resumed in a new process equals the one that was not."""

from collections.abc import Iterator

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.record import Figures
from benchmarks.first_gpu.runs import Runs
from pggan.run.inspect import facts_of_run


def items(context: Context) -> Iterator[Item]:
    """Two runs of the same configuration."""
    yield "resume", lambda: resume(context)


def resume(context: Context) -> Figures:
    """The digests of both runs: half of one is trained while the other is trained as a whole."""
    with Runs(context) as runs:
        whole, half = runs.begin("whole"), runs.begin("stopped", f"schedule.total_images={runs.images // 2}")
        runs.end(half)
        rest = runs.begin("stopped")
        runs.end(whole)
        runs.end(rest)
    return {name: facts_of_run(context.folder / name)["state_sha256"] for name in ("whole", "stopped")}


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Both are in the same state."""
    same = found["resume"]["whole"] == found["resume"]["stopped"]
    return Judgement("the same bits" if same else "other bits", "the same bits", same)
