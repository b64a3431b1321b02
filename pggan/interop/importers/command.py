"""`pggan import`: a generator of another program as a generator file of this one."""

from pathlib import Path
from typing import Any

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.config import ImportConfig
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.interop.importers.gan_zoo import from_gan_zoo, is_gan_zoo
from pggan.interop.importers.official import from_official, is_official
from pggan.interop.importers.pro_gan_pth import from_pro_gan_pth, is_pro_gan_pth
from pggan.interop.importers.restricted_pickle import read_pickle
from pggan.interop.importers.torch_file import read_torch_file
from pggan.networks.networks import count_parameters
from pggan.sampling.images import check_output

IMPORTERS = {
    "the official implementation": (is_official, from_official),
    "pytorch_GAN_zoo": (is_gan_zoo, from_gan_zoo),
    "pro-gan-pth": (is_pro_gan_pth, from_pro_gan_pth),
}


def run(config: ImportConfig) -> int:
    """Import as `config` says; returns the exit code."""
    source = Path(config.source)
    if not source.is_file():
        raise UserError(f"source={source} is no file.", "Name a .pkl of the official networks, or a file of PyTorch.")
    out = check_output(config.out, (".safetensors",))
    program, generator = read_foreign(source)
    save_generator(generator, out)
    size, parameters = generator.resolution, count_parameters(generator.network)
    print(f"{out}: {size}x{size}, alpha {generator.alpha:g}, {parameters:,} parameters, of {program}")
    print(next_command("sample", "seeds=0-63", run=out))
    return 0


def read_foreign(path: Path) -> tuple[str, LoadedGenerator]:
    """The program that trained the generator in a file, and the generator; raises UserError for any other file."""
    try:
        content = _content(path)
        for program, (matches, convert) in IMPORTERS.items():
            if matches(content):
                return program, convert(content)
        raise ValueError("it has the names of none of these")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        remedy = f"Give a generator of {', '.join(IMPORTERS)}."
        raise UserError(f"{path} can't be imported: {reason}.", remedy) from error


def _content(path: Path) -> Any:
    """The content of a pickle, or of a file of PyTorch."""
    try:
        return read_torch_file(path)
    except ValueError as of_torch:
        with path.open("rb") as file:
            try:
                return read_pickle(file)
            except ValueError as of_pickle:
                raise ValueError(f"{of_torch}; {of_pickle}") from of_pickle
