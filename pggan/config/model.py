"""Keys of the networks, of Adam and of the averaged generator."""

from dataclasses import dataclass

from pggan.core.architecture import LIMITS, MIN_RESOLUTION, Architecture, Resampling, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds

FEATURES = "efficientnet-lite0"  # as model.features


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Generator and discriminator."""

    latent_size: int | None
    fmap_base: int
    fmap_decay: float
    fmap_max: int
    stddev_group: int
    resampling: Resampling
    blur: bool = False
    bilateral: int = 0
    residual: bool = False
    features: str | None = None
    features_from: int = 16

    def __post_init__(self) -> None:
        sizes = ("fmap_base", "fmap_max", "stddev_group", "latent_size")
        require_bounds(self, "model.", **{key: f">=1 <={LIMITS[key]}" for key in sizes}, fmap_decay=">=0")
        require_bounds(self, "model.", bilateral=f">=0 <={LIMITS['bilateral']}")
        first, least = self.features_from, 2 * MIN_RESOLUTION
        require(first >= least and is_power_of_two(first), "model.features_from", first, f"a power of two from {least}")
        if self.features not in (None, FEATURES):
            raise UserError(f"There is no model.features={self.features}.", f"Write model.features={FEATURES}.")

    @property
    def layers_beyond_paper(self) -> list[str]:
        """The keys of layers that are on, and that the paper's networks do not have."""
        return [key for key in ("blur", "bilateral", "residual", "features") if getattr(self, key)]

    def require_whole_groups(self, key: str, batch: int) -> None:
        """Raise UserError unless a `batch`, from `key`, divides into groups for minibatch stddev."""
        group = self.stddev_group
        if batch % min(group, batch):
            problem = f"A batch of {batch} ({key}) does not divide into groups of model.stddev_group={group}."
            below, above = batch // group * group, -(-batch // group) * group
            raise UserError(problem, f"Use a batch of {below} or {above}, or another stddev_group.")

    def architecture(self, resolution: int, channels: int, num_classes: int) -> Architecture:
        """The networks for images of `resolution` and `channels`, with `num_classes` classes (0 for none).

        Raises UserError where D is to look at features, and can't.
        """
        sizes = vars(self) | {"latent_size": self.latent_size or min(self.fmap_base, self.fmap_max)}
        if self.features is not None:
            if channels not in (1, 3):
                problem = f"model.features={self.features} sees images of 1 or 3 channels; these have {channels}."
                raise UserError(
                    problem, "Prepare images with channels=3 (data.channels= in training), or set model.features=null."
                )
            from pggan.networks.features.backbone import backbone_fingerprint  # imports torch

            sizes["features"] = backbone_fingerprint()
        return Architecture(resolution=resolution, channels=channels, num_classes=num_classes, **sizes)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam, for both networks."""

    beta1: float = 0.0
    beta2: float = 0.99
    epsilon: float = 1e-8
    reset_at_phase: bool = True

    def __post_init__(self) -> None:
        require_bounds(self, "optimizer.", beta1=">=0 <1", beta2=">=0 <1", epsilon=">0")


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """The averaged generator."""

    half_life_images: float | None
    rampup: float | None
    decay_per_update: float | None

    def __post_init__(self) -> None:
        if (self.half_life_images is None) == (self.decay_per_update is None):
            problem = "The averaged generator needs exactly one of ema.half_life_images and ema.decay_per_update."
            remedy = "Set one to null: 'ema.half_life_images=null ema.decay_per_update=0.999' is the paper's."
            raise UserError(problem, remedy)
        require_bounds(self, "ema.", half_life_images=">0", rampup=">0", decay_per_update=">=0 <1")
