"""Summaries for plugins of TensorBoard: the charts of Custom Scalars, and a run's row in HParams."""

from collections.abc import Mapping

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

from pggan.run.tags import LAYOUT, PHASES

LAYOUT_TAG = "custom_scalars__config__"  # of the plugin


def chart_layout() -> Summary:
    """The charts of LAYOUT, each category beginning with the phases."""
    categories = [
        layout_pb2.Category(title=title, chart=[_chart(*chart) for chart in (PHASES | charts).items()])
        for title, charts in LAYOUT.items()
    ]
    content = layout_pb2.Layout(category=categories).SerializeToString()
    tensor = TensorProto(dtype="DT_STRING", string_val=[content], tensor_shape=TensorShapeProto())
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="custom_scalars"))
    return Summary(value=[Summary.Value(tag=LAYOUT_TAG, tensor=tensor, metadata=about)])


def _chart(title: str, tags: list[str]) -> object:
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))


def session_start(hyperparameters: Mapping[str, object]) -> Summary:
    """A row of HParams.  No columns are declared: TensorBoard takes all hyperparameters and scalars of all runs."""
    start = plugin_data_pb2.SessionStartInfo()
    for name, value in hyperparameters.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[name].number_value = value
        else:
            start.hparams[name].string_value = str(value)
    return _session(metadata.SESSION_START_INFO_TAG, session_start_info=start)


def session_end() -> Summary:
    """The mark of success in a row of HParams: the run has come to its end."""
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS)
    return _session(metadata.SESSION_END_INFO_TAG, session_end_info=end)


def _session(tag: str, **info: object) -> Summary:
    content = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **info).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
