"""Keys of the networks."""

from dataclasses import dataclass

from pggan.core.architecture import MOST, Architecture, Resampling
from pggan.core.errors import UserError
from pggan.core.validation import require_bounds


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The two networks."""

    latent_size: int | None
    fmap_base: int
    fmap_decay: float
    fmap_max: int
    stddev_group: int
    resampling: Resampling

    def __post_init__(self) -> None:
        sizes = ("fmap_base", "fmap_max", "stddev_group", "latent_size")
        require_bounds(self, "model.", **{key: f">=1 <={MOST[key]}" for key in sizes}, fmap_decay=">=0")

    def require_whole_groups(self, key: str, batch: int) -> None:
        """Raise UserError unless a `batch`, from `key`, divides into groups for minibatch stddev."""
        group = self.stddev_group
        if batch % min(group, batch):
            raise UserError(
                f"A batch of {batch} ({key}) does not divide into groups of model.stddev_group={group}.",
                f"Take a batch of {batch // group * group} or {-(-batch // group) * group}, or another stddev_group.",
            )

    def architecture(self, resolution: int, channels: int, labels: int) -> Architecture:
        """The networks for images of `resolution` and `channels`, with `labels` classes (0 for none)."""
        return Architecture(
            resolution=resolution,
            channels=channels,
            labels=labels,
            latent_size=self.latent_size or min(self.fmap_base, self.fmap_max),
            fmap_base=self.fmap_base,
            fmap_decay=self.fmap_decay,
            fmap_max=self.fmap_max,
            stddev_group=self.stddev_group,
            resampling=self.resampling,
        )
