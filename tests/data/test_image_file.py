"""One file to one square of bytes: every mode and crop against its definition."""

import struct
import zlib
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from pggan.data import image_file
from pggan.data.image_file import BadImage, ImageFile


def load_image(path, resolution, channels, crop):
    return image_file.load_image(ImageFile(path, partial(path.open, "rb")), resolution, channels, crop)[0]


def read_header(path):
    return image_file.read_header(ImageFile(path, partial(path.open, "rb")))


def noise(height, width, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def save(path, pixels, mode=None, **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


def blocks_mean(pixels, resolution):
    """The definition: floor(mean of each block + 1/2)."""
    height, width, channels = pixels.shape
    blocks = pixels.reshape(resolution, height // resolution, resolution, width // resolution, channels)
    return np.floor(blocks.astype(float).mean(axis=(1, 3)) + 0.5).astype(np.uint8)


# ---- geometry


def test_where_an_odd_number_of_pixels_is_left_out_or_added_one_fewer_is_at_the_top_and_left(tmp_path):
    pixels = noise(8, 13)
    for turn in (lambda image: image, lambda image: image.swapaxes(0, 1)):
        path = save(tmp_path / "a.png", turn(pixels))
        np.testing.assert_array_equal(load_image(path, 8, 3, "center"), turn(pixels[:, 2:10]))
        padded = np.pad(pixels, ((2, 3), (0, 0), (0, 0)), constant_values=255)
        np.testing.assert_array_equal(load_image(path, 13, 3, "pad"), turn(padded))


CROPPED = {
    "center": lambda wide: wide[:, 8:24],
    "resize": lambda wide: wide,
    "pad": lambda wide: np.pad(wide, ((8, 8), (0, 0), (0, 0)), constant_values=255),
}


@pytest.mark.parametrize("crop", CROPPED)
def test_each_crop_makes_wide_and_tall_images_square_by_its_rule(tmp_path, crop):
    pixels = noise(16, 32)
    expected = blocks_mean(CROPPED[crop](pixels), 8)
    wide = load_image(save(tmp_path / "wide.png", pixels), 8, 3, crop)
    np.testing.assert_array_equal(wide, expected)
    tall = load_image(save(tmp_path / "tall.png", pixels.swapaxes(0, 1).copy()), 8, 3, crop)
    np.testing.assert_array_equal(tall, expected.swapaxes(0, 1))


def test_a_large_white_panorama_stays_white_and_a_ribbon_is_refused(tmp_path):
    white = save(tmp_path / "white.png", np.full((4, 12_000), 255, np.uint8))
    assert (load_image(white, 4, 1, "pad") == 255).all()
    ribbon = save(tmp_path / "ribbon.png", np.full((4, 17_000, 3), 255, np.uint8))
    with pytest.raises(BadImage, match="17000x17000"):
        load_image(ribbon, 4, 3, "pad")


def test_another_ratio_uses_the_lanczos_filter(tmp_path):
    pixels = noise(20, 20)
    expected = Image.fromarray(pixels).resize((8, 8), Image.Resampling.LANCZOS)
    loaded = load_image(save(tmp_path / "a.png", pixels), 8, 3, "center")
    np.testing.assert_array_equal(loaded, np.asarray(expected))


UPRIGHT = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image.swapaxes(0, 1)[::-1, ::-1],
    8: lambda image: image.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize(
    ("extension", "orientation"), [*(("jpg", turn) for turn in range(1, 9)), ("png", 6), ("webp", 8)]
)
def test_exif_orientation_is_applied_to_pixels_and_header(tmp_path, orientation, extension):
    pixels, exif = noise(8, 16), Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / f"a.{extension}", pixels, exif=exif, lossless=True)
    plain = save(tmp_path / f"plain.{extension}", pixels, lossless=True)
    upright = UPRIGHT[orientation](np.asarray(Image.open(plain)))
    assert read_header(path)[:2] == (16, 8)
    for channels in (1, 3, 4):  # JPEGs are decoded as they are, or converted
        expected = Image.fromarray(upright).convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
        expected = np.asarray(expected).reshape(*upright.shape[:2], channels)
        np.testing.assert_array_equal(load_image(path, 8, channels, "resize"), blocks_mean(expected, 8))


OTHER = "<!--tiff:Orientation='3'--><a:Orientation xmlns:a='http://ns.adobe.com/tiff/1.0/'> &#54; </a:Orientation>"
XMP = [b'<d tiff:Orientation="6"/>', OTHER.encode("utf-16")]


@pytest.mark.parametrize("xmp", XMP)
@pytest.mark.parametrize(("name", "mode"), [("a.jpg", "RGB"), ("a.jpg", "L"), ("a.jpg", "CMYK"), ("a.webp", "RGB")])
def test_xmp_orientation_is_applied(tmp_path, name, mode, xmp):
    pixels = noise(8, 16)
    path = save(tmp_path / name, pixels, mode, xmp=xmp, lossless=True, quality=100)
    plain = save(tmp_path / f"plain_{name}", pixels, mode, lossless=True, quality=100)
    upright = UPRIGHT[6](np.asarray(Image.open(plain).convert("RGB")))
    np.testing.assert_array_equal(load_image(path, 8, 3, "resize"), blocks_mean(upright, 8))


@pytest.mark.parametrize("name", ["exif", "APP1", "xmp"])
def test_orientation_in_the_text_of_a_png_is_applied(tmp_path, name):
    text, pixels, data = PngInfo(), noise(8, 16), (XMP[0] if name == "xmp" else tag(3, b"\6\0")).hex()
    text.add_text(f"Raw profile type {name}", f"\nexif\n{len(data) // 2:8}\n{data}\n")  # as ImageMagick writes it
    path = save(tmp_path / "a.png", pixels, pnginfo=text)
    np.testing.assert_array_equal(load_image(path, 8, 3, "resize"), blocks_mean(UPRIGHT[6](pixels), 8))


def tag(kind, value):
    """EXIF data with an orientation `value` of a TIFF type."""
    entry = b"II*\0\x08\0\0\0\1\0\x12\1" + struct.pack("<HI", kind, max(1, len(value) // 4)) + value.ljust(4, b"\0")
    return b"Exif\0\0" + entry + bytes(4)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0no tiff here", tag(2, b"6\0"), tag(1, b"\6"), tag(3, b"\0"), tag(3, b"\x09")]
)
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_an_orientation_that_can_not_be_read_turns_nothing_and_is_noted(tmp_path, name, exif):
    pixels = noise(8, 8)
    path = save(tmp_path / name, pixels, exif=exif, lossless=True)
    decoded, notes = image_file.decode(ImageFile(path, partial(path.open, "rb")), 3)
    assert notes == ["an EXIF orientation that can't be read"]
    np.testing.assert_array_equal(decoded, np.asarray(Image.open(path)))


# ---- colours


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
SWAPPED = SRGB.replace(b"rXYZ", b"....").replace(b"bXYZ", b"rXYZ").replace(b"....", b"bXYZ")  # red is blue
PROFILED = {  # mode, profile, and the colour that a red pixel becomes
    "red is blue": ("RGB", SWAPPED, [0, 0, 255]),
    "red is blue, with transparency": ("RGBA", SWAPPED, [0, 0, 255]),
    "red is blue, with a palette": ("P", SWAPPED, [0, 0, 255]),
    "sRGB": ("RGB", SRGB, [255, 0, 0]),
    "cut short": ("RGB", SWAPPED[:200], [255, 0, 0]),
    "of colour, in a grey file": ("L", SWAPPED, [76, 76, 76]),
}


@pytest.mark.parametrize("kind", ["png", "webp", "avif"])
@pytest.mark.parametrize(("mode", "profile", "colour"), PROFILED.values(), ids=PROFILED)
def test_a_colour_profile_is_converted_to_srgb(tmp_path, mode, profile, colour, kind):
    path = save(
        tmp_path / f"a.{kind}", Image.new("RGB", (8, 8), "red"), mode, icc_profile=profile, lossless=True, quality=100
    )
    np.testing.assert_allclose(load_image(path, 8, 3, "center")[0, 0], colour, atol=2 * (kind == "avif"))


def test_no_flipped_bit_of_a_png_changes_pixels(tmp_path):
    path = save(tmp_path / "a.png", Image.linear_gradient("L").resize((16, 16)))
    content, expected = path.read_bytes(), load_image(path, 16, 1, "center")
    for place in range(0, 8 * len(content), 5):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(BadImage):
            np.testing.assert_array_equal(load_image(path, 16, 1, "center"), expected)


# ---- modes


def png(kind, bits, samples, *key):
    """A PNG image of a colour type, with one transparent colour; Pillow writes no such files."""
    rows = samples.astype(">u2").view(np.uint8) if bits == 16 else samples[:, ::2] * 16 + samples[:, 1::2]
    form = struct.pack(">IIBBBBB", 8, 8, bits, kind, 0, 0, 0)
    content = zlib.compress(np.pad(rows.astype(np.uint8), ((0, 0), (1, 0))).tobytes())
    chunks = {b"IHDR": form, b"tRNS": struct.pack(f">{len(key)}H", *key), b"IDAT": content, b"IEND": b""}
    parts = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def palette():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([9, 9, 9, 10, 20, 30])
    image.putpixel((7, 7), 0)
    return image


MODES = {  # the image, how it is saved, and the first pixel by the number of channels
    "a fifth of a colour": (
        Image.new("RGBA", (8, 8), (200, 100, 0, 51)),
        {},
        {3: [244, 224, 204], 4: [200, 100, 0, 51]},
    ),
    "transparent grey": (Image.new("LA", (8, 8), (100, 0)), {}, {1: [255], 3: [255] * 3, 4: [100, 100, 100, 0]}),
    "a palette": (palette(), {}, {3: [10, 20, 30]}),
    "a transparent entry": (palette(), {"transparency": 1}, {3: [255] * 3}),
    "a transparent colour": (Image.new("RGB", (8, 8), (1, 2, 3)), {"transparency": (1, 2, 3)}, {3: [255] * 3}),
    "a transparent entry of 16": (png(0, 4, np.full((8, 8), 3), 3), {}, {1: [255], 3: [255] * 3, 4: [51, 51, 51, 0]}),
    "16 bits, transparent": (png(0, 16, np.full((8, 8), 257), 257), {}, {1: [255], 4: [1, 1, 1, 0]}),
    "16 bits a channel, transparent": (png(2, 16, np.full((8, 24), 999), 999, 999, 999), {}, {3: [255] * 3}),
    "transparent, with a profile": (Image.new("RGBA", (8, 8), "#f000"), {"icc_profile": SWAPPED}, {3: [255] * 3}),
    "one bit": (Image.new("1", (8, 8), 1), {}, {1: [255], 3: [255] * 3}),
    "grey": (Image.new("L", (8, 8), 7), {}, {1: [7], 3: [7] * 3, 4: [7, 7, 7, 255]}),
    "red": (Image.new("RGB", (8, 8), "red"), {}, {1: [76], 3: [255, 0, 0]}),  # 0.299 * 255
}


@pytest.mark.parametrize(("image", "options", "expected"), MODES.values(), ids=MODES)
def test_every_mode_is_converted_and_transparency_laid_on_white(tmp_path, image, options, expected):
    """Images that can be grey without loss are known by their headers."""
    path = tmp_path / "a.png"
    path.write_bytes(image) if isinstance(image, bytes) else save(path, image, **options)
    assert read_header(path).is_grey == (1 in expected and expected[1] != [76])
    for channels, pixel in expected.items():
        assert load_image(path, 8, channels, "center")[0, 0].tolist() == pixel


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    values = np.array([0, 128, 129, 257, 32768, 65406, 65407, 65535], np.uint16)
    path = save(tmp_path / "a.png", np.tile(values, (8, 1)))
    expected = [round(int(value) * 255 / 65535) for value in values]
    assert load_image(path, 8, 1, "center")[0, :, 0].tolist() == expected
    assert load_image(path, 8, 3, "center")[0, :, 2].tolist() == expected


def test_cmyk_becomes_rgb(tmp_path):
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    loaded = load_image(save(tmp_path / "a.jpg", cyan, quality=100), 8, 3, "center")
    np.testing.assert_allclose(loaded[0, 0], [0, 255, 255], atol=3)
    np.testing.assert_allclose(load_image(tmp_path / "a.jpg", 8, 4, "center")[0, 0], [0, 255, 255, 255], atol=3)


@pytest.mark.parametrize(("mode", "number"), [("RGB", 2), ("CMYK", 1), ("CMYK", 3)])
def test_colours_of_a_number_that_adobe_never_used_are_as_other_programs_show_them(tmp_path, mode, number):
    path = save(tmp_path / "a.jpg", Image.new("RGB", (8, 8), "orange"), mode)
    content = path.read_bytes()
    adobe = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0" + bytes([number])
    path.write_bytes(content[:2] + adobe + content[content.index(b"\xff\xdb") :])
    np.testing.assert_allclose(load_image(path, 8, 3, "center"), Image.open(path).convert("RGB"), atol=2)


def test_a_jpeg_of_a_sampling_that_only_pillow_knows_is_not_called_faulty(tmp_path):
    path = save(tmp_path / "a.jpg", Image.new("RGB", (64, 64)))
    content = path.read_bytes().replace(b"\1\x22\0\2\x11\1\3\x11\1", b"\1\x11\0\2\x21\1\3\x11\1")
    header = content.replace(b"\1\0\2\x11\3\x11", b"\1\0\2\0\3\0").partition(b"\0\x3f\0")  # one table for all
    path.write_bytes(b"".join(header[:2]) + b"\x28\xa2\x8a" * 32 + b"\xff\xd9")  # blocks without differences
    pixels, notes = image_file.decode(ImageFile(path, partial(path.open, "rb")), 3)
    assert (np.unique(pixels).tolist(), notes) == ([128], [])


def test_the_first_frame_of_a_jpeg_with_a_second_view_is_the_image(tmp_path):
    first, second = (Image.new("RGB", (16, 16), colour) for colour in ("red", "blue"))
    path = save(tmp_path / "a.jpg", first, format="MPO", save_all=True, append_images=[second])
    assert load_image(path, 8, 3, "center")[0, 0, 0] > 250
