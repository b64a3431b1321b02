"""`pggan explore` serves the web page in static/, on which a user of this machine explores a generator."""

import json
import sys
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
from pggan.checkpoints.read import run_of
from pggan.config.commands import ExploreConfig
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.process import open_in_browser
from pggan.core.text import next_command
from pggan.sampling.files import ANIMATED, check_output, film_zoom, save_film, writable
from pggan.sampling.images import Pixels, to_pil
from pggan.sampling.latents import load_about, load_vectors, principal_directions, save_vectors
from pggan.sampling.marks import mark_line, png_chunk
from pggan.sampling.projection import ROUNDS, STEPS, read_target, search
from pggan.sampling.trained_generator import TrainedGenerator, load

TYPES = MimeTypes()
STATIC = Path(__file__).parent / "static"
PROTECTION = {  # Other sites can't embed or read the page, and the page loads nothing from other sites.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HOST, PORT = "127.0.0.1", 8765  # If another program uses the default PORT, the system chooses a free port.
DIRECTIONS = 8  # number of sliders on the page if the user gives no file of directions
DIRECTIONS_FILE = "directions.safetensors"  # This file in a run directory holds directions that a user has named.
SEEDS = 100_000  # The page's random faces have seeds below this number, because short seeds are easy to write down.
BLOCK = 8  # Films are drawn in blocks of this many frames; between two blocks, the server can draw other images.
MAX_FRAMES = 3600  # The longest film lasts two minutes at 30 frames per second.
MAX_BYTES = 100_000_000  # maximum size of a photo in bytes; app.js has the same limit
MAX_NAMES = 100_000  # maximum size in bytes of the JSON list with the names of directions

Answer = tuple[int, Iterable[bytes]]  # the length of an HTTP body in bytes, and the pieces of this body in order


def run(config: ExploreConfig) -> int:
    """Serve the web page until Ctrl-C; returns the exit code."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    mark = mark_line(config.marks, config.run, "pggan explore")
    with listen(generator, config.run, config.directions, config.port, mark) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address}\nCtrl-C ends the server.", flush=True)
        if config.open:
            open_in_browser(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    print(f"\n{next_command('export', 'format=web', 'out=page', **config.generator_keys)}")
    return 0


def listen(
    generator: TrainedGenerator, run: str, directions: str | None, port: int | None, mark: str | None = None
) -> "Server":
    """Open a server at `port` (None: PORT or, if PORT is in use, any free port); raises UserError if no port works."""
    about = {"renderer": "server", "seeds": SEEDS, "films": writable(ANIMATED)}
    files = page_files(generator, run, directions, about, mark)
    for number in (PORT, 0) if port is None else (port,):
        with suppress(OSError):
            return Server(number, generator, files, mark, directions_file(run, directions))
    raise UserError(f"The page can't be served at port={port}.", "Set another port=, or leave out port=.")


def directions_file(run: str, given: str | None) -> Path | None:
    """Return the path of the directions' file: `given`, or a default path for `run` (None for run=pretrained:NAME)."""
    if given is not None or run.startswith(PREFIX):
        return None if given is None else Path(given)
    path = run_of(Path(run).parent if Path(run).name == GENERATOR_FILE else Path(run))
    return path / DIRECTIONS_FILE if path.is_dir() else path.with_name(f"{path.stem}-{DIRECTIONS_FILE}")


def page_files(
    generator: TrainedGenerator, run: str, directions: str | None, about: dict[str, Any], mark: str | None = None
) -> dict[str, bytes]:
    """Return the web page's files {name: bytes}; raises UserError if the directions do not fit the generator.

    Args: run: value of the option run=; directions: file of the sliders' directions (None: the run's file if it exists,
    else principal directions); about: entries of model.json for app.js; mark: description in saved pictures' metadata.
    """
    file, names = directions_file(run, directions), []
    if file is not None and (directions is not None or file.is_file()):
        sliders, names = load_vectors("directions", file, generator.latent_size), load_about(file).get("names", [])
    else:
        sliders = principal_directions(generator.network, DIRECTIONS, generator.settings().label)
    path = Path(run).absolute()
    name = path.parent.name if path.is_file() else path.name  # The page shows the name of a generator file's folder.
    facts = ("latent_size", "num_classes", "resolution", "alpha", "images")
    levels = [resolution for resolution in generator.resolutions if resolution <= generator.resolution]
    model = {fact: getattr(generator, fact) for fact in facts} | {"resolutions": levels, "name": name} | about
    return {path.name: path.read_bytes() for path in STATIC.iterdir()} | {
        "directions.bin": to_file(sliders),
        "names.json": json.dumps(names).encode(),
        "model.json": json.dumps(model).encode(),
        "mark.bin": png_chunk(mark),
    }


def to_file(vectors: Tensor) -> bytes:
    """Encode vectors as the page reads them: float32, little-endian, one vector after the other."""
    content: bytes = vectors.detach().cpu().contiguous().numpy().astype("<f4").tobytes()
    return content


class Server(ThreadingHTTPServer):
    """An HTTP server that sends the page's `files` and draws images; raises OSError when the port is in use."""

    def __init__(
        self, port: int, generator: TrainedGenerator, files: dict[str, bytes], mark: str | None, names: Path | None
    ) -> None:
        # Drawing caches scaled weights in the network, which is not thread-safe, so one thread draws all images.
        self._drawing, self._closed = ThreadPoolExecutor(1, "drawing"), False
        super().__init__((HOST, port), Handler)
        self.generator, self.files, self.mark, self.names = generator, files, mark, names

    def draw(self, latents: Tensor, query: dict[str, str]) -> list[Pixels]:
        label = int(query["label"]) if "label" in query else None
        settings = self.generator.settings(truncation=float(query["truncation"]), label=label)
        return self._drawing.submit(lambda: [*self.generator.stream(latents, settings)]).result()

    def film(self, latents: Tensor, query: dict[str, str]) -> bytes:
        """Return a film's bytes, with one frame for each of `latents` [N, Z]; raises UserError for an invalid `query`.

        Frames are drawn at full resolution, then shrunk: to-RGB layers of lower resolutions are not trained to the end.
        """
        kind, fps, side = query["kind"], int(query["fps"]), int(query["resolution"])
        if kind not in ANIMATED or not 1 <= fps <= 120 or side not in self.generator.resolutions:
            problem = f"The page asked for a wrong film: {side}x{side} pixels, fps={fps}, kind={kind}."
            raise UserError(problem, "Reload the page.")
        small, side = (side, side), side * film_zoom(side)
        method = Image.Resampling.BICUBIC if query["smooth"] == "1" else Image.Resampling.NEAREST

        def frames() -> Iterator[Pixels]:
            for some in torch.split(latents, BLOCK):
                for image in self.draw(some, query):
                    frame = to_pil(image).resize(small, Image.Resampling.BOX).resize((side, side), method)
                    yield np.asarray(frame).reshape(side, side, -1)

        with TemporaryDirectory(prefix="pggan-film-") as folder:
            path = check_output(f"{folder}/film{kind}", ANIMATED)
            save_film(frames(), len(latents), fps, path, self.mark and f"{self.mark}, {query['faces']}")
            return path.read_bytes()

    def search(self, photo: bytes, query: dict[str, str]) -> Answer:
        """Find the latent with the image nearest to `photo`; returns an HTTP body: the best latent after each step."""
        settings = self.generator.settings(label=int(query["label"]) if "label" in query else None)
        target = read_target(photo, settings.resolution, self.generator.network.architecture.channels)
        found, count = search(self.generator.network, target, settings, STEPS), ROUNDS + STEPS

        def latents() -> Iterator[bytes]:
            try:
                for _ in range(count):
                    yield to_file(self._drawing.submit(next, found).result())
            finally:  # If the browser closes the connection, the search ends early.
                with suppress(RuntimeError):
                    self._drawing.submit(found.close)

        return count * self.generator.latent_size * 4, latents()

    def rename(self, content: bytes) -> bytes:
        """Save the JSON list of the directions' names; returns a warning if there is no file for names, else b""."""
        names = json.loads(content)
        if not isinstance(names, list) or {*map(type, names)} - {str}:
            raise ValueError("the names are not a list of strings")
        self.files["names.json"] = content
        if self.names is None:
            return b"These names are lost when the server ends, because a pretrained generator has no run directory."
        vectors = np.frombuffer(self.files["directions.bin"], "<f4").reshape(-1, self.generator.latent_size)
        save_vectors("directions", torch.tensor(vectors), self.names, load_about(self.names) | {"names": names})
        return b""

    def server_close(self) -> None:
        """Close the server and the drawing thread: a thread that still ran PyTorch at exit would abort the process."""
        super().server_close()
        self._closed = True
        self._drawing.shutdown(cancel_futures=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not (self._closed or isinstance(sys.exception(), ConnectionError | TimeoutError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one HTTP connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # HTTP/1.1 reuses connections, because opening a new connection is slow.
    timeout = 60  # seconds to wait for the next bytes of a request
    disable_nagle_algorithm = True
    error_message_format, error_content_type = "%(explain)s", "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        path, _, text = self.path.partition("?")
        name = path.removeprefix("/") or "index.html"
        if not self._is_own():
            return self.send_error(403, explain="Open the page by the address that `pggan explore` printed.")
        try:
            content = self._content(name, dict(parse_qsl(text)))
        except UserError as error:
            return self.send_error(400, explain=f"{error.problem} {error.remedy}")
        except (KeyError, ValueError, OSError, RuntimeError) as error:
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

    do_POST = do_GET

    def end_headers(self) -> None:
        for name, value in PROTECTION.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the page sends several requests a second."""

    def _is_own(self) -> bool:
        """Return whether this server's page sent the request; other sites could send requests by DNS rebinding.

        The header Host may have any port, because an SSH tunnel may change the port.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        local = urlsplit(f"//{host}").hostname in (HOST, "localhost")
        return local and (origin is None or urlsplit(origin).netloc == host)

    def _content(self, name: str, query: dict[str, str]) -> bytes | Answer | None:  # noqa: PLR0911 - one per request
        match self.command, name:
            case "GET", "latent":
                return to_file(self.server.generator.latents(int(query["seed"])))
            case "GET", "mark.bin":
                return png_chunk(self.server.mark and f"{self.server.mark}, {query['face']}")
            case "POST", "image":
                return to_pil(self.server.draw(self._latents(1), query)[0]).convert("RGBA").tobytes()
            case "POST", "film":
                return self.server.film(self._latents(MAX_FRAMES), query)
            case "POST", "search":
                return self.server.search(self._body(MAX_BYTES), query)
            case "POST", "names.json":
                return self.server.rename(self._body(MAX_NAMES))
        return self.server.files.get(name) if self.command == "GET" else None

    def _latents(self, most: int) -> Tensor:
        size = self.server.generator.latent_size
        return torch.tensor(np.frombuffer(self._body(4 * size * most), "<f4").reshape(-1, size))

    def _body(self, most: int) -> bytes:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= most:
            raise UserError(f"The request has {length} bytes, not 1 to {most}.", "Take fewer frames or bytes.")
        return self.rfile.read(length)
