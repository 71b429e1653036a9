"""The page: its files, the address that each has, and the policy that lets nothing else run in it.

There is no build step: a browser reads the files as they are. ``index.html`` loads ``main.js``, which imports the
others; docs/page.md says what is in which.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files
from typing import Final

_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


def _read() -> dict[str, bytes]:
    found = files(__name__)
    return {each.name: each.read_bytes() for each in found.iterdir() if each.name.endswith((*_TYPES, ".html"))}


def _digest_of(parts: dict[str, bytes]) -> str:
    whole = blake2b(digest_size=12)
    for name, body in sorted(parts.items()):
        whole.update(name.encode() + b"\0" + body + b"\0")
    return whole.hexdigest()


_PARTS: Final = _read()
_FOLDER: Final = _digest_of(_PARTS)  # all of it in one address, so that a browser never mixes two versions

STATIC_FILES: Final[dict[str, tuple[bytes, str]]] = {
    f"{_FOLDER}/{name}": (body, _TYPES["." + name.rpartition(".")[2]])
    for name, body in _PARTS.items()
    if not name.endswith(".html")
}
"""What is served below ``/static/``: the body and its type, by the rest of the address."""

_PRELOADS: Final = "\n".join(
    f'<link rel="modulepreload" href="/static/{path}">' for path in STATIC_FILES if path.endswith(".js")
)  # all at once, instead of each when the one that imports it has come

PAGE: Final = _PARTS["index.html"].decode().replace("{static}", f"/static/{_FOLDER}").replace("{preloads}", _PRELOADS)

CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",  # pictures that are in the record, of the four types that cannot hold a script
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # so that text from an agent cannot become markup even by mistake
        "trusted-types 'none'",
    ]
)
