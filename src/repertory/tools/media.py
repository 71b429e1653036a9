"""Images and documents as blocks of a result, checked against what the Messages API accepts.

If the API refuses one block, it refuses the whole request, and so every later request that shows the block. So a block
that does not fit is an error when a tool makes it, and is replaced by a line of text if it comes from elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

from repertory._choices import check_type, show
from repertory._pdf import count_pages
from repertory.errors import ConfigurationError
from repertory.llm.messages import Block, Image, RawBlock, Text, is_document, is_media

__all__ = ["Media"]

# The API's limit on an image, which it counts in base64: "image exceeds 5 MB maximum: … bytes > 5242880 bytes".
MOST_IMAGE: Final = 5 * 1024 * 1024
# A request may have 32 MB (platform.claude.com/docs, PDF support); a quarter is left for everything else in it.
MOST_DOCUMENT: Final = 24 * 1024 * 1024
MOST_PIXELS: Final = 8_000  # "At least one of the image dimensions exceed max allowed size: 8000 pixels"
MOST_PAGES: Final = 600  # in a request, for models with a window of a million tokens; 100 for smaller ones
MOST_TITLE: Final = 500  # characters of a document's title: maxLength in the API's own schema (2026-11)
_HEADER: Final = 1_000_000  # characters: before the size, a JPEG may have profiles and previews of 64 kB each
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")  # the types of images that the API accepts
PDF: Final = "application/pdf"

Media: TypeAlias = Image | RawBlock
"""What ``media_block`` makes, for annotations of functions that hand it on as an attachment."""
BlockT = TypeVar("BlockT", bound=Block)


def media_block(data: bytes, media_type: str = "", *, title: str = "") -> Media:
    """Make a block of an image or a PDF document, to be attached to a task or a message.

    A tool returns it alone, or in a list with texts and other blocks.

    Args:
        data: The bytes of the file.
        media_type: ``image/png``, ``image/jpeg``, ``image/gif``, ``image/webp`` or ``application/pdf``; "" for what
            the first bytes say.
        title: The document's title, which the model is shown; "" for none. Images have no title.

    Raises:
        ConfigurationError: The data are not bytes, or the title is not text.
        ValueError: The API would refuse it: it is of another type, too large, or not what ``media_type`` says.
    """
    check_type("media_block: data", data, bytes | bytearray | memoryview, "bytes")
    check_type("media_block: title", title, str, "a text")
    data = bytes(data)  # a view lacks some of what bytes have
    found, known = media_type_of(data), ", ".join((*IMAGE_TYPES, PDF))
    if media_type not in ("", *IMAGE_TYPES, PDF):
        raise ValueError(f"media_type is {media_type!r}, which no model is shown; expected one of {known}")
    if not found or found != (media_type or found):
        said = f"media_type is {media_type!r}, but " if media_type else ""
        raise ValueError(f"{said}the data is {found or f'of none of the types that are shown: {known}'}")
    encoded = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": found, "data": encoded}
    block = Image(source) if found != PDF else RawBlock({"type": "document", "source": source})
    if isinstance(block, RawBlock):
        pages = count_pages(data)
        if pages > MOST_PAGES:
            raise ValueError(f"the document has some {pages:,} pages, and a request may have {MOST_PAGES}; split it")
        block = RawBlock({**block.raw, "title": title}) if title else block
    if refusal := too_large(block):
        raise ValueError(refusal)
    return block


def check_attachments(value: object, *, to: str) -> tuple[Media, ...]:
    """Check what a model is shown together with a task or a message.

    Raises:
        ConfigurationError: It is no list of what ``media_block`` makes, or the API would refuse it.
    """
    blocks: list[Media] = []
    for block in value if isinstance(value, list | tuple) else (value,):
        if not isinstance(block, Image | RawBlock) or not is_media(block):
            raise ConfigurationError(f"the attachments of {to} are a list of what media_block makes; got {show(block)}")
        if refusal := too_large(block):
            raise ConfigurationError(f"the attachments of {to} cannot be shown to a model: {refusal}")
        blocks.append(block)
    if (size := sum(len(base64_of(block)) for block in blocks)) > MOST_DOCUMENT:
        most = MOST_DOCUMENT * 3 // 4
        raise ConfigurationError(
            f"the attachments of {to} have {size * 3 // 4:,} bytes; a request has room for {most:,}"
        )
    return tuple(blocks)


def too_large(block: Media) -> str:
    """Why the API would refuse a block because of its size; "" if it would not, or if that is unknown."""
    data = base64_of(block)
    most = MOST_IMAGE if isinstance(block, Image) else MOST_DOCUMENT
    what = "image" if isinstance(block, Image) else "document"
    if len(data) > most:
        return f"this {what} of {len(data) * 3 // 4:,} bytes is too large: at most {most * 3 // 4:,} can be sent"
    title = block.raw.get("title") if is_document(block) and isinstance(block, RawBlock) else ""
    if isinstance(title, str) and len(title) > MOST_TITLE:
        return f"this document's title of {len(title):,} characters is too long: at most {MOST_TITLE} can be sent"
    width, height = _pixels_of(data) if isinstance(block, Image) else (0, 0)
    if max(width, height) > MOST_PIXELS:
        return f"this image of {width:,} x {height:,} pixels is too large: at most {MOST_PIXELS:,} a side can be sent"
    return ""


def base64_of(block: Block) -> str:
    """The base64 in an image or a document; "" if it is elsewhere, or if it is another block."""
    source: object = None
    if isinstance(block, Image):
        source = block.source
    elif isinstance(block, RawBlock) and is_document(block):
        source = block.raw.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    return data if isinstance(data, str) else ""


def _pixels_of(encoded: str) -> tuple[int, int]:
    """The width and the height that the header of an image in base64 says; (0, 0) if it says none."""
    with contextlib.suppress(ValueError, struct.error):  # it is no base64, or cut off
        data = base64.b64decode(encoded[:_HEADER])
        match media_type_of(data), data[12:16]:
            case "image/png", b"IHDR":
                return struct.unpack_from(">II", data, 16)
            case "image/gif", _:
                return struct.unpack_from("<HH", data, 6)
            case "image/webp", b"VP8X":
                return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
            case "image/webp", b"VP8L":
                (bits,) = struct.unpack_from("<I", data, 21)
                return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            case "image/webp", b"VP8 ":
                width, height = struct.unpack_from("<HH", data, 26)
                return width & 0x3FFF, height & 0x3FFF
            case "image/jpeg", _:
                at = 2
                while True:
                    marker, length = struct.unpack_from(">HH", data, at)
                    if 0xFFC0 <= marker <= 0xFFCF and marker not in (0xFFC4, 0xFFC8, 0xFFCC):  # the header of a frame
                        height, width = struct.unpack_from(">HH", data, at + 5)
                        return width, height
                    at += 2 + length
    return 0, 0


def showable(content: Sequence[BlockT], *, documents: bool) -> tuple[BlockT | Text, ...]:
    """The content as a model can be shown it: if it takes no ``documents``, each is replaced by a line of text."""
    if documents or not any(map(is_document, content)):
        return tuple(content)
    return tuple(Text("[a document, which this model cannot be shown]") if is_document(b) else b for b in content)


def media_type_of(data: bytes | bytearray) -> str:
    """The media type that the first bytes of a file show; "" if it is not a type that can be shown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    starts = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"%PDF-": PDF}
    return next((kind for start, kind in starts.items() if data.startswith(start)), "")
