"""Shapes and cost of the two networks.  Standard library only.

Source: Karras et al., "Progressive Growing of GANs" (ICLR 2018), Table 2; widths as in the official configuration.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import Enum, StrEnum
from typing import Any

# The type of activations and kernels; weights, losses and penalties stay in float32.
Precision = StrEnum("Precision", "auto fp32 bf16 fp16")
MIN_RESOLUTION = 4
MOST = 2**24  # of the whole numbers; no network of this size could be trained


class Resampling(Enum):
    """How a block changes resolution.  Both kinds of generator compute the same function; the discriminators differ."""

    fused = "fused"  # one 4x4 stride-2 convolution; D pools before bias and activation (official default)
    unfused = "unfused"  # nearest upsampling and box pooling around 3x3 convolutions; D pools after activation (paper)


class Stem(Enum):
    """How a generator makes its 4x4 features; two are only for weights of other programs."""

    official = "official"  # a bias per feature map; pixel norm after both layers
    unit_bias = "unit_bias"  # a bias for each of a feature map's 16 numbers in the dense layer (pytorch_GAN_zoo)
    one_norm = "one_norm"  # pixel norm after the second layer alone (pro-gan-pth)


class Rescaling(Enum):
    """The effect of a convolution on the side of an image."""

    same = "same"
    up = "up"  # doubles it, by nearest upsampling before the convolution
    down = "down"  # halves it, by box pooling after the convolution


def resolutions_between(first: int, final: int) -> tuple[int, ...]:
    """The powers of two from `first` to `final`, both included."""
    return tuple(1 << exponent for exponent in range(first.bit_length() - 1, final.bit_length()))


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The numbers that decide all shapes of generator and discriminator; raises ValueError for impossible ones."""

    resolution: int  # final side in pixels, a power of two
    channels: int  # image channels: 3 RGB, 1 grey, or any other number
    num_classes: int  # 0 without labels
    latent_size: int
    fmap_base: int  # feature maps at resolution R: min(2 * fmap_base / R, fmap_max), for fmap_decay 1
    fmap_decay: float
    fmap_max: int
    stddev_group: int  # images that share one minibatch-stddev value
    resampling: Resampling
    blur: bool = False  # a low-pass filter after every upsampling of features
    bilateral: int = 0  # passes of a bilateral filter over G's images
    residual: bool = False  # D's blocks add their input, pooled to half its resolution, to their output
    stem: Stem = Stem.official
    features: str | None = None  # pretrained ones that D looks at, and their weights: NAME@CHECKSUM
    features_from: int = 16  # the lowest resolution at which D looks at them

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("num_classes", "bilateral") else 1
            whole = field.type is int and (type(value) is not int or not least <= value <= MOST)
            if whole or (field.type is bool and not isinstance(value, bool)):
                raise ValueError(f"{field.name}={value!r} is not possible")
        for side in (self.resolution, self.features_from):
            if side < MIN_RESOLUTION or side & (side - 1):  # no power of 2
                raise ValueError(f"a resolution of {side} is not possible")
        if self.features is not None and not re.fullmatch(r"[\w:-]{1,200}@[0-9a-f]+", str(self.features)):
            raise ValueError("features does not name features")

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Architecture":
        """The architecture in a file's header; raises ValueError, naming what is not possible, or not known here."""
        if not isinstance(plain, dict):
            raise ValueError("its architecture is none")
        known = {field.name for field in fields(cls)}
        if strange := [f"{name}={value!r}" for name, value in plain.items() if name not in known and value]:
            raise ValueError(f"its networks have {', '.join(strange)}, which this version has not")
        values = {name: value for name, value in plain.items() if name in known}
        try:
            kinds = {"resampling": Resampling(values["resampling"]), "stem": Stem(values.get("stem", "official"))}
            return cls(**{**values, **kinds})
        except (KeyError, TypeError) as error:
            raise ValueError(f"its architecture is not complete: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """The architecture as plain values for JSON, without what is as usual."""
        plain = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or (field.name == "features_from" and self.features is not None):
                plain[field.name] = value.value if isinstance(value, Enum) else value
        return plain

    def differences(self, theirs: "Architecture") -> Iterator[str]:
        """The fields in which another architecture differs, as 'name: theirs -> ours'."""
        other = asdict(theirs)
        for name, value in asdict(self).items():
            if value != other[name]:
                yield f"{name}: {other[name]} -> {value}"

    @property
    def resolutions(self) -> tuple[int, ...]:
        """The powers of two from 4 to `resolution`."""
        return resolutions_between(MIN_RESOLUTION, self.resolution)

    def width(self, resolution: int) -> int:
        """Feature maps of the block at `resolution` (official `nf(stage)`, stage = log2(resolution) - 1)."""
        stage = resolution.bit_length() - 2
        return max(1, min(int(self.fmap_base / 2 ** (stage * self.fmap_decay)), self.fmap_max))

    def multiply_adds(self, resolution: int) -> int:
        """Multiply-adds per image of a generator forward pass at `resolution`; the discriminator's are alike."""
        total = self.latent_size * self.width(4) * 16 + 9 * self.width(4) ** 2 * 16
        taps = 4 if self.resampling is Resampling.fused else 9
        for level in resolutions_between(8, resolution):
            inner, outer = self.width(level // 2), self.width(level)
            total += (taps * inner * outer + 9 * outer * outer) * level * level
        return total + self.width(resolution) * self.channels * resolution * resolution

    def activations_up_to(self, resolution: int) -> int:
        """The activations of one layer of every level up to `resolution`, per image."""
        return sum(self.width(level) * level * level for level in resolutions_between(4, resolution))
