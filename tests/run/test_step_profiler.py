"""A profile on request."""

import json
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.run import train
from pggan.run.metrics_file import MetricsFile
from pggan.run.step_profiler import WARM_UP, StepProfiler
from pggan.run.time_breakdown import TimeBreakdown


@pytest.mark.slow
def test_the_asked_for_steps_of_every_phase_are_recorded(tiny_config, tmp_path):
    """Phases of 4 updates: three are warm-up, and only the fourth is left."""
    short = ["schedule.final_resolution=8", "evaluation.metrics=[]", "monitor.profile_steps=2"]
    assert train.run(tiny_config(f"run_dir={tmp_path}", *short)) == 0
    names = [f"{images:09d}-{phase}" for images, phase in ((32, "4x4-stable"), (64, "8x8-fade"), (96, "8x8-stable"))]
    assert sorted(path.stem for path in (tmp_path / "profile").iterdir()) == names
    events = json.loads((tmp_path / "profile" / f"{names[0]}.json").read_text())["traceEvents"]
    assert any("conv" in str(event.get("name")) for event in events)
    (event,) = EventAccumulator(str(tmp_path)).Reload().Tensors("profile/8x8 fade")
    text = event.tensor_proto.string_val[0].decode()
    assert f"{names[1]}.json" in text
    assert "Self CPU" in text


def test_a_rollback_into_an_earlier_phase_ends_what_is_being_recorded(tmp_path):
    """Or it would be written under the name of the earlier phase, which is too short to be recorded."""
    shown: list[tuple[str, int]] = []
    profiler = StepProfiler(2, tmp_path, "cpu", lambda name, _, images: shown.append((name, images)))
    early, late = (SimpleNamespace(index=index, name=f"phase {index}", end=end) for index, end in ((0, 2), (1, 10**6)))

    def train(phase: SimpleNamespace, steps: int) -> None:
        for step in range(steps):
            profiler.before_step(phase)
            profiler.after_step(phase, step + 1)

    train(late, WARM_UP + 1)  # one of two is recorded
    profiler.restart(0)
    train(early, 2)
    assert shown == []
    train(late, WARM_UP + 2)
    assert shown == [("phase 1", WARM_UP + 2)]


# ---- where the time goes ---------------------------------------------------------------------------------


def test_time_is_shared_out_to_the_part_that_ends(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pggan.run.time_breakdown.time.perf_counter", lambda: now[0])
    time_breakdown = TimeBreakdown()
    for part, until, data in (("overhead", 1.0, 0.0), ("step", 9.0, 2.0), ("overhead", 10.0, 0.0)):
        now[0] = until
        time_breakdown.end(part, data=data)
    assert time_breakdown.shares() == {"speed/data_share": 0.2, "speed/step_share": 0.6, "speed/overhead_share": 0.2}
    assert time_breakdown.shares() == {}


def test_hours_go_on_from_the_last_line_that_stays(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pggan.run.metrics_file.time.monotonic", lambda: now[0])
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for images, seconds in ((8, 3600.0), (16, 7200.0)):
        now[0] = 1000.0 + seconds
        first.append({"images": images, "hours": first.hours, "D/loss": float("nan")})
    now[0] = 50.0  # another process
    assert MetricsFile(path, 8).hours == 1.0
    assert json.loads(path.read_text()) == {"images": 8, "hours": 1.0, "D/loss": None}
