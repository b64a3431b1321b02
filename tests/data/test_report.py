"""Every kind of bad file is named with its reason, and changes nothing about the good ones."""

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.data.images import prepared as prepare


def photo(seed=0, side=64):
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (5, 5, 3), np.uint8))
    return small.resize((side, side), Image.Resampling.BICUBIC)


def encoded(image, kind, **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def png_header(width, height, body=b"", interlaced=0):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def flipped_bit(content, place):
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def silently_broken(content):
    """The JPEG with the first bit flipped that Pillow shows without a word and the strict decoder refuses."""
    for place in range(content.index(b"\xff\xda") + 20, len(content)):
        broken = flipped_bit(content, place)
        try:
            simplejpeg.decode_jpeg(broken)
        except ValueError:
            Image.open(io.BytesIO(broken)).load()
            return broken
    raise AssertionError


def make_animation(kind):
    return encoded(photo(1), kind, save_all=True, append_images=[photo(2)])


JPEG, PNG = encoded(photo(), "JPEG", quality=90), encoded(photo(), "PNG")
EXIF = Image.Exif()
EXIF[0x0112] = 6
COMMENT = PngInfo()
COMMENT.add_text("Comment", "a comment")
COMMENTED = encoded(photo(), "PNG", pnginfo=COMMENT)

LINEAR = PngInfo()
LINEAR.add(b"gAMA", struct.pack(">I", 100_000))
CMYK = encoded(photo(3).convert("CMYK"), "JPEG")
PROGRESSIVE = encoded(photo(), "JPEG", quality=90, progressive=True)
TABLES = JPEG.index(b"\xff\xdb")
# JPEG files that decoders warn of, with all pixels of JPEG.
ODD = {
    "jfif2.jpg": JPEG.replace(b"JFIF\0\1\1", b"JFIF\0\2\1"),
    "between.jpg": JPEG[:TABLES] + b"\0\0stray" * 99 + JPEG[TABLES:],
    "padded.jpg": JPEG[:-2] + bytes(8) + JPEG[-2:],
    "endless.jpg": JPEG[:-2] + bytes(64),
    "adobe.jpg": JPEG[:2] + b"\xff\xee\0\x0eAdobe\0d\0\0\0\0\x09" + JPEG[TABLES:],
    "endless_progressive.jpg": PROGRESSIVE[:-2],
    "endless_cmyk.jpg": CMYK[:-2],
}
ARITHMETIC = encoded(Image.new("L", (64, 64), 9), "JPEG").replace(b"\xff\xc0", b"\xff\xc9")  # any bytes are its pixels
ROWS = zlib.compress(b"".join(bytes([0, *range(row, row + 64)]) for row in range(64)), 0)

# What is left out: content and reason.  Where the content is a function, it makes the file at a path.
LEFT_OUT = {
    "empty.png": (b"", "empty file"),
    "half.jpg": (JPEG[: len(JPEG) // 2], "damaged: Corrupt JPEG data: premature end"),
    "scans.jpg": (PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")], "damaged: Premature end of JPEG file"),
    "no_marker.jpg": (b"\0\0".join(PROGRESSIVE.rsplit(b"\xff\xda", 1)), "damaged: "),  # of the last scan
    "no_table.jpg": (b"\0\0".join(JPEG.split(b"\xff\xc4", 1)), "damaged: "),
    "arithmetic.jpg": (ARITHMETIC[:-30], "damaged: Premature end of JPEG file"),
    "half.png": (PNG[: len(PNG) // 2], "truncated"),
    "half.webp": (encoded(photo(), "WEBP")[:500], "damaged: "),
    "page.jpg": (b"<html>404</html>", "not a PNG, JPEG, WebP or AVIF image"),
    "checksum.png": (flipped_bit(PNG, len(PNG) - 30), "wrong checksum of IDAT"),
    "rows.png": (png_header(64, 64, ROWS[:900] + ROWS[880:]), "damaged: "),
    "short.png": (png_header(64, 64, zlib.compress(bytes(65 * 40))), "damaged: rows of pixels are missing"),
    "short_passes.png": (png_header(64, 64, zlib.compress(bytes(4215)), 1), "damaged: rows of pixels are missing"),
    "flipped.jpg": (silently_broken(JPEG), "damaged: "),
    "nowhere.png": (lambda path: path.symlink_to(path.parent / "nothing.png"), "a link that leads nowhere"),
    "passwd.png": (lambda path: path.symlink_to("/etc/passwd"), "a link that leads out of the source folder"),
    "pipe.png": (os.mkfifo, "not a regular file"),
    "bomb100.png": (png_header(10_000, 10_000), "more than 64 megapixels: 10000x10000"),
    "bomb4000.png": (png_header(2**31 - 1, 2**31 - 1), "more than 64 megapixels"),
    "bomb36.png": (png_header(6_000, 6_000, zlib.compress(bytes(36_006_000))), "a decompression bomb: 6000x6000"),
    "bomb64.png": (png_header(8_000, 8_000, bytes(639_942)), "a decompression bomb: 8000x8000 pixels in 639,999 bytes"),
    "no_bomb.png": (png_header(8_000, 8_000, bytes(639_943)), "damaged: "),
    "no_size.png": (png_header(0, 0), "not a PNG, JPEG, WebP or AVIF image, or its header is damaged"),
    "grey.jpg": (ODD["jfif2.jpg"][: len(JPEG) // 2] + b"\xff\xd9", "damaged: "),
    "zero.jpg": (JPEG[: len(JPEG) // 2] + bytes(9000), "damaged: "),
    "cmyk_half.jpg": (CMYK[: len(CMYK) // 2] + b"\xff\xd9", "damaged: "),
    "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "phone.jpg": (b"\0\0\0\x18ftypheic" + bytes(99), "but HEIC"),
    "raf.jpg": (b"FUJIFILMCCD-RAW 0201" + bytes(99), "a camera's raw file: convert it"),
    "annex.jpg": (b"../.git/annex/objects/a1/B2/SHA256E-s1--2.jpg", "git annex get"),
    "animated.gif": (make_animation("GIF"), "not a PNG, JPEG, WebP or AVIF image, but GIF: convert it"),
    "animated.webp": (make_animation("WEBP"), "animated"),
    "animated.png": (make_animation("PNG"), "animated"),
    "one.png": (encoded(photo(side=1), "PNG"), "smaller than 32x32"),
    "medical.jpg": (JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "12 bits: convert it"),
}

# What is used, and noted.
NOTED = {
    "linear.png": (encoded(photo(), "PNG", pnginfo=LINEAR), "a gamma other than sRGB's, ignored"),
    **{name: (content, "a faulty JPEG file with intact pixels") for name, content in ODD.items()},
    "comment.png": (flipped_bit(COMMENTED, COMMENTED.index(b"Comment") + 9), "a faulty PNG file with intact pixels"),
    "cmyk.jpg": (CMYK, "CMYK, converted to RGB"),
    "grey16.png": (encoded(Image.fromarray(np.full((64, 64), 999, np.uint16)), "PNG"), "16 bits, scaled to 8"),
    "rgba.png": (encoded(photo(4).convert("RGBA"), "PNG"), "transparency"),
    "palette.png": (encoded(photo(5).convert("P"), "PNG"), "a palette, converted"),
    "turned.jpg": (encoded(photo(6), "JPEG", exif=EXIF), "turned upright as its EXIF data says"),
    "really_png.jpg": (encoded(photo(7), "PNG"), "the extension does not fit the format, PNG"),
    "avif.jpg": (encoded(photo(9), "AVIF"), "the extension does not fit the format, AVIF"),
    "wide.png": (encoded(photo(8).crop((0, 0, 64, 40)), "PNG"), "not square"),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A hundred good photographs, one file of every kind that is noted, and one of every kind that is left out."""
    folder = tmp_path_factory.mktemp("all") / "photos"
    folder.mkdir()
    for number in range(100, 200):
        photo(number).save(folder / f"{number}.png")
    for name, (content, _) in (LEFT_OUT | NOTED).items():
        content(folder / name) if callable(content) else (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def prepared(photos):
    destination = photos.parent / "set"
    pyramid = prepare(photos, destination, max_resolution=32)
    return pyramid, json.loads((destination / "report.json").read_text())


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_kind_of_bad_file_is_left_out_with_its_reason(prepared, name):
    (reason,) = (reason for reason, names in prepared[1]["left_out"].items() if name in names)
    assert LEFT_OUT[name][1] in reason


@pytest.mark.parametrize("name", NOTED)
def test_each_kind_of_odd_file_is_used_and_noted(prepared, name):
    assert name in prepared[1]["noted"][NOTED[name][1]]


def test_nothing_else_is_left_out_or_noted(prepared):
    pyramid, report = prepared
    assert {name for names in report["left_out"].values() for name in names} == set(LEFT_OUT)
    assert pyramid.images == 100 + len(NOTED)
    assert {name for names in report["noted"].values() for name in names} == set(NOTED)


MEMORY = """
import resource, sys
from pathlib import Path
from pggan.data.data_sets import open_source
from pggan.data.prepare import Options, prepare

def largest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

good, bombs = map(open_source, sys.argv[1:3])
prepare(good, Path(sys.argv[3], "good"), Options(), 1)
before = largest()
try:
    prepare(bombs, Path(sys.argv[3], "bombs"), Options(), 1)
except Exception as error:
    print(str(error).splitlines()[0])
print(largest() - before)
"""


@pytest.mark.slow
def test_bombs_take_little_memory(tmp_path):
    good, bombs = tmp_path / "good", tmp_path / "bombs"
    good.mkdir()
    bombs.mkdir()
    photo().save(good / "good.png")
    for name in ("bomb100.png", "bomb4000.png", "bomb36.png"):
        (bombs / name).write_bytes(LEFT_OUT[name][0])
    (bombs / "flat.gif").write_bytes(b"GIF89a" + struct.pack("<HHBBB", 16_000, 16_000, 0, 0, 0) + bytes(100))
    Image.new("L", (16_000, 4_100)).save(bombs / "flat.webp", quality=0, method=0)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", MEMORY, str(good), str(bombs), str(tmp_path / "sets")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *_, found, megabytes = done.stdout.splitlines()
    assert found == "5 of 5 images cannot be used:"
    assert int(megabytes) < 64
