"""Explain the values of metrics such as FID in words.  Imports no torch."""

import re
from collections.abc import Iterator, Mapping

from pggan.core.text import three_digits

# The function `in_words` replaces {NAME} by the value of the metric NAME.
SENTENCES = {
    "swd/mean": "SWD {swd/mean}, lower is better; two halves of your images differ by {swd_floor/mean}",
    "ms_ssim": "MS-SSIM {ms_ssim}, best near your images' {ms_ssim_reals}; if higher, fakes are too alike",
    "kid": "KID {kid}, lower is better, 0 is perfect",
    "fid": "FID {fid}, lower is better, 0 is perfect",
    "precision": "precision {precision}, up to 1: the share of generated images that are like your images",
    "recall": "recall {recall}, up to 1: the share of your images that are like generated images",
    "copies": "copies {copies}: the share of generated images that repeat your images; chance alone gives about 0.05",
}
# Metrics that good runs reach, measured with images of 32x32 and 64x64 pixels (docs/quality.md).
REACHED = {
    ("kid", "efficientnet-lite0"): "good runs: KID 20 to 60 with photographs of faces, about 100 with cartoon faces",
    ("fid", "efficientnet-lite0"): "good runs: FID 30 to 60 with photographs of faces, about 90 with cartoon faces",
    ("kid", "inception"): "good runs: KID 0.3 to 1 with photographs of faces, about 3 with cartoon faces",
}
COMPARABLE = {
    "kid": "not comparable with values from another feature extractor",
    "fid": "not comparable with values from another feature extractor or number of images",
}
PART = re.compile(r"[a-z_]+_(floor|reals|distance)(_reals)?(/.*)?|.*/\d+")  # matches metrics that users need not see


def in_words(values: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence, without a full stop, for each metric in `values`, such as {"kid@inception-9": 0.5}."""
    known = {name.partition("@")[0]: three_digits(value) for name, value in values.items()}
    for name, value in values.items():
        metric, _, rest = name.partition("@")
        extractor = rest.rpartition("-")[0]
        if metric in SENTENCES:
            said = [SENTENCES[metric].format_map(known), REACHED.get((metric, extractor)), COMPARABLE.get(metric)]
            yield "; ".join(filter(None, said))
        elif not PART.fullmatch(metric):
            yield f"{name} {three_digits(value)}"
