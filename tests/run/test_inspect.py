"""`pggan inspect data=`: counts, levels, bytes, checksums and a contact sheet."""

import json

import numpy as np
from PIL import Image

from pggan.cli.main import main
from pggan.data.format.pyramid import ImagePyramid
from pggan.run.inspect import SHEET_COLUMNS, SHEET_IMAGES, contact_sheet


def test_it_counts_levels_bytes_and_classes(labelled_data, capsys):
    assert main(["inspect", f"data={labelled_data}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 48
    assert facts["level_bytes"] == {str(level): 48 * level * level * 3 for level in (4, 8, 16)}
    assert facts["bytes"] == sum(file.stat().st_size for file in labelled_data.iterdir())
    assert facts["class_images"] == {"class-0": 16, "class-1": 16, "class-2": 16}
    assert facts["source"] == {"kind": "test"}


def test_it_compares_checksums_when_asked(make_pyramid, tmp_path, capsys):
    make_pyramid(tmp_path / "set")
    assert main(["inspect", f"data={tmp_path / 'set'}", "verify=true", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] == "all right"
    (tmp_path / "set" / "r0004-00000.bin").write_bytes(bytes(48 * 4 * 4 * 3))
    assert main(["inspect", f"data={tmp_path / 'set'}"]) == 0
    assert main(["inspect", f"data={tmp_path / 'set'}", "verify=true"]) == 2
    assert "r0004-00000.bin was changed" in capsys.readouterr().err


def test_the_contact_sheet_shows_images_spread_over_the_set_and_the_levels_of_one(make_pyramid, tmp_path, capsys):
    pyramid = make_pyramid(tmp_path / "set", images=100)
    sheet = tmp_path / "sheet.png"
    assert main(["inspect", f"data={tmp_path / 'set'}", f"sheet={sheet}"]) == 0
    with Image.open(sheet) as picture:
        pixels = np.asarray(picture)
    rows = SHEET_IMAGES // SHEET_COLUMNS
    assert pixels.shape == (16 * (rows + 1), 16 * SHEET_COLUMNS, 3)
    shown = np.arange(SHEET_IMAGES) * 100 // SHEET_IMAGES
    np.testing.assert_array_equal(pixels[:16, 16:32], pyramid.read(16, shown[1:2])[0])
    np.testing.assert_array_equal(pixels[-16:, :16], pyramid.read(4, shown[:1])[0].repeat(4, 0).repeat(4, 1))
    np.testing.assert_array_equal(pixels[-16:, 32:48], pyramid.read(16, shown[:1])[0])


def test_a_sheet_of_a_few_grey_images_and_one_of_a_wrong_kind(make_pyramid, tmp_path, capsys):
    make_pyramid(tmp_path / "grey", images=3, channels=1)
    assert contact_sheet(ImagePyramid(tmp_path / "grey")).shape == (32, 16 * SHEET_COLUMNS, 1)
    assert main(["inspect", f"data={tmp_path / 'grey'}", f"sheet={tmp_path / 'a.txt'}"]) == 2
    assert ".png" in capsys.readouterr().err
