"""A profile on request: what a few steps of every phase spend their time on."""

from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.schedule import Phase

WARM_UP = 3  # steps of a phase before the recorded ones: they try kernels, compile and capture graphs
SHOWN = 20  # operations in the text


class StepProfiler:
    """Records `steps` steps of every phase as a trace in `folder`, and tells `show` where it is and what it says."""

    def __init__(self, steps: int, folder: Path, device_type: str, show: Callable[[str, str, int], None]) -> None:
        """Args: show: called with the name of the trace, a text in Markdown, and the images shown."""
        self.steps, self.folder, self.show = steps, folder, show
        self.activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (device_type == "cuda"))]
        self._phase_index, self._taken = -1, 0
        self._profile: profile | None = None

    def restart(self, images: int) -> None:
        """Continue from any count of `images`, which may lie in another phase: what is being recorded is dropped."""
        if self._profile is not None:
            self._profile.stop()
        self._phase_index, self._profile = -1, None

    def before_step(self, phase: Phase) -> None:
        """Begin to record if this step is the first to be."""
        if phase.index != self._phase_index:
            self._phase_index, self._taken = phase.index, 0
        if self._taken == WARM_UP:
            # There is one cycle, so nothing accumulates; PyTorch 2.11 would warn that events of others are cleared.
            self._profile = profile(activities=self.activities, acc_events=True)
            self._profile.start()

    def after_step(self, phase: Phase, images: int) -> None:
        """Stop and write the trace if this step was the last to be recorded."""
        self._taken += 1
        last = self._taken == WARM_UP + self.steps or images >= phase.end
        if self._profile is not None and last:
            self._profile.stop()
            self._write(self._profile, phase, images)
            self._profile = None

    def _write(self, recorded: profile, phase: Phase, images: int) -> None:
        name = f"{images:09d}-{phase.name.replace(' ', '-')}"
        make_directory(self.folder)
        with atomic_write(self.folder / f"{name}.json") as temporary:
            recorded.export_chrome_trace(str(temporary))
        table = recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=SHOWN)
        text = f"Open {self.folder / name}.json in https://ui.perfetto.dev.\n\n"
        self.show(phase.name, text + "\n".join(f"    {line}" for line in table.splitlines()), images)
