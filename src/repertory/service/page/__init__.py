"""The page: its files, the address that each has, and the policy that lets nothing else run in it.

There is no build step: a browser reads the files as they are. ``index.html`` loads ``main.js``, which imports the
others; docs/page.md says what is in which.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files
from typing import Final

_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


_PARTS: Final = {
    each.name: each.read_bytes() for each in files(__name__).iterdir() if each.name.endswith((*_TYPES, ".html"))
}
# All of it in one address, so that a browser never mixes two versions.
_FOLDER: Final = blake2b(repr(sorted(_PARTS.items())).encode(), digest_size=12).hexdigest()

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
