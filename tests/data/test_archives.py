"""Zip and tar archives: what their folder would give, and nothing read or written outside."""

import gzip
import os
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data.data_sets import open_source
from pggan.data.image_file import load_image
from tests.data.images import EXPECTED, FILES, everything, noise, png, prepared, write_tar, write_zip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("zip", 2), ("tar", 1), ("tgz", 2), ("tar.xz", 1)])
def test_an_archive_gives_what_its_folder_gives(tmp_path, kind, workers):
    files = [(name, png(seed)) for name, seed in FILES.items()]
    archive = (write_zip if kind == "zip" else write_tar)(tmp_path / f"photos.{kind}", files)
    pyramid = prepared(archive, tmp_path / "set", workers)
    np.testing.assert_array_equal(everything(pyramid), EXPECTED)
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name, "set"]


def problems(archive):
    """Why each file of an archive must not be opened."""
    return {entry.name: entry.problem for entry in open_source(str(archive)).entries}


OUTSIDE = dict.fromkeys(["../evil.png", "a/../../evil.png", "/tmp/evil.png"], "a name that leads out of the archive")


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_names_that_lead_out_are_named_and_nothing_is_written_anywhere(tmp_path, write):
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    archive = write(inside / "photos", [(name, png(0)) for name in [*OUTSIDE, "good.png", "fine.png"]])
    assert problems(archive) == {**OUTSIDE, "good.png": None, "fine.png": None}
    before = set(tmp_path.rglob("*"))
    prepared(archive, inside / "set")
    assert all(path.is_relative_to(inside / "set") for path in set(tmp_path.rglob("*")) - before)


def test_links_and_devices_in_a_tar_are_not_followed(tmp_path):
    members = []
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        member = tarfile.TarInfo(f"{kind.decode()}.png")
        member.type, member.linkname = kind, "/etc/passwd"
        members.append((member, b""))
    found = problems(write_tar(tmp_path / "a.tar", [*members, ("good.png", png(0))]))
    assert [*found.values()] == ["a link or another special file: unpack the archive"] * 4 + [None]


def test_names_in_latin_1_are_read_and_the_last_member_of_a_name_counts(tmp_path):
    names = ["M\udce4dchen/x.png", "b/\xfc.png", "b/\xfc.png", "b/\udcfc.png"]  # the last name is in Latin-1, too
    shown = {3: ["M\xe4dchen/x.png", "b/\xfc.png"], 4: [r"M\xe4dchen/x.png", "b/\xfc.png", r"b/\xfc.png"]}
    for count, expected in shown.items():
        archive = write_tar(tmp_path / f"{count}.tgz", [(name, png(seed)) for seed, name in enumerate(names[:count])])
        entries = open_source(str(archive)).entries
        assert [entry.name for entry in entries] == expected
        np.testing.assert_array_equal(load_image(entries[1].file, 16, 3, "center")[0], noise(2))


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_an_archive_that_has_changed_is_read_anew_and_is_another_data_set(tmp_path, write):
    stamps = set()
    for seed in range(2):
        os.utime(write(tmp_path / "photos", [("x.png", png(seed))]), (seed, seed))
        (entry,) = open_source(str(tmp_path / "photos")).entries
        np.testing.assert_array_equal(load_image(entry.file, 16, 3, "center")[0], noise(seed))
        stamps.add(entry.stamp)
    assert len(stamps) == 2


def test_a_sparse_file_in_a_tar_has_its_holes(tmp_path):
    """Such a member stores only what is not zero; the bytes behind are of its neighbour."""
    whole = png(0) + bytes(2**20)
    files = tmp_path / "files"
    files.mkdir()
    with (files / "a.png").open("wb") as file:
        file.write(whole[: -(2**20)])
        file.truncate(len(whole))
    (files / "b.png").write_bytes(png(1))
    subprocess.run(["tar", "-cSf", tmp_path / "a.tar", "-C", files, "a.png", "b.png"], check=True)
    assert (tmp_path / "a.tar").stat().st_size < 2**20
    first, second = open_source(str(tmp_path / "a.tar")).entries
    assert first.file.open().read() == whole
    np.testing.assert_array_equal(load_image(first.file, 16, 3, "center")[0], noise(0))  # Pillow reads and steps back
    np.testing.assert_array_equal(load_image(second.file, 16, 3, "center")[0], noise(1))


