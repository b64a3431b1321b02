"""`pggan explore`: a page in the browser to explore a generator with, served to this machine alone.

The page is in static/.  N latents, Z latent size, K directions.
"""

import json
import signal
import sys
import traceback
import webbrowser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
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
MAX_FRAMES = 3600  # of a film: two minutes at 30 frames per second

Answer = tuple[bytes, str, int]  # content, its type, and the status


def run(config: ExploreConfig) -> int:
    """Serve the page until Ctrl-C; returns the exit code."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started it with the signal ignored
    with listen(generator, page_name(config.run), config.directions, config.port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address}\nCtrl-C ends it.", flush=True)
        if config.open:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    print(f"\n{next_command('export', 'format=web', 'out=page', **config.generator_keys)}")
    return 0


def listen(generator: TrainedGenerator, name: str, directions: str | None, port: int | None) -> "Server":
    """A server at `port`, else at PORT or a free one; raises UserError where that is impossible."""
    films = [kind for kind in ANIMATED if kind != VIDEO or find_spec("av") is not None]
    files = page_files(generator, directions, {"name": name, "renderer": "server", "films": films})
    for number in (PORT, 0) if port is None else (port,):
        with suppress(OSError):
            return Server(number, generator, files)
    raise UserError(f"The page can't be served at port={port}.", "Set another port=, or leave it out.")


def page_files(generator: TrainedGenerator, directions: str | None, about: dict[str, Any]) -> dict[str, bytes]:
    """The content of each file of the page, by its name.

    Args: directions: a file with the directions of the sliders; None takes the principal directions of the first
    features; about: more entries of model.json: the name of the page, the renderer (server or browser), and the
    endings of the films that a server can export.
    Raises UserError when the file has no directions for this generator.
    """
    facts = ("latent_size", "resolutions", "num_classes", "resolution", "alpha", "images")
    if directions is not None:
        sliders = load_directions(directions, generator.latent_size)
    else:
        label = 0 if generator.num_classes else None
        sliders = principal_directions(generator.network, min(DIRECTIONS, generator.latent_size), label)
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in CONTENT_TYPES}
    model = {fact: getattr(generator, fact) for fact in facts} | about
    return files | {"directions.bin": to_file(sliders), "model.json": json.dumps(model).encode()}


def page_name(run: str) -> str:
    """The title of a page: the directory of the generator."""
    path = Path(run).absolute()
    return path.parent.name if path.suffix else path.name


def to_file(vectors: Tensor) -> bytes:
    """Vectors as the page reads them: float32, little-endian, one after the other."""
    content: bytes = vectors.detach().cpu().contiguous().numpy().astype("<f4").tobytes()
    return content


class Server(ThreadingHTTPServer):
    """A server of one generator and the `files` of its page; raises OSError where it can't listen."""

    def __init__(self, port: int, generator: TrainedGenerator, files: dict[str, bytes]) -> None:
        # PyTorch keeps a team of threads for each thread that calls it, and a generator prepares its weights for one
        # use at a time: so one thread draws all images.
        self._drawing, self._closed = ThreadPoolExecutor(1, "drawing"), False
        super().__init__((HOST, port), Handler)
        self.generator = generator
        types = CONTENT_TYPES | {".json": JSON, ".bin": BINARY}
        self.files = {f"/{name}": (content, types[Path(name).suffix], 200) for name, content in files.items()}
        self.files["/"] = self.files["/index.html"]

    def draw(self, latents: Tensor, settings: RenderSettings) -> list[Pixels]:
        """The images uint8 [R, R, C] of `latents` [N, Z]."""
        return self._drawing.submit(lambda: list(self.generator.stream(latents, settings))).result()

    def film(self, latents: Tensor, settings: RenderSettings, kind: str, fps: int, *, smooth: bool) -> bytes:
        """A film of `latents` [N, Z] as a file, enlarged as `pggan interpolate` does, or smoothly.

        Raises UserError for another kind.
        """
        if kind not in ANIMATED or not 1 <= fps <= 120:
            raise UserError(f"There are no films of kind '{kind}' with {fps} frames per second.", "Reload the page.")
        side = settings.resolution * film_zoom(settings.resolution, settings.resolution)
        method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST

        def frames() -> Iterator[Pixels]:
            for some in torch.split(latents, BLOCK):
                for image in self.draw(some, settings):
                    yield np.asarray(to_pil(image).resize((side, side), method)).reshape(side, side, -1)

        with TemporaryDirectory(prefix="pggan-film-") as folder:
            path = Path(folder) / f"film{kind}"
            save_film(frames(), len(latents), fps, path)
            return path.read_bytes()

    def server_close(self) -> None:
        """End a film that is being drawn, too: a thread in the middle of PyTorch would abort the process."""
        super().server_close()
        self._closed = True
        self._drawing.shutdown(cancel_futures=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that are closed on either side; anything else is a fault of this program."""
        if not (self._closed or isinstance(sys.exception(), ConnectionError | TimeoutError)):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # keeps the connection: a new one takes longer than a small face
    server_version, sys_version = f"pggan/{__version__}", ""
    timeout = WAIT_SECONDS
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request for a file, a latent, an image or a film."""
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
        self._send(*answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a face takes several requests a second."""

    def _is_own(self) -> bool:
        """Whether the request names this machine: a foreign page's name may point here (DNS rebinding).

        Any port will do: a tunnel may begin at another one, and a page at another port has another origin.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        return urlsplit(f"//{host}").hostname in LOCAL_NAMES and (origin is None or urlsplit(origin).netloc == host)

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        match self.command, path:
            case "GET", "/latent":
                found = to_file(self.server.generator.latents(query["seed"]))
            case "POST", "/image":
                found = self.server.draw(self._latents(1), self._settings(query))[0].tobytes()
            case "POST", "/film":
                latents, smooth = self._latents(MAX_FRAMES), query["smooth"] == "1"
                found = self.server.film(
                    latents, self._settings(query), query["kind"], int(query["fps"]), smooth=smooth
                )
            case "GET", _ if path in self.server.files:
                return self.server.files[path]
            case _:
                return problem(404, f"There is no {path[:100]}.", "Reload the page.")
        return found, BINARY, 200

    def _latents(self, most: int) -> Tensor:
        """The latents [N, Z] in the body; raises UserError unless N is 1 to `most`."""
        size = self.server.generator.latent_size
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= 4 * size * most or length % (4 * size):
            raise UserError(
                f"{length} bytes are not 1 to {most} latents of {size} numbers, float32.", "Take fewer frames."
            )
        return torch.tensor(np.frombuffer(self.rfile.read(length), "<f4")).view(-1, size)

    def _settings(self, query: dict[str, str]) -> RenderSettings:
        """The settings to draw with; raises KeyError, ValueError or UserError for what the generator does not have."""
        resolution, alpha, truncation = int(query["resolution"]), float(query["alpha"]), float(query["truncation"])
        return self.server.generator.settings(
            resolution=resolution, alpha=alpha, truncation=truncation, label=query.get("label")
        )

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
