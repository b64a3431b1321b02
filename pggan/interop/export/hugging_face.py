"""A generator as a folder in the form of Hugging Face, on the disk or on the Hub."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from pggan.checkpoints.generator_file import GENERATOR_FILE, describe_generator, save_generator
from pggan.core.atomic_io import atomic_directory
from pggan.core.errors import UserError
from pggan.core.version import __version__
from pggan.interop.export.model_card import SAMPLES, model_card
from pggan.sampling.images import contact_sheet, save_png
from pggan.sampling.trained_generator import TrainedGenerator, load

SEEDS = "0-15"  # of the samples
COLUMNS = 4


def require_empty(folder: Path, key: str) -> None:
    """Raise UserError unless `folder`, given as `key`, is new or empty: what is there is never replaced."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{key}={folder} exists.", "Name a new or empty directory, or remove it first.")


def write_folder(generator: TrainedGenerator, folder: Path, name: str, evaluation: dict[str, Any] | None) -> None:
    """Write weights, configuration, samples and model card of a generator called `name`; all files or none.

    Args: evaluation: of `read_evaluation`.
    """
    require_empty(folder, "out")
    samples = contact_sheet(generator.render(generator.latents(SEEDS)), COLUMNS, generator.resolutions[-1])
    with atomic_directory(folder) as temporary:
        save_generator(generator.loaded, temporary / GENERATOR_FILE)
        about = {"library_name": "pggan", "pggan_version": __version__, **describe_generator(generator.loaded)}
        (temporary / "config.json").write_text(json.dumps(about, indent=1) + "\n")
        (temporary / "README.md").write_text(model_card(generator, name, evaluation), encoding="utf-8")
        save_png(samples, temporary / SAMPLES)


def from_pretrained(name: str | Path, *, revision: str | None = None, device: str = "auto") -> TrainedGenerator:
    """The generator of a folder, or of the repository USER/NAME of the Hugging Face Hub.

    Args: revision: a branch, tag or commit of the repository; device: as of `pggan.load`.
    Raises UserError when there is no such folder or repository, or no valid generator in it.
    """
    if Path(name).is_dir():
        return load(str(name), device)
    hub = _library()
    try:
        path = hub.hf_hub_download(str(name), GENERATOR_FILE, revision=revision)
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        remedy = "Give a folder that `pggan export format=hf` has written, or USER/NAME of one on the Hub."
        raise UserError(f"There is no generator at {name}: {error}", remedy) from error
    return load(path, device)


def push_to_hub(folder: Path, repository: str, *, private: bool = True) -> str:
    """Upload a folder of `write_folder` to USER/NAME, which is created where missing; returns the address.

    Raises UserError when the Hub refuses.
    """
    hub = _library()
    try:
        api = hub.HfApi()
        address = str(api.create_repo(repository, private=private, exist_ok=True))
        api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="Upload a generator of pggan")
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        remedy = f"Log in with `hf auth login`. The folder is complete: hf upload {repository} {folder}"
        raise UserError(f"push={repository} failed: {error}", remedy) from error
    return address


def _library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        remedy = 'Install it: pip install "pggan[export]". A folder on this machine needs none.'
        raise UserError("The Hugging Face Hub needs huggingface-hub.", remedy) from error
    return huggingface_hub
