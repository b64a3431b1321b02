"""Who may use the server: pages of its own on this machine, or with a token from others."""

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")


def is_local(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Access:
    """The rule for one server.

    Open to this machine alone, it needs no token, but its own name in each request: otherwise a foreign page whose
    name was made to point here (DNS rebinding) could read what it answers.  Open to others, it needs the token, which
    a cookie carries after the first visit.
    """

    port: int
    token: str | None

    @classmethod
    def of(cls, host: str, port: int) -> "Access":
        """The rule for a server at `host`."""
        return cls(port, None if is_local(host) else secrets.token_urlsafe(16))

    @property
    def cookie(self) -> str:
        """The name of the cookie; browsers do not tell ports apart."""
        return f"pggan-{self.port}"

    def refusal(self, headers: Mapping[str, str]) -> str | None:
        """Why a request with these headers is refused; None for one that is not.  Raises ValueError for no address."""
        host, origin = headers.get("Host", ""), headers.get("Origin")
        # Any port: a tunnel may begin at another one, and a page at another one has another origin.
        if self.token is None and urlsplit(f"//{host}").hostname not in LOCAL_NAMES:
            return "This server answers to its own name only."
        if origin is not None and urlsplit(origin).netloc != host:
            return "This server answers to its own page only."
        if self.token is not None and not self.knows(self._sent(headers)):
            return "This server needs the token of the address that `pggan explore` has printed."
        return None

    def knows(self, token: str) -> bool:
        """Whether `token` is the right one; the time that this takes does not depend on how much of it is."""
        return self.token is not None and secrets.compare_digest(token.encode(), self.token.encode())

    def _sent(self, headers: Mapping[str, str]) -> str:
        try:
            cookies = SimpleCookie(headers.get("Cookie", ""))
        except CookieError:
            return ""
        return cookies[self.cookie].value if self.cookie in cookies else ""
