"""A tool that draws: the model sees the picture, and the journal keeps it."""

import struct
import zlib

import repertory as rp
from repertory.llm import estimate_tokens
from repertory.testing import ScriptedModel, call


def draw_bars(heights: list[int]) -> list[object]:
    """Draw a bar chart."""
    rows = [bytes(0 if height > level else 255 for height in heights) for level in reversed(range(max(heights)))]
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", len(heights), len(rows), 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(b"".join(b"\0" + row for row in rows)),
        b"IEND": b"",
    }
    parts = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks.items())
    png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return [f"{len(heights)} bars:", rp.media_block(png, "image/png")]


MODEL = ScriptedModel([call("draw_bars", heights=[3, 9, 4, 7]), "The second bar is the highest."])

if __name__ == "__main__":
    print(rp.run_sync(rp.Agent("artist", tools=[draw_bars]), "Which bar is the highest?", model=MODEL))
    print(f"the picture came as a result of {estimate_tokens(MODEL.requests[-1].messages[-1]):,} tokens")
