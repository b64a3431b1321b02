"""ONNX Runtime Web, which draws in browsers: two files of one pinned release, from a given place or from npm."""

import shutil
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

from pggan.core.environment import cache_folder
from pggan.core.errors import UserError

PACKAGE = "onnxruntime-web@1.30.0"
ARCHIVE = "onnxruntime-web-1.30.0.tgz"
ARCHIVE_MB = 32
# Files of dist/ and their SHA-256: the JavaScript for WebAssembly alone, and the WebAssembly that it loads.
FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
MAX_BYTES = 2**26  # of one file; the larger one has 14 MB
WAIT_SECONDS = 900  # for a slow line


def read_runtime(given: str | None) -> dict[str, bytes]:
    """The content of each of FILES, from a folder or a .tgz of the package; where none is given, npm fetches it once.

    Raises UserError unless the files are those of the release.
    """
    place = Path(given) if given is not None else _fetched()
    try:
        found = _of_folder(place) if place.is_dir() else _of_archive(place)
    except (OSError, tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise UserError(f"{place} has no ONNX Runtime Web: {error}", _remedy()) from error
    for name, content in found.items():
        if sha256(content).hexdigest() != FILES[name]:
            raise UserError(f"{name} in {place} is not that of {PACKAGE}.", _remedy())
    return found


def _remedy() -> str:
    return f"Get it with `npm pack {PACKAGE}`, and give runtime={ARCHIVE}."


def _of_folder(folder: Path) -> dict[str, bytes]:
    """The files from the package, or its dist/."""
    inner = folder / "dist"
    files = {name: (inner if inner.is_dir() else folder) / name for name in FILES}
    for path in files.values():
        _limited(path.stat().st_size)
    return {name: path.read_bytes() for name, path in files.items()}


def _of_archive(path: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(path) as archive:  # nothing is unpacked to the disk
        for name in FILES:
            member = archive.getmember(f"package/dist/{name}")
            file = archive.extractfile(member)
            if file is None:
                raise ValueError(f"{name} is not a plain file")
            found[name] = file.read(_limited(member.size))
    return found


def _limited(size: int) -> int:
    if not 0 < size <= MAX_BYTES:
        raise ValueError(f"a file has {size:,} bytes")
    return size


def _fetched() -> Path:
    """The archive in ~/.cache/pggan, or below XDG_CACHE_HOME, where npm puts it once."""
    folder = cache_folder()
    if (folder / ARCHIVE).is_file():
        return folder / ARCHIVE
    if shutil.which("npm") is None:
        raise UserError(
            "format=web needs ONNX Runtime Web, and there is no npm to fetch it with.",
            f"On a machine with npm: {_remedy()}",
        )
    print(f"Fetching {PACKAGE} with npm ({ARCHIVE_MB} MB), to be kept in {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    words = ["npm", "pack", PACKAGE, "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    try:
        subprocess.run(  # noqa: S603 - fixed words and a folder
            words, cwd=folder, check=True, capture_output=True, text=True, timeout=WAIT_SECONDS
        )
    except (subprocess.SubprocessError, OSError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        raise UserError(f"npm could not fetch {PACKAGE}: {reason}", f"Try again, or elsewhere: {_remedy()}") from error
    return folder / ARCHIVE
