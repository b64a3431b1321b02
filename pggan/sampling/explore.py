"""`pggan explore`: a page in the browser to explore a generator with, served to this machine alone.

The page is in static/.  N latents, Z latent size, K directions.
"""

import json
import sys
import traceback
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pggan.config.commands import ExploreConfig
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.process import __version__
from pggan.core.text import next_command
from pggan.sampling.files import ANIMATED, VIDEO, film_zoom, save_film
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels, to_pil
from pggan.sampling.latents import load_directions, principal_directions
from pggan.sampling.trained_generator import TrainedGenerator, load

STATIC = Path(__file__).parent / "static"
JSON, BINARY = "application/json", "application/octet-stream"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PROTECTION = {  # no page but ours, and nothing from elsewhere in ours
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HOST, PORT = "127.0.0.1", 8765  # where no port is given; taken, a free one is
LOCAL_NAMES = ("127.0.0.1", "localhost")
WAIT_SECONDS = 60  # for the rest of a request
DIRECTIONS = 8  # sliders, where no file of directions is named
BLOCK = 8  # frames of a film between which a face that someone looks at is drawn
MAX_IMAGES, MAX_FRAMES = 64, 3600  # of one request; of a film, two minutes at 30 frames per second

Answer = tuple[bytes, str, int]  # content, its type, and the status


def run(config: ExploreConfig) -> int:
    """Serve the page until Ctrl-C; returns the exit code."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    with listen(generator, page_name(config.run), config.directions, config.port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address}\nCtrl-C ends it.", flush=True)
        if config.open:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.drawing.cancelled = True
            print()
    print(next_command("export", "format=web", "out=page", **config.generator_keys))
    return 0


def listen(generator: TrainedGenerator, name: str, directions: str | None, port: int | None) -> "Server":
    """A server at `port`, else at PORT or a free one; raises UserError where that is impossible."""
    files = page_files() | {"directions.bin": to_file(page_directions(generator, directions))}
    films = [kind for kind in ANIMATED if kind != VIDEO or find_spec("av") is not None]
    files["model.json"] = json.dumps(describe_page(generator, name, "server", films)).encode()
    for number in (PORT, 0) if port is None else (port,):
        with suppress(OSError):
            return Server(number, generator, files)
    raise UserError(f"The page can't be served at port={port}.", "Set another port=, or leave it out.")


def page_files() -> dict[str, bytes]:
    """The content of each file of the page, by its name."""
    return {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in CONTENT_TYPES}


def describe_page(generator: TrainedGenerator, name: str, renderer: str, films: list[str]) -> dict[str, Any]:
    """The content of model.json, which the page reads.

    Args: name: the title; renderer: the module that draws, server or browser; films: the endings of the films that can
    be exported, empty where the renderer finds out by itself.
    """
    about = ("latent_size", "resolutions", "num_classes", "resolution", "alpha", "images")
    stage = {name: getattr(generator, name) for name in about}
    return {"name": name, "renderer": renderer, "films": films, **stage}


def page_name(run: str) -> str:
    """The title of a page: the directory of the generator."""
    path = Path(run).absolute()
    return path.parent.name if path.suffix else path.name


def page_directions(generator: TrainedGenerator, given: str | None) -> Tensor:
    """The directions [K, Z] of the sliders: of a file, else principal ones of the first features.

    Raises UserError when the file has no directions for this generator.
    """
    if given is not None:
        return load_directions(given, generator.latent_size)
    label = 0 if generator.num_classes else None
    return principal_directions(generator.network, min(DIRECTIONS, generator.latent_size), label)


def to_file(vectors: Tensor) -> bytes:
    """Vectors as the page reads them: float32, little-endian, one after the other."""
    content: bytes = vectors.detach().cpu().contiguous().numpy().astype("<f4").tobytes()
    return content


class Drawing:
    """Images and films of one generator.

    PyTorch keeps a team of threads for each thread that calls it, and a generator prepares its weights for one use at
    a time: so all requests are drawn by one thread, a film in pieces between them.
    """

    def __init__(self, generator: TrainedGenerator) -> None:
        self.generator = generator
        self.progress = {"done": 0, "frames": 0}  # of the latest film
        self.cancelled = False
        self._thread = ThreadPoolExecutor(1, "drawing")

    def images(self, latents: Tensor, settings: RenderSettings) -> Pixels:
        """Images uint8 [N, R, R, C] of `latents` [N, Z]."""
        draw: Callable[[], Pixels] = lambda: np.stack(list(self.generator.stream(latents, settings)))  # noqa: E731
        return self._thread.submit(draw).result()

    def film(self, latents: Tensor, settings: RenderSettings, kind: str, fps: int, *, smooth: bool) -> bytes:
        """A film of `latents` [N, Z] as a file, enlarged as `pggan interpolate` does, or smoothly.

        Raises UserError for another kind, and once `cancelled` is set.
        """
        if kind not in ANIMATED or not 1 <= fps <= 120:
            raise UserError(f"There are no films of kind '{kind}' with {fps} frames per second.", "Reload the page.")
        side = settings.resolution * film_zoom(settings.resolution, settings.resolution)
        method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST

        def draw() -> Iterator[Pixels]:
            for start in range(0, len(latents), BLOCK):
                if self.cancelled:
                    raise UserError("The film was cancelled.", "Export it again.")
                images = self.images(latents[start : start + BLOCK], settings)
                for image in images:
                    yield np.asarray(to_pil(image).resize((side, side), method)).reshape(side, side, -1)
                self.progress["done"] = start + len(images)

        self.cancelled, self.progress = False, {"done": 0, "frames": len(latents)}
        with TemporaryDirectory(prefix="pggan-film-") as folder:
            path = Path(folder) / f"film{kind}"
            save_film(draw(), len(latents), fps, path)
            return path.read_bytes()


class Server(ThreadingHTTPServer):
    """A server of one generator and the `files` of its page; raises OSError where it can't listen."""

    def __init__(self, port: int, generator: TrainedGenerator, files: dict[str, bytes]) -> None:
        super().__init__((HOST, port), Handler)
        self.drawing = Drawing(generator)
        types = CONTENT_TYPES | {".json": JSON, ".bin": BINARY}
        self.files = {f"/{name}": (content, types[Path(name).suffix], 200) for name, content in files.items()}
        self.files["/"] = self.files["/index.html"]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that the browser has closed; anything else is a fault of this program."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # keeps the connection: a new one takes longer than a small face
    server_version, sys_version = f"pggan/{__version__}", ""
    timeout = WAIT_SECONDS
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request for a file, a latent, images or a film."""
        path, _, text = self.path.partition("?")
        try:
            if self._is_own():
                answer = self._answer(path, dict(parse_qsl(text, max_num_fields=16)))
            else:
                answer = problem(403, "This server answers to its own page only.", "Open the address that was printed.")
        except UserError as error:
            answer = problem(400, error.problem, error.remedy)
        except (KeyError, ValueError) as error:
            answer = problem(400, f"The request can't be read: {error}.", "Reload the page.")
        except Exception:
            traceback.print_exc()
            answer = problem(500, "The server failed.", "Its terminal says why.")
        self._send(*answer)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a face takes several requests a second."""

    def _is_own(self) -> bool:
        """Whether the request names this machine: a foreign page's name may point here (DNS rebinding).

        Any port will do: a tunnel may begin at another one, and a page at another port has another origin.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        return urlsplit(f"//{host}").hostname in LOCAL_NAMES and (origin is None or urlsplit(origin).netloc == host)

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        drawing, found = self.server.drawing, None
        match self.command, path:
            case "GET", "/latent":
                found = to_file(drawing.generator.latents(query["seed"]))
            case "GET", "/film":
                return json.dumps(drawing.progress).encode(), JSON, 200
            case "DELETE", "/film":
                drawing.cancelled, found = True, b""
            case "POST", "/images":
                found = drawing.images(self._latents(MAX_IMAGES), read_settings(query, drawing.generator)).tobytes()
            case "POST", "/film":
                settings, smooth = read_settings(query, drawing.generator), query.get("smooth") == "1"
                found = drawing.film(
                    self._latents(MAX_FRAMES), settings, query["kind"], int(query["fps"]), smooth=smooth
                )
            case "GET", _ if path in self.server.files:
                return self.server.files[path]
        missing = problem(404, f"There is no {path[:100]}.", "Reload the page.")
        return missing if found is None else (found, BINARY, 200)

    def _latents(self, most: int) -> Tensor:
        """The latents [N, Z] in the body; raises UserError unless N is at most `most`, and all are finite and not 0."""
        size = self.server.drawing.generator.latent_size
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= 4 * size * most or length % (4 * size):
            problem = f"{length} bytes are no latents of this generator."
            raise UserError(problem, f"Send 1 to {most} latents of {size} numbers, float32.")
        latents = torch.tensor(np.frombuffer(self.rfile.read(length), "<f4")).view(-1, size)
        if not bool(torch.isfinite(latents).all() & (latents != 0).any(1).all()):
            raise UserError("A number of a latent is not finite, or all of them are 0.", "Use another face.")
        return latents

    def _send(self, content: bytes, content_type: str, status: int) -> None:
        if status >= 400:
            self.close_connection = True  # what is left of the request is not read
        self.send_response(status)
        about = {**PROTECTION, "Content-Type": content_type, "Content-Length": str(len(content))}
        about |= {"Connection": "close"} if self.close_connection else {}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def problem(status: int, what: str, remedy: str) -> Answer:
    """A refusal that the page shows."""
    return json.dumps({"problem": what, "remedy": remedy}).encode(), JSON, status


def read_settings(query: dict[str, str], generator: TrainedGenerator) -> RenderSettings:
    """The settings to draw with; raises KeyError, ValueError or UserError for what the generator does not have."""
    truncation, label = float(query["truncation"]), query.get("label")
    if not isfinite(truncation):
        raise ValueError(f"truncation={truncation}")
    return generator.settings(
        resolution=int(query["resolution"]), alpha=float(query["alpha"]), truncation=truncation, label=label
    )
