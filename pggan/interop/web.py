"""Writes a static web page that runs a generator in the visitor's browser, with ONNX Runtime Web."""

import os
import subprocess
import tarfile
import zlib
from hashlib import sha256
from pathlib import Path

from pggan.config.commands import ExportConfig
from pggan.core.atomic_io import atomic_directory, atomic_write
from pggan.core.errors import UserError
from pggan.interop.onnx_graph import build
from pggan.sampling.explore import page_files, to_file
from pggan.sampling.marks import mark_line
from pggan.sampling.trained_generator import TrainedGenerator

PACKAGE = "onnxruntime-web@1.30.0"
ARCHIVE = "onnxruntime-web-1.30.0.tgz"
ARCHIVE_MB = 33
# SHA-256 digests of the files of ONNX Runtime Web that the page needs
FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
SEEDS = 1000  # The page contains the latents of this many seeds.
REMEDY = f"On a machine with npm, run `npm pack {PACKAGE}`, which makes {ARCHIVE}. Then give runtime={ARCHIVE}."
WAIT_SECONDS = 900  # long enough for npm's download over a slow connection


def write_web(generator: TrainedGenerator, config: ExportConfig) -> float:
    """Write a web page for `generator` (on the CPU); returns the largest pixel difference from PyTorch's images.

    Raises UserError if the file of directions= or runtime= is unusable, and ArithmeticError if pixels differ too much.
    """
    about = {"renderer": "browser", "seeds": SEEDS, "films": []}
    mark = mark_line(config.marks, config.run, "pggan export format=web")
    files = page_files(generator, config.run, config.directions, about, mark) | read_runtime(config.runtime)
    files["seeds.bin"] = to_file(generator.latents(range(SEEDS)))
    files["generator.onnx"], difference = build(generator.loaded, for_page=True)
    with atomic_directory(Path(config.out)) as temporary:
        for file, content in files.items():
            with atomic_write(temporary / file) as each:  # so that an error, such as a full disk, names the file
                each.write_bytes(content)
    return difference


def read_runtime(given: str | None) -> dict[str, bytes]:
    """Read FILES, as {name: bytes}, from ONNX Runtime Web's .tgz `given` (None: from npm); may raise UserError."""
    path, found = Path(given) if given is not None else fetched(), dict[str, bytes]()
    try:
        with tarfile.open(path) as archive:
            for name, digest in FILES.items():
                file = archive.extractfile(f"package/dist/{name}")
                found[name] = b"" if file is None else file.read()
                if sha256(found[name]).hexdigest() != digest:
                    raise ValueError(f"{name} does not belong to {PACKAGE}")
    except (OSError, tarfile.TarError, zlib.error, KeyError, EOFError, ValueError) as error:
        if given is None:  # remove a bad download, so that the next call downloads again
            path.unlink(missing_ok=True)
        raise UserError(f"{path} is not a usable archive of ONNX Runtime Web: {error}.", REMEDY) from error
    return found


def cache_folder() -> Path:
    """Return the folder for downloads: `pggan` in $XDG_CACHE_HOME or, without this variable, in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pggan").expanduser()


def fetched() -> Path:
    """Return the path of ONNX Runtime Web's .tgz, which npm downloads at first use; raises UserError if npm fails."""
    folder = cache_folder()
    if not (folder / ARCHIVE).is_file():
        print(f"Downloading {PACKAGE} with npm ({ARCHIVE_MB} MB) to {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", PACKAGE, "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
        try:
            subprocess.run(words, cwd=folder, check=True, timeout=WAIT_SECONDS)  # noqa: S603 - fixed words and a folder
        except (subprocess.SubprocessError, OSError) as error:
            raise UserError(f"npm could not fetch {PACKAGE}: {error}.", REMEDY) from error
    return folder / ARCHIVE
