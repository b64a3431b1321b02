"""Folders, pyramids and several sources as one."""

import os
from pathlib import Path

import numpy as np
import pytest

from pggan.data.planning import Options
from pggan.data.prepare import prepare
from pggan.data.sources import JoinedSource, open_source
from tests.data.images import EXPECTED, everything, noise, png, write_tar


def test_file_names_may_be_any_bytes(tmp_path):
    (tmp_path / "photos").mkdir()
    for number, name in enumerate([b"\xff\xfe.png", "Käse 画.png".encode(), b"new\nline.png", b"bad\xff.png"]):
        content = b"" if name.startswith(b"bad") else png(number)
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "photos"), name))).write_bytes(content)
    for _ in range(2):
        pyramid = prepare(tmp_path / "photos", tmp_path / "set", Options())
        assert (pyramid.images, pyramid.source["bad_images"]) == (3, 1)


def test_a_pyramid_is_a_source_with_its_labels(folder, tmp_path, make_pyramid):
    first = make_pyramid(tmp_path / "first", classes=3, images=7)
    second = prepare(first.path, tmp_path / "second", Options(max_resolution=8, labels=True), workers=1)
    np.testing.assert_array_equal(everything(second), first.read(8, np.arange(7)))
    assert second.class_names == first.class_names
    assert second.labels.tolist() == first.labels.tolist()


def test_a_pyramid_is_cropped_again(tmp_path, make_pyramid):
    first = make_pyramid(tmp_path / "first", images=3)
    middle = prepare(first.path, tmp_path / "middle", Options(max_resolution=8, keep=0.5))
    np.testing.assert_array_equal(everything(middle), first.read(16, np.arange(3))[:, 4:12, 4:12])


def test_a_pyramid_is_extended_by_other_images(folder, tmp_path):
    first = prepare(folder, tmp_path / "first", Options())
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.png").write_bytes(png(9))
    source = JoinedSource([open_source(first.path), open_source(tmp_path / "more")])
    both = prepare(source, tmp_path / "both", Options())
    np.testing.assert_array_equal(everything(both), np.concatenate([EXPECTED, noise(9)[None]]))
    assert [entry.name for entry in source.entries()][-2:] == ["1-first/00000003", "2-more/a.png"]


@pytest.mark.slow
def test_a_compressed_archive_and_a_folder_together(folder, tmp_path):
    archive = write_tar(tmp_path / "more.tgz", [("x/b.png", png(8)), ("x/a.png", png(9))])
    source = JoinedSource([open_source(archive), open_source(folder)])
    both = prepare(source, tmp_path / "both", Options(), workers=2)
    np.testing.assert_array_equal(everything(both), np.concatenate([np.stack([noise(9), noise(8)]), EXPECTED]))
