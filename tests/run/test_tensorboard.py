"""What is in TensorBoard's files, read by TensorBoard's own reader."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from pggan.run.tags import LAYOUT, description
from pggan.run.tensorboard import TensorBoardWriter
from pggan.run.tensorboard_plugins import LAYOUT_TAG, session_start


@pytest.fixture(scope="module")
def board(finished_run):
    return EventAccumulator(str(finished_run)).Reload()


def text_of(board: EventAccumulator, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in board.Tensors(tag)]


def test_the_charts_begin_with_the_growth_in_every_category(board):
    (event,) = board.Tensors(LAYOUT_TAG)
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(LAYOUT)
    assert all(category.chart[0].multiline.tag == ["^schedule/growth$"] for category in layout.category)


def test_what_a_tag_means_is_stored_with_it(board):
    for tag in ("D/loss", "images/reals", "score_histogram/fakes", "phases"):
        assert board.SummaryMetadata(tag).summary_description == description(tag)


def test_the_borders_of_the_phases_are_curve_and_text(board):
    starts = [1, 33, 65, 97, 129]
    assert [event.step for event in board.Tensors("phases")] == starts
    growth = {event.step: event.value for event in board.Scalars("schedule/growth")}
    assert growth == {1: 0, 32: 0, 33: 0, 64: 0.75, 65: 1, 96: 1, 97: 1, 128: 1.75, 129: 2, 160: 2}


def test_the_texts_say_how_to_go_on_and_what_the_run_is(board, finished_run):
    (command,), (data,), (phases,), (configuration,) = (
        text_of(board, f"run/{page}") for page in ("command", "data", "phases", "configuration")
    )
    assert f"`pggan train run_dir={finished_run}`" in command
    assert "| images | 48 |" in data
    assert "| 4 | 16x16 fade | 96 | 128 | 8 | 0.001 | 0.001 |" in phases
    assert "\n    seed: 0\n" in configuration


def test_the_shares_of_the_time_add_up(board):
    parts = [[event.value for event in board.Scalars(f"speed/{part}_share")] for part in ("data", "step", "overhead")]
    assert [sum(tick) for tick in zip(*parts, strict=True)] == pytest.approx([1.0] * 5, abs=1e-6)  # float32


def test_histograms_hold_every_finite_score(tmp_path):
    writer = TensorBoardWriter(tmp_path, 0)
    writer.histogram("score_histogram/reals", np.array([1, 2, 2, np.inf, np.nan], np.float32), 8)
    writer.histogram("score_histogram/fakes", np.array([np.nan], np.float32), 8)
    writer.flush()
    writer.close()
    board = EventAccumulator(str(tmp_path)).Reload()
    (found,) = board.Histograms("score_histogram/reals")
    values = found.histogram_value
    assert (values.num, values.min, values.max, values.sum, values.sum_squares) == (3, 1, 2, 5, 9)
    assert (sum(values.bucket), values.bucket_limit[-1]) == (3, 2)
    assert board.Tags()["histograms"] == ["score_histogram/reals"]


def test_hyperparameters_keep_their_types(finished_run, board):
    assert metadata.SESSION_START_INFO_TAG in board.PluginTagToContent(metadata.PLUGIN_NAME)
    summary = session_start({"seed": 3, "elastic": True, "loss.name": "wgan_gp", "loss.drift": 0.001})
    content = summary.value[0].metadata.plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    kinds = {name: value.WhichOneof("kind") for name, value in found.items()}
    assert kinds == {
        "seed": "number_value",
        "elastic": "bool_value",
        "loss.name": "string_value",
        "loss.drift": "number_value",
    }
