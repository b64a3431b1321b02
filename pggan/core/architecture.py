"""Hyperparameters, shapes and cost of generator (G) and discriminator (D).  Imports no torch.

Source: Karras et al., "Progressive Growing of GANs" (ICLR 2018), Table 2, and the official configuration.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import Enum, StrEnum
from typing import Any

from pggan.core.errors import UserError

# The floating-point type of activations and convolutions.  Weights, losses and penalties are always float32.
Precision = StrEnum("Precision", "auto fp32 bf16 fp16")
MIN_RESOLUTION = 4
MOST = 2**24  # the largest integer that `Architecture` accepts


class Resampling(StrEnum):
    """How G's blocks double and D's blocks halve the resolution.  In G, `fused` and `unfused` have the same result."""

    fused = "fused"  # one 4x4 convolution of stride 2 (in G, a transposed one), the default of the official code
    unfused = "unfused"  # as in the paper: G upsamples (nearest) before a 3x3 convolution, D pools after the activation


class Stem(StrEnum):
    """The variants of G's first layers (from latent to 4x4 features) in the official code and in other programs."""

    official = "official"  # pixel norm after the dense layer and after the convolution
    unit_bias = "unit_bias"  # as in pytorch_GAN_zoo: the dense layer has one bias per pixel and feature map
    one_norm = "one_norm"  # as in pro-gan-pth: no pixel norm after the dense layer


class Rescaling(Enum):
    """How a convolution changes the height and width of its feature maps."""

    same = "same"
    up = "up"  # height and width double, by nearest upsampling before the convolution
    down = "down"  # height and width halve, by box pooling after the convolution


def resolutions_between(first: int, final: int) -> tuple[int, ...]:
    """The powers of two from `first` to `final`, both included."""
    return tuple(1 << exponent for exponent in range(first.bit_length() - 1, final.bit_length()))


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The hyperparameters of G and D; raises ValueError for impossible values."""

    resolution: int  # side of the final images in pixels
    channels: int
    num_classes: int  # 0 for images without labels
    latent_size: int
    fmap_base: int  # with fmap_decay=1, resolution R has min(2 * fmap_base / R, fmap_max) feature maps
    fmap_decay: float
    fmap_max: int
    stddev_group: int  # D computes each minibatch standard deviation over this many images
    resampling: Resampling
    blur: bool = False  # a low-pass filter follows every upsampling of features
    bilateral: int = 0  # passes of a bilateral filter over G's images in training mode; in eval mode, twice as many
    residual: bool = False  # D's blocks have skip connections
    stem: Stem = Stem.official
    features: str | None = None  # NAME@CHECKSUM of a pretrained network, whose features D gets as additional input
    features_from: int = 16  # the lowest resolution at which D gets pretrained features
    discriminator: str | None = None  # class name of the user's own discriminator; None means the built-in D

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("num_classes", "bilateral") else 1
            whole = field.type is int and (type(value) is not int or not least <= value <= MOST)
            if whole or (field.type is bool and not isinstance(value, bool)):
                raise ValueError(f"{field.name}={value!r} is not possible")
        for side in (self.resolution, self.features_from):
            if side < MIN_RESOLUTION or side & (side - 1):  # not a power of two
                raise ValueError(f"a resolution of {side} is not possible")
        if self.features is not None and not re.fullmatch(r"[\w:-]{1,200}@[0-9a-f]+", str(self.features)):
            raise ValueError("`features` does not have the form NAME@CHECKSUM")

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Architecture":
        """Build the architecture from a JSON object; impossible values raise ValueError, unknown settings UserError."""
        if not isinstance(plain, dict):
            raise ValueError("the architecture in the file is not a JSON object")
        known = {field.name for field in fields(cls)}
        if strange := [f"{name}={value!r}" for name, value in plain.items() if name not in known and value]:
            problem = f"This version of pggan does not know these network settings: {', '.join(strange)}."
            raise UserError(problem, "Use the version of pggan that wrote the file.")
        values = {name: value for name, value in plain.items() if name in known}
        try:
            kinds = {"resampling": Resampling(values["resampling"]), "stem": Stem(values.get("stem", "official"))}
            return cls(**{**values, **kinds})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the architecture in the file is not complete: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """The architecture as a JSON object, which leaves out fields with default values."""
        plain = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or (field.name == "features_from" and self.features is not None):
                plain[field.name] = value
        return plain

    def differences(self, theirs: "Architecture") -> Iterator[str]:
        """Yield 'field: value in `theirs` -> value in `self`' for each field in which the architectures differ."""
        other = asdict(theirs)
        for name, value in asdict(self).items():
            if value != other[name]:
                yield f"{name}: {other[name]} -> {value}"

    @property
    def resolutions(self) -> tuple[int, ...]:
        return resolutions_between(MIN_RESOLUTION, self.resolution)

    def width(self, resolution: int) -> int:
        """The number of feature maps at `resolution`; the official code computes it by `nf(log2(resolution) - 1)`."""
        return max(1, min(int(self.fmap_base / 2 ** ((resolution.bit_length() - 2) * self.fmap_decay)), self.fmap_max))

    def multiply_adds(self, resolution: int) -> int:
        """Multiply-adds per image of G's forward pass at `resolution`; D's forward pass needs about as many."""
        total = self.latent_size * self.width(4) * 16 + 9 * self.width(4) ** 2 * 16
        taps = 4 if self.resampling is Resampling.fused else 9
        for level in resolutions_between(8, resolution):
            inner, outer = self.width(level // 2), self.width(level)
            total += (taps * inner * outer + 9 * outer * outer) * level * level
        return total + self.width(resolution) * self.channels * resolution * resolution

    def activations_up_to(self, resolution: int) -> int:
        """The sum of feature maps * R * R over all resolutions R up to `resolution`: a measure of activation memory."""
        return sum(self.width(level) * level * level for level in resolutions_between(4, resolution))
