"""The numbers of a run, in metrics.jsonl and in TensorBoard's files, read by TensorBoard's own reader."""

import json
import math
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from pggan.core.schedule import Course
from pggan.run.eta import Eta
from pggan.run.health import Alarms
from pggan.run.report import Reporter
from pggan.training.timing import PhaseTimes


def test_lines_beyond_a_checkpoint_are_dropped_and_numbers_that_are_not_finite_are_null(
    tiny_config, tmp_path, monkeypatch
):
    """In a run that resumes after an hour, where every image is expected to take as long as every other."""
    lines, seconds = [{"images": 96, "D/loss": None}, {"images": 104}], [0.0]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"images": 3']))
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    course = Course(tiny_config().schedule.build())
    eta = Eta(course, PhaseTimes((1.0,) * len(course.schedule.phases), measured=frozenset()), 96, 0.0)
    with Reporter(tmp_path, course, eta, Alarms(0.8), images=96, began=-3600.0) as reporter:
        seconds[0] = 6.0
        reporter.evaluated(2.0)
        reporter.tick(112, course.at(111), {"G/loss": 1.0, "D/loss": math.nan})
    kept, line = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert kept == lines[0]
    assert line["images_per_second"] == 16 / 4.0  # since the resume, without the evaluation
    assert line["eta_seconds"] == pytest.approx(48 / (16 / 4.0))
    assert line["hours"] == pytest.approx(3606 / 3600)
    assert line["D/loss"] is None


def test_phases_and_the_configuration_are_texts_and_hyperparameters_a_row_that_ends_with_the_run(finished_run):
    board = EventAccumulator(str(finished_run)).Reload()
    assert [event.step for event in board.Tensors("phases/text_summary")] == [1, 33, 65, 97, 129]
    (event,) = board.Tensors("run/configuration/text_summary")
    assert "\n    seed: 0\n" in event.tensor_proto.string_val[0].decode()
    rows = board.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(rows[metadata.SESSION_START_INFO_TAG])
    kinds = {name: start.hparams[name].WhichOneof("kind") for name in ("seed", "loss.name", "model.fmap_max")}
    assert kinds == {"seed": "number_value", "loss.name": "string_value", "model.fmap_max": "number_value"}
    assert metadata.SESSION_END_INFO_TAG in rows
