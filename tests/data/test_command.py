"""A folder of good and bad images to a dataset."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.config import PrepareConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.data.planning import Options
from pggan.data.prepare import default_workers, prepare, run
from pggan.data.pyramid import ImagePyramid
from pggan.data.sources import open_source


def noise(side, seed=0, channels=3):
    shape = (side, side, channels) if channels > 1 else (side, side)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def photos(tmp_path):
    """Four good images, their paths out of order when walked depth first, in a folder of their own."""
    for seed, name in enumerate(["b/1.png", "a.PNG", "b/0.png", "c/d/e.png"]):
        save(tmp_path / "photos" / name, noise(16, seed))
    return tmp_path / "photos"


def everything(pyramid):
    return pyramid.read(pyramid.resolution, np.arange(pyramid.images))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_images_are_stored_in_the_order_of_their_paths(photos, tmp_path, workers):
    pyramid = prepare(photos, tmp_path / "set", Options(), workers=workers)
    expected = np.stack([noise(16, seed) for seed in (1, 2, 0, 3)])  # a.PNG, b/0, b/1, c/d/e
    np.testing.assert_array_equal(everything(pyramid), expected)
    assert pyramid.source == {"kind": "folder", "name": "photos", "crop": "center", "bad_images": 0}


def test_hidden_and_other_files_and_linked_folders_are_passed_over(photos, tmp_path):
    save(tmp_path / "elsewhere" / "f.png", noise(16))
    (photos / "linked").symlink_to(tmp_path / "elsewhere")
    save(photos / ".cache" / "g.png", noise(16))
    save(photos / "._a.png", noise(16))
    (photos / "notes.txt").write_text("not an image")
    assert [entry.name for entry in open_source(photos).entries()] == [
        "a.PNG",
        "b/0.png",
        "b/1.png",
        "c/d/e.png",
    ]


def test_the_resolution_is_the_largest_that_suits_every_image(photos, tmp_path):
    Image.fromarray(noise(40)[:20]).save(photos / "wide.png")
    assert prepare(photos, tmp_path / "small", Options()).resolution == 16
    for path in photos.rglob("*.*"):
        Image.fromarray(noise(70)[:33]).save(path)
    assert prepare(photos, tmp_path / "center", Options()).resolution == 32
    assert prepare(photos, tmp_path / "pad", Options(crop="pad")).resolution == 64
    assert prepare(photos, tmp_path / "chosen", Options(max_resolution=8)).resolution == 8


def test_channels_follow_the_images_unless_chosen(tmp_path):
    for seed in range(2):
        save(tmp_path / f"photos/{seed}.png", noise(8, seed, channels=1))
    grey = prepare(tmp_path / "photos", tmp_path / "grey", Options())
    assert grey.channels == 1
    np.testing.assert_array_equal(everything(grey)[1, :, :, 0], noise(8, 1, channels=1))
    assert prepare(tmp_path / "photos", tmp_path / "colour", Options(channels=3)).channels == 3
    save(tmp_path / "photos/2.png", noise(8, 2))
    with pytest.raises(UserError, match="mixed: 2 grey, 1 colour") as raised:
        prepare(tmp_path / "photos", tmp_path / "mixed", Options())
    assert "channels=3" in raised.value.remedy
    for seed in range(3, 23):
        save(tmp_path / f"photos/{seed}.png", noise(8, seed))
    assert prepare(tmp_path / "photos", tmp_path / "mixed", Options()).channels == 3  # two of 23 are strays


def test_the_first_folder_is_the_class(tmp_path):
    for name in ("cat/0.png", "dog/x/0.png", "cat/1.png", "ant/0.png"):
        save(tmp_path / "photos" / name, noise(8))
    pyramid = prepare(tmp_path / "photos", tmp_path / "set", Options(labels=True))
    assert pyramid.class_names == ["ant", "cat", "dog"]
    assert pyramid.labels.tolist() == [0, 1, 1, 2]


def test_an_image_without_a_class_is_refused(photos, tmp_path):
    with pytest.raises(UserError, match=r"directly in .*photos"):
        prepare(photos, tmp_path / "set", Options(labels=True))


# ---- bad images


@pytest.fixture
def bad_photos(photos, tmp_path):
    """The four good images and one of each bad kind; cut.png shows it in the pixels only."""
    (photos / "empty.jpg").touch()
    (photos / "page.jpg").write_text("<html>404</html>")
    Image.fromarray(noise(3)).save(photos / "tiny.png")
    Image.fromarray(noise(64)).save(photos / "cut.png")
    content = (photos / "cut.png").read_bytes()
    (photos / "cut.png").write_bytes(content[: len(content) // 2])
    save(tmp_path / "private.png", noise(16))
    (photos / "link.png").symlink_to(tmp_path / "private.png")
    return photos


BAD = ["cut.png", "empty.jpg", "link.png", "page.jpg", "tiny.png"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_images_are_left_out_counted_and_listed_with_the_reason(bad_photos, tmp_path, capsys, workers):
    pyramid = prepare(bad_photos, tmp_path / "set", Options(), workers=workers)
    assert (pyramid.images, pyramid.source["bad_images"]) == (4, 5)
    lines = capsys.readouterr().err.splitlines()
    start = lines.index("Left out 5 of 9 images:")
    listed = [line.removeprefix(f"  {bad_photos}/") for line in lines[start + 1 : start + 6]]
    assert [line.split(":")[0] for line in listed] == BAD
    assert listed[1:] == [
        "empty.jpg: empty file",
        "link.png: a link that leads out of the source folder",
        "page.jpg: not a PNG, JPEG or WebP image, but a page of text",
        "tiny.png: smaller than 16x16",
    ]


def test_a_bad_image_does_not_change_the_others(photos, tmp_path):
    before = everything(prepare(photos, tmp_path / "before", Options()))
    (photos / "b" / "00.jpg").write_bytes(b"junk")
    np.testing.assert_array_equal(everything(prepare(photos, tmp_path / "after", Options())), before)


def test_on_bad_stop_names_what_the_headers_show_and_writes_nothing(bad_photos, tmp_path):
    with pytest.raises(UserError, match="4 of 9 images cannot be used") as raised:
        prepare(bad_photos, tmp_path / "out" / "set", Options(on_bad="stop"))
    assert all(name in raised.value.problem for name in BAD[1:])
    assert not (tmp_path / "out").exists()


def test_on_bad_stop_names_what_only_the_pixels_show_and_makes_no_dataset(bad_photos, tmp_path):
    for name in BAD[1:]:
        (bad_photos / name).unlink()
    with pytest.raises(UserError, match=r"1 of 5 images cannot be used:\n.*cut\.png"):
        prepare(bad_photos, tmp_path / "out" / "set", Options(on_bad="stop"))
    assert not (tmp_path / "out" / "set").exists()
    (bad_photos / "cut.png").unlink()
    assert prepare(bad_photos, tmp_path / "out" / "set", Options(on_bad="stop")).images == 4
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["set"]


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_a_folder_of_bad_images_only_is_refused(tmp_path, content):
    (tmp_path / "photos").mkdir()
    for number in range(30):
        (tmp_path / f"photos/{number:02d}.png").write_bytes(content)
    with pytest.raises(UserError, match="30 of 30 images cannot be used") as raised:
        prepare(tmp_path / "photos", tmp_path / "set", Options())
    assert raised.value.problem.endswith("… and 10 more")
    assert not (tmp_path / "set").exists()


def test_images_whose_pixels_are_all_bad_are_refused(bad_photos, tmp_path):
    for path in bad_photos.rglob("*.*"):
        if path.name != "cut.png":
            path.unlink()
    with pytest.raises(UserError, match="1 of 1 images cannot be used"):
        prepare(bad_photos, tmp_path / "set", Options())
    assert not (tmp_path / "set").exists()


# ---- options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        *[({"max_resolution": side}, f"={side} is not a power of two") for side in (0, 2, 3, 12, 24, 100, -4)],
        ({"max_resolution": 32}, "max_resolution=32 is too much: the largest image allows 16"),
        ({"channels": 2}, "Images of 2 channels"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(photos, tmp_path, options, problem):
    with pytest.raises(UserError, match=problem):
        prepare(photos, tmp_path / "set", Options(**options))
    assert not (tmp_path / "set").exists()


def test_a_source_that_is_no_folder_of_images_is_refused(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    for source, problem in (
        (tmp_path / "nowhere", "does not exist"),
        (photos / "a.PNG", "neither a folder nor an archive"),
        (tmp_path / "empty", "There are no images in"),
    ):
        with pytest.raises(UserError, match=problem):
            prepare(source, tmp_path / "set", Options())


def test_an_existing_destination_is_refused_before_any_file_is_read_and_left_alone(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        prepare(tmp_path / "nowhere", tmp_path / "set", Options())
    assert (tmp_path / "set" / "notes.txt").read_text() == "mine"


def test_a_destination_below_a_file_is_a_user_error(photos, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        prepare(photos, tmp_path / "file" / "set", Options())


def test_a_full_disk_is_refused_before_anything_is_written(photos, tmp_path, monkeypatch):
    def refuse(destination, needed, remedy):
        raise UserError(f"no room for {needed} bytes", "")

    monkeypatch.setattr("pggan.data.build.require_free_space", refuse)
    with pytest.raises(UserError, match=f"no room for {4 * 3 * (16**2 + 8**2 + 4**2)} bytes"):
        prepare(photos, tmp_path / "out" / "set", Options())
    assert not (tmp_path / "out" / "set").exists()


def test_the_result_is_the_dataset_on_disk(photos, tmp_path):
    pyramid = prepare(photos, tmp_path / "set", Options())
    assert pyramid.fingerprint == ImagePyramid(tmp_path / "set").fingerprint
    pyramid.verify()


@pytest.mark.slow
def test_the_command_prepares_with_every_key_and_says_what_it_made(tmp_path, capsys):
    save(tmp_path / "photos/cat/wide.png", noise(64)[:32])
    keys = [f"source={tmp_path / 'photos'}", f"dest={tmp_path / 'set'}", "max_resolution=16", "crop=pad", "keep=0.9"]
    config = validated(PrepareConfig, compose("prepare", [*keys, "channels=1", "labels=true", "on_bad=stop"]))
    assert run(config) == 0
    pyramid = ImagePyramid(tmp_path / "set")
    assert (pyramid.resolution, pyramid.channels, pyramid.class_names) == (16, 1, ["cat"])
    assert (pyramid.read(16, np.array([0]))[0, 0] == 255).all()
    assert "4x4 to 16x16, images: 1, channels: 1" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("keep=0", "above 0"),
        ("keep=1.1", "at most 1"),
        ("num_workers=0", "at least 1"),
        ("labels=3", "true, false or the path"),
        ("crop=middle", "center"),
        ("on_bad=ignore", "report"),
        ("source=[]", "names nothing"),
        ("source=torchvision:cifar11", "'cifar10'"),
        ("report=/proc/new/report.json", "report=/proc/new/report.json can't be written"),
        ("report=/tmp", "report=/tmp is a folder"),
    ],
)
def test_the_command_refuses_what_cannot_be(photos, tmp_path, capsys, override, hint):
    assert main(["prepare", f"source={photos}", f"dest={tmp_path / 'set'}", override]) == 2
    message = capsys.readouterr().err
    assert hint in message
    assert override.split("=")[0] in message or "data set" in message
    assert not (tmp_path / "set").exists()


def test_a_check_writes_its_report_and_proposes_the_command_that_was_meant(photos, tmp_path, capsys, monkeypatch):
    report = tmp_path / "new" / "report.json"
    line = ["prepare", f"source={photos}", "check=true", "channels=1", f"report={report}", "num_workers=1"]
    assert main(line) == 0
    assert json.loads(report.read_text())["usable"] == 4
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"Next: pggan prepare source={photos} dest=data/photos channels=1 num_workers=1"
    )


def test_a_check_of_an_archive_without_images_says_so(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "no image")
    assert main(["prepare", f"source={tmp_path / 'empty.zip'}", "check=true", "num_workers=1"]) == 2
    assert "There are no images in" in capsys.readouterr().err


def test_the_command_takes_several_sources(photos, tmp_path, capsys):
    save(tmp_path / "more" / "x.png", noise(16, 9))
    assert main(["prepare", f"source=[{photos},{tmp_path / 'more'}]", f"dest={tmp_path / 'set'}", "num_workers=1"]) == 0
    assert ImagePyramid(tmp_path / "set").images == 5


def test_some_worker_is_used_by_default():
    assert 1 <= default_workers() <= 16