@pytest.mark.parametrize("method", [9, 99])  # 99: encrypted by WinZip
def test_a_zip_that_can_not_be_unpacked_here_says_so(tmp_path, method):
    archive = write_zip(tmp_path / "a.zip", [("a.png", png(0)), ("b.png", png(1))])
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\1\2") + 10] = method
    archive.write_bytes(content)
    assert "Deflate64" in problems(archive)["a.png"]
    np.testing.assert_array_equal(everything(prepared(archive, tmp_path / "set")), [noise(1)])


def test_a_file_that_is_no_archive_is_named(tmp_path):
    split = bytearray(write_zip(tmp_path / "a", [("a.png", png(0))]).read_bytes())
    split[split.index(b"PK\1\2") + 34] = 1  # the part that holds a.png
    named = {gzip.compress(png(0)): "a compressed", b"Rar!\x1a\7\0" + bytes(999): "a compressed", bytes(split): "split"}
    for content, problem in {**named, b"<svg xmlns=''/>": "SVG: convert", png(0): "one image: name its folder"}.items():
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UserError, match=problem):
            problems(tmp_path / "a")


def test_a_zip_inside_a_tar_is_a_file_like_others(tmp_path):
    inside = write_zip(tmp_path / "a.zip", [("x.png", png(0))]).read_bytes()
    archive = write_tar(tmp_path / "a.tar", [("y.png", png(1)), ("a.zip", inside)])
    np.testing.assert_array_equal(everything(prepared(archive, tmp_path / "set")), [noise(1)])


def test_a_member_of_gigabytes_is_refused_by_its_header(tmp_path):
    member = tarfile.TarInfo("huge.png")
    member.size = 10**12
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(UserError, match="can't be read"):
        problems(tmp_path / "a.tar.gz")  # it is cut off, too
    archive = write_tar(tmp_path / "b.tar.gz", [("huge.png", bytes(64_000_001)), ("good.png", png(0))])
    assert problems(archive) == {"good.png": None, "huge.png": "larger than 64 MB"}


def test_a_damaged_member_is_a_bad_image_and_nothing_worse(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for seed, name in enumerate(("x.png", "y.png", "z.png")):
            archive.writestr(name, png(seed))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"y.png") + 200] ^= 255
    (tmp_path / "a.zip").write_bytes(content)
    np.testing.assert_array_equal(everything(prepared(tmp_path / "a.zip", tmp_path / "set")), [noise(0), noise(2)])


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
def test_what_is_no_archive_or_cut_off_is_refused(tmp_path, kind):
    files = [(name, png(seed)) for name, seed in FILES.items()]
    archive = (write_zip if kind == "zip" else write_tar)(tmp_path / f"a.{kind}", files)
    for content in (archive.read_bytes()[:1500], b"junk" * 300):
        archive.write_bytes(content)
        with pytest.raises(UserError, match="can't be read"):
            problems(archive)


def test_a_tar_with_a_header_that_is_damaged_or_cut_is_refused(tmp_path):
    content = write_tar(tmp_path / "a.tar", [("a.png", png(0)), ("b.png", png(1))]).read_bytes()
    cut, damaged = content[: content.index(b"b.png") + 99], content.replace(b"b.png", b"B.png")
    first, stream = gzip.compress(content.replace(b"a.png", b"A.png")), bytearray(gzip.compress(content))
    stream[20] ^= 255
    for archive in (cut, damaged, gzip.compress(cut), gzip.compress(damaged), first, stream):
        (tmp_path / "a.tar").write_bytes(archive)
        with pytest.raises(UserError, match="download a damaged archive again"):
            problems(tmp_path / "a.tar")
