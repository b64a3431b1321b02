"""Hostile and damaged files: nothing that they name is called or imported."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from pggan.interop.importers.restricted_pickle import ALLOWED, Array, StorageType, read_pickle
from pggan.interop.importers.torch_file import read_torch_file


class Calls:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


HOSTILE = {
    "a shell": lambda place: Calls(os.system, f"touch {place}"),
    "Python": lambda place: Calls(exec, f"open({str(place)!r}, 'w')"),
    "a file": lambda place: Calls(open, str(place), "w"),
    "inside": lambda place: [{"a": (1, Calls(os.mkdir, str(place)))}],
    "an import": lambda place: Calls(__import__, "this"),
    "an attribute": lambda place: Calls(getattr, dict, "clear"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("protocol", range(6))
def test_calls_are_refused_in_every_protocol(tmp_path, kind, protocol):
    place = tmp_path / "executed"
    content = pickle.dumps(HOSTILE[kind](place), protocol)
    with pytest.raises(ValueError, match="not on the list"):
        read_pickle(io.BytesIO(content))
    assert not place.exists()


@pytest.mark.parametrize("archive", [True, False])
def test_calls_in_files_of_torch_are_refused(tmp_path, archive):
    place, path = tmp_path / "executed", tmp_path / "a.pth"
    torch.save({"a": torch.zeros(2), "b": Calls(os.mkdir, str(place))}, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match="not on the list"):
        read_torch_file(path)
    assert not place.exists()


def test_names_inside_of_harmless_ones_are_refused():
    """Protocol 4 can name attributes of attributes: here, of a class that is on the list."""
    content = b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93."
    with pytest.raises(ValueError, match="not on the list"):
        read_pickle(io.BytesIO(content))


def test_no_name_on_the_list_stands_for_something_of_another_program():
    for value in ALLOWED.values():
        ours = (
            value is OrderedDict
            or isinstance(value, StorageType)
            or value.__module__ == "pggan.interop.importers.restricted_pickle"
        )
        assert ours, value


@pytest.mark.parametrize("protocol", [2, 3, 4])  # what Python 3 wrote by default, or was told for Python 2
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.dtype(">f4"), np.int64])
def test_arrays_and_numbers_are_read_as_they_are(dtype, protocol):
    array = np.arange(12, dtype=dtype).reshape(3, 4)
    for given in (array, np.asfortranarray(array), array[:, :0]):
        found = read_pickle(io.BytesIO(pickle.dumps(given, protocol)))
        assert isinstance(found, Array)
        assert np.array_equal(found.value, given)
    assert read_pickle(io.BytesIO(pickle.dumps(np.float32(1.5), protocol))) == 1.5
    assert read_pickle(io.BytesIO(pickle.dumps({"a": [1, "b", None, 2.5]}, protocol))) == {"a": [1, "b", None, 2.5]}


def test_arrays_of_objects_are_refused():
    with pytest.raises(ValueError, match="array of type"):
        read_pickle(io.BytesIO(pickle.dumps(np.array([{}], dtype=object), 2)))


@pytest.mark.parametrize("archive", [True, False])
def test_tensors_of_all_layouts_are_read(tmp_path, archive):
    base = torch.arange(24.0).reshape(2, 3, 4)
    given = {"whole": base, "view": base[1, :, 1:3], "turned": base.permute(2, 0, 1), "number": torch.tensor(3.0)}
    given |= {"half": base.half(), "parameter": torch.nn.Parameter(base), "count": torch.tensor([1, 2])}
    torch.save(given, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
    found = read_torch_file(tmp_path / "a.pth")
    for name, tensor in given.items():
        assert np.array_equal(found[name].value(), tensor.detach().numpy()), name


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    """A file of a few bytes must not ask for terabytes, nor for memory beside its own."""
    torch.save({"a": torch.zeros(4).expand(1000, 4)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="outside its storage"):
        read_torch_file(tmp_path / "a.pth")["a"].value()


@pytest.mark.parametrize("archive", [True, False])
def test_a_file_that_is_cut_short_is_refused(tmp_path, archive):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth", _use_new_zipfile_serialization=archive)
    content = (tmp_path / "a.pth").read_bytes()
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "b.pth").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"."):
            read_torch_file(tmp_path / "b.pth")


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as given,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as written,
    ):
        for name in given.namelist():
            written.writestr(name, given.read(name))
    with pytest.raises(ValueError, match="compressed"):
        read_torch_file(tmp_path / "b.pth")
