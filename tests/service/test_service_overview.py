"""What the page opens with, in a real browser: the answers of runs are read there as words, not as Markdown."""

from __future__ import annotations

import json
from pathlib import Path

from browser import Browser, needs_browser
from test_service_page import serving

pytestmark = needs_browser
ANSWER = """## Found

| store | checksum |
|:---|---:|
| **SQLite** | `64` bits |

1. see [the file](https://example.com/x_y)
- snake_case stays, and 2 * 3 * 4, and <b>this</b>
```c
x += 1;
```
"""
LINE = "Found store · checksum; SQLite · 64 bits; see the file snake_case stays, and 2 * 3 * 4, and <b>this</b> x += 1;"


def test_an_answer_in_markdown_is_a_line_of_words(short: Path, browser: Browser) -> None:
    """Tables, lists, marks and links lose their signs; what is no mark stays, and the line is cut."""
    with serving(short, browser):
        place = "document.querySelector('script[type=module]').src.replace('main.js', 'format.js')"
        for length, line in ((240, LINE), (10, "Found sto…")):
            prose = f"format.prose({json.dumps(ANSWER)}, {length})"
            assert browser.run(f"import({place}).then((format) => {prose})") == line
