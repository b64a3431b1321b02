"""A batch of real images: `data` makes it, `training` and `losses` use it."""

from typing import NamedTuple

from torch import Tensor


class Reals(NamedTuple):
    """Real images and the labels that go with them."""

    images: Tensor  # [N, C, R, R] in [-1, 1], faded like the generator's output
    labels: Tensor | None  # [N, L] one-hot, of these images; also given to the fakes of the D step
    fake_labels: Tensor | None  # [N, L] one-hot, drawn from the training set for the fakes of the G step

    def select(self, indices: Tensor) -> "Reals":
        """The images and labels at `indices` [M]."""
        return Reals(*(None if part is None else part[indices] for part in self))  # type: ignore[arg-type]
