"""The server of the page: known paths, checked requests, nothing from the disk while it runs."""

import json
import socketserver
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from socket import AF_INET, AF_INET6
from urllib.parse import parse_qsl

from pggan.core.errors import UserError
from pggan.core.version import __version__
from pggan.sampling.explore.access import Access
from pggan.sampling.explore.drawing import Drawing
from pggan.sampling.explore.page import CONTENT_TYPES, page_files, to_file
from pggan.sampling.explore.requests import (
    MAX_FRAMES,
    MAX_IMAGES,
    most_bytes,
    read_film,
    read_latents,
    read_seed,
    read_settings,
)

JSON, BINARY = "application/json", "application/octet-stream"
PROTECTION = {  # no page but ours, and nothing from elsewhere in ours
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_ADDRESS_LENGTH = 4096  # characters of a path with its query
WAIT_SECONDS = 60  # for the rest of a request

Query = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """An answer to a request: a status, a content and its type, and headers beyond those of all answers."""

    content: bytes
    content_type: str = BINARY
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


def problem(status: int, what: str, remedy: str) -> Answer:
    """A refusal that the page shows."""
    return Answer(json.dumps({"problem": what, "remedy": remedy}).encode(), JSON, status)


class Server(ThreadingHTTPServer):
    """A server of one generator; raises OSError where it can't listen."""

    def __init__(self, host: str, port: int, drawing: Drawing, model: dict[str, object], directions: bytes) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), Handler)
        self.access = Access.of(host, self.server_port)
        self.drawing = drawing
        files = page_files()
        self.files = {f"/{name}": Answer(files[name], CONTENT_TYPES[PurePosixPath(name).suffix]) for name in files}
        self.files["/"] = self.files["/index.html"]
        self.files["/model.json"] = Answer(json.dumps(model).encode(), JSON)
        self.files["/directions.bin"] = Answer(directions)

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called, as the class above does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

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
        """Answer a request for a file, a seed's latent or the progress of a film."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer a request for images or a film of the latents in its body."""
        self._answer(self._post)

    def do_DELETE(self) -> None:
        """Cancel the film."""
        self._answer(self._delete)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a face takes several requests a second."""

    def _answer(self, method: Callable[[str, Query], Answer | None]) -> None:
        path, _, text = self.path.partition("?")
        try:
            if len(self.path) > MAX_ADDRESS_LENGTH:
                raise UserError("The address is too long.", "Reload the page.")
            query = dict(parse_qsl(text, max_num_fields=16))
            if self.server.access.knows(query.get("token", "")) and path == "/":
                self._send(self._welcome())
                return
            refusal = self.server.access.refusal({name.title(): value for name, value in self.headers.items()})
            if refusal is not None:
                self._send(problem(403, refusal, "Open the address that `pggan explore` has printed."))
                return
            found = method(path, query)
            self._send(found or problem(404, f"There is no {path[:100]}.", "Reload the page."))
        except (UserError, ValueError) as error:
            what, remedy = (error.problem, error.remedy) if isinstance(error, UserError) else (str(error), "Reload.")
            self._send(problem(400, what, remedy))
        except ConnectionError:
            self.close_connection = True
        except Exception:
            traceback.print_exc()
            self._send(problem(500, "The server failed.", "Its terminal says why."))

    def _welcome(self) -> Answer:
        """Keep the token in a cookie, and leave it out of the address, which people copy."""
        access = self.server.access
        cookie = f"{access.cookie}={access.token}; HttpOnly; SameSite=Strict; Path=/"
        return Answer(b"", status=303, headers=(("Set-Cookie", cookie), ("Location", "/")))

    def _get(self, path: str, query: Query) -> Answer | None:
        if path == "/latent":
            return Answer(to_file(self.server.drawing.generator.latents(read_seed(query))))
        if path == "/film":
            done, frames = self.server.drawing.film_progress
            return Answer(json.dumps({"done": done, "frames": frames}).encode(), JSON)
        return self.server.files.get(path)

    def _post(self, path: str, query: Query) -> Answer | None:
        most = {"/images": MAX_IMAGES, "/film": MAX_FRAMES}.get(path)
        if most is None:
            return None
        drawing = self.server.drawing
        settings = read_settings(query, drawing.generator)
        form = read_film(query) if path == "/film" else None
        size = drawing.generator.latent_size
        latents = read_latents(self._body(most_bytes(size, most)), size, most)
        if form is None:
            return Answer(drawing.images(latents, settings).tobytes())
        return Answer(drawing.film(latents, settings, form))

    def _delete(self, path: str, query: Query) -> Answer | None:
        if path != "/film":
            return None
        self.server.drawing.cancel_film()
        return Answer(b"")

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 12):
            raise UserError("The request does not say how long it is.", "Reload the page.")
        if int(length) > most:
            raise UserError(f"The request has {int(length):,} bytes.", f"{most:,} are the most: use fewer frames.")
        return self.rfile.read(int(length))

    def _send(self, answer: Answer) -> None:
        if answer.status >= 400:
            self.close_connection = True  # what is left of the request is not read
        self.send_response(answer.status)
        for name, value in (*PROTECTION.items(), *answer.headers):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)
