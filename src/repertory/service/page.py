"""The page, and the policy that lets nothing run in it but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

PAGE: Final = files("repertory.service").joinpath("page.html").read_text(encoding="utf-8")


def _hashes(tag: str) -> str:
    """Every inline element of a kind, as a policy names it."""
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        f"script-src {_hashes('script')}",
        f"style-src {_hashes('style')}",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # so that text from an agent cannot become markup even by mistake
    ]
)
