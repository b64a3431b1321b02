"""The time that the evaluations of a run take, in words."""

from pggan.config import TrainConfig


def evaluation_share(config: TrainConfig) -> str:
    """The time of evaluations, as far as it is known."""
    chosen = config.evaluation
    if not chosen.metrics:
        return "evaluations (none)"
    if chosen.interval_images is None:
        return f"evaluations (at most {chosen.max_share:.0%} of the time)"
    return f"evaluations (every {chosen.interval_images:,} images)"
