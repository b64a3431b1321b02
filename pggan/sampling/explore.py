"""`pggan explore` serves a web page on which a user explores a generator; only this machine can open the page.

The source of the page is in static/.  N latents, Z latent size, R resolution, C channels.
"""

import json
import sys
import webbrowser
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import MimeTypes
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pggan.checkpoints.generator_file import GENERATOR_FILE, PREFIX
from pggan.config.commands import ExploreConfig
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.sampling.files import ANIMATED, check_output, film_zoom, save_film, writable
from pggan.sampling.images import Pixels, to_pil
from pggan.sampling.latents import load_about, load_vectors, principal_directions, save_vectors
from pggan.sampling.marks import mark_line, png_chunk
from pggan.sampling.projection import ROUNDS, STEPS, read_target, search
from pggan.sampling.trained_generator import TrainedGenerator, load

TYPES = MimeTypes()
STATIC = Path(__file__).parent / "static"
PROTECTION = {  # other sites can't embed or read our page, and our page loads nothing from other sites
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HOST, PORT = "127.0.0.1", 8765  # PORT is the default; if another program uses this port, the system chooses a free port
DIRECTIONS = 8  # number of sliders on the page, unless the user names a file of directions
DIRECTIONS_FILE = "directions.safetensors"  # this file in a run directory keeps directions that a user has named
SEEDS = 100_000  # random faces have seeds below this limit, because short seeds are easy to write down
BLOCK = 8  # a film is drawn in blocks of this many frames; between blocks, the page can draw its current face
MAX_FRAMES = 3600  # largest number of frames of a film: two minutes at 30 frames per second
MAX_BYTES = 100_000_000  # size of the largest photo that the server accepts; app.js has the same limit

Answer = tuple[int, Iterable[bytes]]  # length of a response's body in bytes, and the parts of the body


def run(config: ExploreConfig) -> int:
    """Serve the page until Ctrl-C; returns the exit code."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    mark = mark_line(config.marks, config.run, "pggan explore")
    with listen(generator, config.run, config.directions, config.port, mark) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address}\nCtrl-C ends the server.", flush=True)
        if config.open:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    print(f"\n{next_command('export', 'format=web', 'out=page', **config.generator_keys)}")
    return 0


def listen(
    generator: TrainedGenerator, run: str, directions: str | None, port: int | None, mark: str | None = None
) -> "Server":
    """Open a server at `port`; by default at PORT, or at a free port if another program uses PORT.

    Raises UserError if `port` can't be used.  `page_files` explains `run`, `directions` and `mark`.
    """
    about = {"renderer": "server", "seeds": SEEDS, "films": writable(ANIMATED)}
    files = page_files(generator, run, directions, about, mark)
    for number in (PORT, 0) if port is None else (port,):
        with suppress(OSError):
            return Server(number, generator, files, mark, directions_file(run, directions))
    raise UserError(f"The page can't be served at port={port}.", "Set another port=, or leave it out.")


def directions_file(run: str, given: str | None) -> Path | None:
    """Return the path of the file that keeps directions and their names: `given`, or a file beside the generator `run`.

    The result is None for a generator that came with the package, because no directory of the user holds it.
    """
    if given is not None or run.startswith(PREFIX):
        return None if given is None else Path(given)
    path = Path(run).parent if Path(run).name == GENERATOR_FILE else Path(run)
    path = path.parents[1] if path.parent.name == "checkpoints" else path
    return path / DIRECTIONS_FILE if path.is_dir() else path.with_name(f"{path.stem}-{DIRECTIONS_FILE}")


def page_files(
    generator: TrainedGenerator, run: str, directions: str | None, about: dict[str, Any], mark: str | None = None
) -> dict[str, bytes]:
    """Return the files of the web page, as a dictionary from file name to content.

    Args: run: gives the page its title; directions: see `directions_file`; without a file, the sliders move along the
    principal directions; about: facts for the page's script: `renderer` (server or browser), `films` (file endings) and
    `seeds` (number of seeds for random faces); mark: the text of `mark_line` for pictures that the page saves.
    Raises UserError if the directions do not fit the generator.
    """
    file, names = directions_file(run, directions), []
    if file is not None and (directions is not None or file.is_file()):
        sliders, names = load_vectors("directions", file, generator.latent_size), load_about(file).get("names", [])
    else:
        sliders = principal_directions(generator.network, DIRECTIONS, generator.settings().label)
    facts = ("latent_size", "num_classes", "resolution", "alpha", "images")
    levels = [resolution for resolution in generator.resolutions if resolution <= generator.resolution]
    model = {fact: getattr(generator, fact) for fact in facts} | {"resolutions": levels, "name": page_name(run)} | about
    return {path.name: path.read_bytes() for path in STATIC.iterdir()} | {
        "directions.bin": to_file(sliders),
        "names.json": json.dumps(names).encode(),
        "model.json": json.dumps(model).encode(),
        "mark.bin": png_chunk(mark),
    }


def page_name(run: str) -> str:
    """The title of the page: the name of the run directory, or of the directory that holds a generator file."""
    path = Path(run).absolute()
    return path.parent.name if path.suffix else path.name


def to_file(vectors: Tensor) -> bytes:
    """Encode vectors as the page reads them: float32, little-endian, one vector after the other."""
    content: bytes = vectors.detach().cpu().contiguous().numpy().astype("<f4").tobytes()
    return content


class Server(ThreadingHTTPServer):
    """An HTTP server that sends the page's `files` and draws images; raises OSError when the port is in use."""

    def __init__(
        self, port: int, generator: TrainedGenerator, files: dict[str, bytes], mark: str | None, names: Path | None
    ) -> None:
        # One thread draws all images, because each thread that calls PyTorch would start a thread pool of its own.
        # Two threads must not draw at once, because drawing stores prepared weights in the generator's network.
        self._drawing, self._closed = ThreadPoolExecutor(1, "drawing"), False
        super().__init__((HOST, port), Handler)
        self.generator, self.files, self.mark, self.names = generator, files, mark, names

    def draw(self, latents: Tensor, query: dict[str, str]) -> list[Pixels]:
        """Draw images uint8 [R, R, C] of `latents` [N, Z]; raises UserError if the generator lacks the class."""
        settings = self.generator.settings(truncation=float(query["truncation"]), label=query.get("label"))
        return self._drawing.submit(lambda: [*self.generator.stream(latents, settings)]).result()

    def film(self, latents: Tensor, query: dict[str, str]) -> bytes:
        """Return a film of `latents` [N, Z] as bytes: a frame per latent, enlarged by bicubic or nearest interpolation.

        Smaller frames are shrunk from the trained resolution, because the to-RGB layers of lower levels are no longer
        trained.  Raises UserError for an unknown resolution, file ending or number of frames per second.
        """
        kind, fps, side = query["kind"], int(query["fps"]), int(query["resolution"])
        if kind not in ANIMATED or not 1 <= fps <= 120 or side not in self.generator.resolutions:
            raise UserError(
                f"No film can have {side}x{side} pixels, {fps} frames a second and ending {kind}.", "Reload the page."
            )
        small, side = (side, side), side * film_zoom(side)
        method = Image.Resampling.BICUBIC if query["smooth"] == "1" else Image.Resampling.NEAREST

        def frames() -> Iterator[Pixels]:
            for some in torch.split(latents, BLOCK):
                for image in self.draw(some, query):
                    frame = to_pil(image).resize(small, Image.Resampling.BOX).resize((side, side), method)
                    yield np.asarray(frame).reshape(side, side, -1)

        with TemporaryDirectory(prefix="pggan-film-") as folder:
            path = check_output(f"{folder}/film{kind}", ANIMATED)
            save_film(frames(), len(latents), fps, path, self.mark)
            return path.read_bytes()

    def search(self, photo: bytes, query: dict[str, str]) -> Answer:
        """Search for the latent whose image is nearest to a photo; the answer has the best latent after each step.

        The page can draw faces between the steps.  Raises UserError if the photo is no image, or too small.
        """
        settings = self.generator.settings(label=query.get("label"))
        target = read_target(photo, settings.resolution, self.generator.network.architecture.channels)
        found, count = search(self.generator.network, target, settings, STEPS), ROUNDS + STEPS

        def latents() -> Iterator[bytes]:
            try:
                for _ in range(count):
                    yield to_file(self._drawing.submit(next, found).result())
            finally:  # the search also ends if the connection was closed
                with suppress(RuntimeError):
                    self._drawing.submit(found.close)

        return count * self.generator.latent_size * 4, latents()

    def rename(self, content: bytes) -> bytes:
        """Save the names of directions, a JSON list, to a file; returns a sentence for the user if no file can be used.

        Raises ValueError if `content` is not JSON, and OSError if the file can't be written.
        """
        about = {"names": json.loads(content)}
        self.files["names.json"] = content
        if self.names is None:
            return b"These names end with the server, because this generator is in no directory of yours."
        vectors = np.frombuffer(self.files["directions.bin"], "<f4").reshape(-1, self.generator.latent_size)
        save_vectors("directions", torch.tensor(vectors), self.names, load_about(self.names) | about)
        return b""

    def server_close(self) -> None:
        """Close the server and stop drawing: a thread that is still inside PyTorch at exit would abort the process."""
        super().server_close()
        self._closed = True
        self._drawing.shutdown(cancel_futures=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections; report all other errors, which are bugs of this program."""
        if not (self._closed or isinstance(sys.exception(), ConnectionError | TimeoutError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one HTTP connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # connections stay open, because opening one takes longer than drawing a small face
    timeout = 60  # seconds that the server waits for the next bytes of a request
    disable_nagle_algorithm = True
    error_message_format, error_content_type = "%(explain)s", "text/plain; charset=utf-8"  # the page shows the text

    def do_GET(self) -> None:
        """Answer a request for a file, a latent, an image or a film."""
        path, _, text = self.path.partition("?")
        name = path.removeprefix("/") or "index.html"
        if not self._is_own():
            return self.send_error(403, explain="This page is refused. Open the address that `pggan explore` printed.")
        try:
            content = self._content(name, dict(parse_qsl(text)))
        except UserError as error:
            return self.send_error(400, explain=f"{error.problem} {error.remedy}")
        except (KeyError, ValueError, OSError) as error:
            return self.send_error(400, explain=f"This can't be done: {error}. Reload the page.")
        if content is None:
            return self.send_error(404, explain=f"There is no {name[:100]}. Reload the page.")
        length, parts = (len(content), [content]) if isinstance(content, bytes) else content
        self.send_response(200)
        self.send_header("Content-Type", TYPES.guess_type(name)[0] or "application/octet-stream")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
        return None

    do_POST = do_GET

    def end_headers(self) -> None:
        """Add the security headers PROTECTION to every response."""
        for name, value in PROTECTION.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the page sends several requests a second."""

    def _is_own(self) -> bool:
        """Whether our page sent the request, and not a site whose domain resolves to this machine (DNS rebinding).

        The header Host may have any port, because an SSH tunnel may change the port; Origin has to equal Host.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        local = urlsplit(f"//{host}").hostname in (HOST, "localhost")
        return local and (origin is None or urlsplit(origin).netloc == host)

    def _content(self, name: str, query: dict[str, str]) -> bytes | Answer | None:
        """Return the body of the HTTP response for the path `name`; None if there is no such path.

        Raises UserError, KeyError or ValueError for a bad query.
        """
        match self.command, name:
            case "GET", "latent":
                return to_file(self.server.generator.latents(query["seed"]))
            case "POST", "image":
                return self.server.draw(self._latents(1), query)[0].tobytes()
            case "POST", "film":
                return self.server.film(self._latents(MAX_FRAMES), query)
            case "POST", "search":
                return self.server.search(self._body(MAX_BYTES), query)
            case "POST", "names.json":
                return self.server.rename(self._body(MAX_BYTES))
        return self.server.files.get(name) if self.command == "GET" else None

    def _latents(self, most: int) -> Tensor:
        """Read latents [N, Z] from the request; raises UserError above `most`, ValueError for a partial latent."""
        size = self.server.generator.latent_size
        return torch.tensor(np.frombuffer(self._body(4 * size * most), "<f4").reshape(-1, size))

    def _body(self, most: int) -> bytes:
        """Read the body of the request; raises UserError unless the body has 1 to `most` bytes."""
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= most:
            raise UserError(f"The request has {length} bytes, not 1 to {most}.", "Take fewer frames or bytes.")
        return self.rfile.read(length)
