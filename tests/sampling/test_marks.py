"""Pictures and films say that a network has drawn them, at the place where other programs look for it."""

import json
import struct
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.files import save_film, save_picture
from pggan.sampling.marks import mark_line, png_chunk

TRAINED = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
MP4_XMP = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")  # the XMP specification's number of an MP4 box


def packet_of(path):
    """The XMP packet, found as the specification of each kind of file says."""
    content = path.read_bytes()
    match path.suffix:
        case ".gif":
            place = content.index(b"\x21\xff\x0bXMP DataXMP") + 14
            blocks, at = 0, place  # a program that knows nothing of XMP passes over blocks, and meets what follows
            while content[at]:
                at, blocks = at + 1 + content[at], blocks + 1
            assert content[at + 1] in b"\x21\x2c"
            return content[place : content.index(b"\x01\xff\xfe\xfd", place)]
        case ".mp4":
            at = 0
            while content[at + 4 : at + 8] != b"uuid":
                at += struct.unpack(">I", content[at : at + 4])[0]
            assert content[at + 8 : at + 24] == MP4_XMP
            assert at + struct.unpack(">I", content[at : at + 4])[0] == len(content)
            return content[at + 24 :]
    with Image.open(path) as picture:
        return picture.info["xmp"]


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "film.webp", "film.gif", "film.mp4"])
def test_every_kind_of_file_carries_the_mark(tmp_path, name, capsys):
    path, frames = tmp_path / name, np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    mark = mark_line(True, "<ü & \udc80\x01>", "seeds=0-3")
    if name.startswith("a"):
        save_picture(frames[0], path, mark)
    else:
        save_film(frames, 3, 10, path, mark)
    if path.suffix != ".mp4":
        with Image.open(path) as picture:
            assert getattr(picture, "n_frames", 1) == (1 if name.startswith("a") else 3)
    description = ElementTree.fromstring(packet_of(path).decode().strip("\ufeff")).find(".//{*}Description")
    assert description.attrib["{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType"] == TRAINED
    line = description.find(".//{*}li").text
    assert line.endswith("run=<ü & ??>, seeds=0-3")
    assert line.startswith("Drawn by a neural network: pggan ")
    assert main(["inspect", f"image={path}", "json=true"]) == 0
    said = {"digital_source_type": "trainedAlgorithmicMedia", "description": line}
    assert json.loads(capsys.readouterr().out) == said


def test_the_mark_is_left_out_on_request_and_names_seeds(run_dir, tmp_path, capsys):
    for marks, out in (("true", "faces"), ("false", "plain")):
        assert main(["sample", f"run={run_dir}", "seeds=7", f"out={tmp_path / out}", f"marks={marks}"]) == 0
    capsys.readouterr()
    assert main(["inspect", f"image={tmp_path / 'faces' / 'seed-000007.png'}"]) == 0
    assert "seed-000007" in capsys.readouterr().out
    assert main(["inspect", f"image={tmp_path / 'plain' / 'seed-000007.png'}"]) == 0
    assert capsys.readouterr().out.startswith("No mark: ")
    assert main(["inspect", f"image={tmp_path / 'none.png'}"]) == 2


def test_a_training_marks_its_fakes_and_not_the_reals(run_dir):
    found = {one.name: b"trainedAlgorithmicMedia" in one.read_bytes() for one in (run_dir / "samples").rglob("*.png")}
    assert found.pop("reals.png") is False
    assert found
    assert all(found.values())


def test_the_chunk_that_a_page_adds_makes_a_whole_png(tmp_path):
    Image.new("RGB", (2, 2), "red").save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[:33] + png_chunk(mark_line(True, "r", "s")) + content[33:])
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.getpixel((0, 0)) == (255, 0, 0)
    assert TRAINED.encode() in packet_of(tmp_path / "a.png")
    assert png_chunk(None) == b""
