"""What a person sees of a run, on a terminal and without one."""

import io
from contextlib import redirect_stderr

import pytest
from rich.console import Console

from pggan.cli.compose import compose
from pggan.config.train import ScheduleConfig
from pggan.config.validation import validated
from pggan.core.schedule import Course
from pggan.run.console import WIDTH, TrainingConsole

NUMBERS = {
    "D/loss": -1234.5,
    "G/loss": 1234.5,
    "scores/reals": 12.25,
    "scores/fakes": -0.5,
    "speed/memory_bytes": 2**37,
    "speed/images_per_second": 10.0,
    "speed/eta_seconds": 10.0,
}
SLOW = NUMBERS | {"speed/images_per_second": 0.5, "speed/eta_seconds": 36_000.0}
FAST = NUMBERS | {"speed/images_per_second": 12345.6, "speed/eta_seconds": 359_999}
METRICS = {"metrics/swd_floor/mean@p-512": 1.0, "metrics/swd/16@p-512": 2.0, "metrics/swd/mean@p-512": 3.0}


@pytest.fixture(scope="module")
def schedule():
    """The paper's, to 1024x1024."""
    return validated(ScheduleConfig, compose("train", ["experiment=paper_1024"])["schedule"]).build()


def view_of(schedule, mode: str = "auto") -> TrainingConsole:
    return TrainingConsole(mode, Course(schedule), 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(view: TrainingConsole) -> str:
    with (recorder := Console(file=io.StringIO(), width=WIDTH)).capture() as capture:
        recorder.print(view.frame())
    return capture.get()


def test_a_line_per_tick_and_no_control_characters_without_a_terminal(schedule, capsys):
    with view_of(schedule) as view:
        images = schedule.total - 1
        view.progress(images, schedule.at(images))
        kept = view.tick(FAST)
        view.warn("[red] is no markup")
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{kept}\n[red] is no markup\n")
    assert "1024x1024 alpha 1.00" in kept
    assert "99:59:59 left" in kept
    assert len(kept) == WIDTH


def test_a_terminal_gets_a_view_and_a_dumb_one_lines(schedule, monkeypatch):
    found = {}
    for kind in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", kind)
        with redirect_stderr(Terminal()) as terminal, view_of(schedule) as view:
            view.line("said")
            view.tick(NUMBERS)
        found[kind] = terminal.getvalue()
    assert "growth" in found["xterm"]
    assert "said" in found["xterm"]
    assert "img/s  " in found["xterm"]
    assert "\x1b" not in found["dumb"]
    assert " img/s " in found["dumb"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("plain", ["line", "warning", "end", "tick"]),
        ("quiet", ["warning", "end"]),
        ("verbose", ["line", "warning", "end", "tick", "all"]),
    ],
)
def test_levels_print_more_and_more(schedule, capsys, mode, expected):
    view = view_of(schedule, mode)
    view.line("line")
    view.warn("warning")
    view.line("end", always=True)
    view.tick(NUMBERS)
    err = capsys.readouterr().err
    texts = {"line": "line\n", "warning": "warning\n", "end": "end\n", "tick": "img/s", "all": "speed/memory_bytes"}
    assert [name for name, text in texts.items() if text in err] == expected
    assert all(len(line) <= WIDTH for line in err.splitlines())


def test_the_view_shows_phase_times_metric_checkpoint_and_warnings_in_80_columns(schedule):
    view = view_of(schedule)
    assert "time left unknown" in shown(view)
    phase = next(phase for phase in schedule.phases if phase.resolution == 1024 and phase.fading)
    images = (phase.start + phase.end) // 2
    view.progress(images, schedule.at(images))
    for number in range(5):
        view.warn(f"warning {number} " + "of many words" * 9)
    view.tick(SLOW | METRICS)
    view.note_checkpoint(images - 8)
    text = shown(view)
    assert all(len(line.rstrip()) <= WIDTH for line in text.splitlines())
    for part in (
        "4 8 16 32 64 128 256 512 1024",
        f"phase {phase.index + 1} of {len(schedule.phases)}: 1024x1024 fade",
        "0.50 of the new layers",
        "0.5 img/s  131,072 MiB  D -1234.500  G 1234.500  D(reals) 12.25  D(fakes) -0.50",
        f"metric swd/mean@p-512 3 at {images:,}",
        f"checkpoint {images - 8:,} images, 0:00:0",
        "warning 4",
    ):
        assert part in text, part
    assert "warning 1" not in text
