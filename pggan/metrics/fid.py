"""Frechet inception distance (Heusel et al. 2017): between Gaussians that have the moments of two feature sets.

|m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), in float64, covariances with N - 1.  With R1 and R2 the triangular factors
of the centred features, S = R^T R / (N - 1), the eigenvalues of S1 S2 are the squared singular values of R1 R2^T up to
that factor.  So the trace of the root is a sum of singular values: it is real and stable also where covariances are
singular, as with fewer images than features.

Published numbers have extractor=inception and 50,000 fakes beside as many reals, or beside all of a smaller set (the
official code of progressive GANs repeats them up to 50,000, and mirrors them where training does; here they are taken
once, as they are).  With other features or fewer images the number is another one: it is biased upwards, the more the
fewer images there are.  KID is not.  With no more images than features, when the covariances are singular, a note says
so.
"""

from typing import Any

import torch
from torch import Tensor

from pggan.metrics.base import FeatureMetric


def gaussian_of(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [F] and a factor R [min(N, F), F] of the covariance R^T R of features [N, F], in float64."""
    features = features.double()
    mean = features.mean(0)
    factor = torch.linalg.qr(features - mean, mode="r").R
    return mean, factor / (len(features) - 1) ** 0.5


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """FID between features [N, F] and [M, F], of at least two images each."""
    (mean_x, factor_x), (mean_y, factor_y) = gaussian_of(x), gaussian_of(y)
    root = torch.linalg.svdvals(factor_x @ factor_y.T).sum()
    return float((mean_x - mean_y).square().sum() + factor_x.square().sum() + factor_y.square().sum() - 2 * root)


class FrechetInceptionDistance(FeatureMetric):
    """`fid`."""

    key = "fid"
    paper_images = 50_000
    least_images = 16  # as of SWD; from there to the number of features, there is a note
    takes_more_fakes = True
    features = 0  # of the extractor, known with the first ones

    def parameters(self) -> dict[str, Any]:
        return {"covariance": "N - 1", "reals": self.real_count}

    def notes(self) -> list[str]:
        notes = []
        if self.real_count < self.count:
            notes.append(f"fid compares {self.count:,} fakes with {self.real_count:,} images, all that the data has.")
        if self.real_count <= self.features:
            counts = f"{self.real_count:,} images by {self.features:,} features"
            why = "with no more images than features, covariances are singular"
            notes.append(f"fid compares {counts}: {why}, and the number is too high.")
        return notes

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        self.features = fakes.shape[1]
        return self.named("fid", frechet_distance(fakes, reals))
