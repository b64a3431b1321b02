"""What a person sees of a run, on a terminal and without one."""

import io
import json
from contextlib import redirect_stderr

import numpy as np
import pytest
from rich.console import Console

from pggan.cli.compose import compose
from pggan.config.train import ScheduleConfig
from pggan.config.validation import validated
from pggan.core.schedule import Course
from pggan.run.console import TrainingConsole
from pggan.run.summary import ending

WIDTH = 80

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
FAST = NUMBERS | {"speed/images_per_second": 2345.6, "speed/eta_seconds": 359_999}
METRICS = {"metrics/swd_floor/mean@p-512": 1.0, "metrics/swd/16@p-512": 2.0, "metrics/swd/mean@p-512": 3.0}


@pytest.fixture(scope="module")
def schedule():
    """The paper's, to 1024x1024."""
    return validated(ScheduleConfig, compose("train", ["experiment=paper_1024"])["schedule"]).build()


@pytest.fixture
def view(schedule, tmp_path) -> TrainingConsole:
    return TrainingConsole(tmp_path, Course(schedule), 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(view: TrainingConsole) -> str:
    with (recorder := Console(file=io.StringIO(), width=WIDTH)).capture() as capture:
        recorder.print(view.frame())
    return capture.get()


def test_a_line_per_tick_and_no_control_characters_without_a_terminal(schedule, view, capsys):
    with view:
        images = schedule.total - 1
        view.progress(images, schedule.at(images))
        kept = view.tick(FAST)
        view.warn("[red] is no markup")
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{kept}\n[red] is no markup\n")
    assert "1024x1024 alpha 1.00" in kept
    assert "4.17 d left" in kept
    assert len(kept) == WIDTH


def test_a_terminal_gets_a_view_and_a_dumb_one_lines(schedule, tmp_path, monkeypatch):
    found = {}
    for kind in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", kind)
        with redirect_stderr(Terminal()) as terminal, TrainingConsole(tmp_path, Course(schedule), 0) as view:
            view.line("said")
            view.tick(NUMBERS)
        found[kind] = terminal.getvalue()
    assert all(word in found["xterm"] for word in ("growth", "said"))
    assert [part in found["dumb"] for part in ("\x1b", " img/s ")] == [False, True]


def test_the_view_shows_phase_times_metric_checkpoint_and_warnings_in_80_columns(schedule, view, tmp_path):
    phase = next(phase for phase in schedule.phases if phase.resolution == 1024 and phase.fading)
    images = (phase.start + phase.end) // 2
    view.progress(images, schedule.at(images))
    for number in range(5):
        view.warn(f"warning {number} " + "of many words" * 9)
    view.tick(SLOW | METRICS)
    (tmp_path / "checkpoints" / f"{images - 8:09d}").mkdir(parents=True)
    text = shown(view)
    assert all(len(line.rstrip()) <= WIDTH for line in text.splitlines())
    for part in (
        "4 8 16 32 64 128 256 512 1024",
        f"phase {phase.index + 1} of {len(schedule.phases)}: 1024x1024 fade",
        "alpha 0.50",
        "D -1234.50 G  1234.50    0.5 img/s",
        "SWD 3, lower is better; two halves of your images differ by 1 (at",
        f"{images - 8:,} images",
        "warning 4",
    ):
        assert part in text, part
    assert "warning 1" not in text


@pytest.mark.parametrize(("colours", "rows"), [("truecolor", 5), ("", 0)])
def test_a_terminal_with_true_colour_shows_eight_faces_as_large_as_they_fit(
    schedule, tmp_path, monkeypatch, colours, rows
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("COLORTERM", colours)
    with redirect_stderr(Terminal()):
        view = TrainingConsole(tmp_path, Course(schedule), 0)
        for side, lines in ((4, min(rows, 2)), (32, rows)):
            view.faces(np.zeros((16, side, side, 1), np.uint8))
            strip = [line for line in shown(view).splitlines() if line.startswith("▀")]
            assert len(strip) == lines
            assert all(len(line.rstrip()) == 8 * 2 * lines for line in strip)


def test_a_resumed_run_shows_the_quality_that_it_had_and_no_time_left_until_it_is_known(schedule, tmp_path):
    lines = [{"images": 4, "hours": 0.1} | dict.fromkeys(METRICS, 9.0)]
    lines += [{"images": 8, "hours": 0.1} | METRICS, {"images": 16, "hours": 0.2, "resolution": 4}]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"images": 3']))
    text = shown(TrainingConsole(tmp_path, Course(schedule), 16))
    assert "SWD 3, lower is better" in text
    assert " left" not in text
    assert ending(tmp_path, 16)[0] == "Done: 16 images in 12 min, at 4x4."


def test_lines_are_wrapped_between_words_and_commands_are_whole(view, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    command, words = f"Watch it with  pggan monitor run={'x' * WIDTH} open=true", "some words " * 20
    with redirect_stderr(Terminal()) as terminal:
        for text in (words, command):
            view.line(text)
    *wrapped, last = terminal.getvalue().splitlines()
    assert last == command
    assert all(len(line) <= WIDTH and line.split()[0] in ("some", "words") for line in wrapped)
