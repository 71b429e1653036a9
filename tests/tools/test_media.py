"""Images and documents as results: checked where they are made, counted by what they cost, shown and kept."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import msgspec
import pytest

import repertory as rp
from repertory.errors import ConfigurationError
from repertory.llm import estimate_tokens
from repertory.llm.estimate import IMAGE_TOKENS, PAGE_TOKENS
from repertory.llm.messages import Image, RawBlock, Text, ToolResult
from repertory.llm.profiles import OFFLINE
from repertory.shortening.shaping import media_in
from repertory.testing import ScriptedModel, call
from repertory.tools.media import MOST_IMAGE, check_attachments, media_block

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 1_000
PDF = b"%PDF-1.7\n<< /Type /Pages /Count 3 >>\n" + b"<< /Type /Page >>\n<</Type/Page/Parent 1 0 R>>\n" * 2


def sized_png(width: int, height: int) -> bytes:
    """The beginning of a PNG of this size."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)


@pytest.mark.parametrize(
    ("start", "kind"),
    [(PNG, "png"), (b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "webp")],
)
def test_an_image_is_made_of_its_bytes(start: bytes, kind: str) -> None:
    """The API takes four types; the block has its form."""
    block = media_block(start, f"image/{kind}")
    assert isinstance(block, Image)
    data = base64.b64encode(start).decode()
    assert block.source == {"type": "base64", "media_type": f"image/{kind}", "data": data}


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("gif", "474946383961 411f 1400"),
        ("jpeg", "ffd8 ffe0 0004 0000 ffc4 0002 ffc2 0011 08 0014 1f41 03"),
        ("webp", "52494646 00000000 57454250 56503820 00000000 000000 9d012a 411f 1400"),
        ("webp", "52494646 00000000 57454250 5650384c 00000000 2f 40df0400"),
        ("webp", "52494646 00000000 57454250 56503858 0a000000 00000000 401f00 130000"),
    ],
)
def test_the_pixels_of_every_type_are_counted(kind: str, header: str) -> None:
    """Each of these headers says 8,001 x 20, in the form in which Pillow writes it."""
    with pytest.raises(ValueError, match="this image of 8,001 x 20 pixels is too large"):
        media_block(bytes.fromhex(header), f"image/{kind}")


def test_a_document_is_made_of_its_bytes() -> None:
    """It may have a title; it costs by its pages, not by its bytes."""
    block = media_block(PDF, "application/pdf", title="Report")
    assert isinstance(block, RawBlock)
    assert (block.raw["type"], block.raw["title"]) == ("document", "Report")
    assert base64.b64decode(block.raw["source"]["data"]) == PDF
    assert estimate_tokens(block) == 4 * PAGE_TOKENS
    assert media_block(memoryview(PDF), title="Report") == block == media_block(bytearray(PDF), title="Report")
    both = ToolResult("t", (Text("both"), block, media_block(PNG, "image/png")))
    assert 0 < estimate_tokens(both) - 4 * PAGE_TOKENS - IMAGE_TOKENS < 50


async def test_a_tool_shows_a_picture_or_a_document_by_returning_its_bytes() -> None:
    """They were taken for text, of which nothing could be read; one that is too large is an error that says so."""
    files = {"png": PNG, "pdf": bytearray(PDF), "huge": PNG + bytes(MOST_IMAGE)}

    @rp.tool(effect="pure")
    async def show(file: str) -> bytes | bytearray:
        """Show a file."""
        return files[file]

    for file, media_type in (("png", "image/png"), ("pdf", "application/pdf")):
        output = await rp.call_tool(show, {"file": file})
        assert output.content == (media_block(bytes(files[file]), media_type),)
    assert "is too large" in (await rp.call_tool(show, {"file": "huge"})).text


def test_the_pages_of_a_document_are_counted_where_they_are_compressed() -> None:
    """As in most: of a scan there were guessed to be so many that it was not shown, of a long text too few."""
    objects = zlib.compress(b"1 0 2 90 <</Type /Pages /Count 3>>" + b"<</Type/Page/Parent 1 0 R>>" * 3)
    stream = b"5 0 obj\n<<\n/Type /ObjStm\n/N 4\n/Length %d\n/Filter /FlateDecode\n>>\nstream\n%s\nendstream\n"
    packed = b"%PDF-1.5\n" + stream % (len(objects), objects)
    for scanned in (b"", bytes(5_000_000)):
        assert estimate_tokens(media_block(packed + scanned)) == 3 * PAGE_TOKENS
    both = packed * 2 + b"<< /Type /Page >>"
    assert estimate_tokens(media_block(both)) == 7 * PAGE_TOKENS
    damaged = packed.replace(objects, objects[:20] + bytes(99)) + bytes(100_000)
    assert estimate_tokens(media_block(damaged)) == 2 * PAGE_TOKENS


def test_a_document_that_unpacks_without_end_is_not_unpacked_whole() -> None:
    """In a small fraction of a second for each, however many it has."""
    bomb = b"/ObjStm>>stream\n" + zlib.compress(bytes(3_000_000))
    block = media_block(b"%PDF-1.5\n" + bomb * 500)
    assert estimate_tokens(block) == (len(bomb) * 500 // 50_000) * PAGE_TOKENS


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ({"type": "url", "url": "https://example.com/a.pdf"}, PAGE_TOKENS),
        ({"type": "base64", "data": "!"}, PAGE_TOKENS),
        ({"type": "base64", "data": base64.b64encode(bytes(200_000)).decode()}, 4 * PAGE_TOKENS),
        ({"type": "text", "data": "a" * 4_000}, 1_016),
    ],
)
def test_documents_from_elsewhere_are_counted_too(source: dict[str, Any], tokens: int) -> None:
    """By what is known of them."""
    assert estimate_tokens(RawBlock({"type": "document", "source": source})) == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("data", "media_type", "fact"),
    [
        (PNG, "image/svg+xml", "media_type is 'image/svg\\+xml', which no model is shown; expected one of image/png"),
        (PNG, "image/jpeg", "media_type is 'image/jpeg', but the data is image/png"),
        (b"text", "image/png", "media_type is 'image/png', but the data is of none of the types"),
        (PNG + bytes(MOST_IMAGE), "image/png", "this image of 5,2.* bytes is too large: at most 3,932,160 can be sent"),
        (sized_png(20, 8_001), "image/png", "this image of 20 x 8,001 pixels is too large: at most 8,000 a side"),
        (PDF + b"/Type/Page " * 600, "application/pdf", "some 604 pages, and a request may have 600; split it"),
    ],
)
def test_what_the_api_would_refuse_is_an_error_where_it_is_made(data: bytes, media_type: str, fact: str) -> None:
    """Else every request that shows it would be refused."""
    with pytest.raises(ValueError, match=fact):
        media_block(data, media_type)


async def test_a_title_that_the_api_would_refuse_is_an_error_too() -> None:
    """Wherever it comes from; the longest that it takes is shown."""
    longest = media_block(PDF, title="t" * 500)
    with pytest.raises(
        ValueError, match="this document's title of 501 characters is too long: at most 500 can be sent"
    ):
        media_block(PDF, title="t" * 501)
    assert isinstance(longest, RawBlock)
    foreign = RawBlock({**longest.raw, "title": "t" * 1_001})
    with pytest.raises(ConfigurationError, match=r"cannot be shown to a model: this document's title of 1,001"):
        check_attachments([longest, foreign], to="a task")

    @rp.tool(effect="pure")
    def find() -> list[object]:
        """Find a document."""
        return [longest, foreign]

    named = Text("[this document's title of 1,001 characters is too long: at most 500 can be sent]")
    assert (await rp.call_tool(find)).content == (longest, named)


async def test_images_of_others_that_are_too_large_are_named_instead() -> None:
    """So are those in an error, of which the API takes only text; a cap of characters is not about them."""
    small = media_block(PNG, "image/png")
    large = Image({"type": "base64", "media_type": "image/png", "data": "x" * (MOST_IMAGE + 1)})

    @rp.tool(effect="pure", output_cap=100)
    def shoot(wrong: bool = False) -> rp.ToolOutput:
        """Shoot."""
        return rp.ToolOutput((small, large, Text("two")), status="error" if wrong else "ok")

    output = await rp.call_tool(shoot)
    named = Text("[this image of 3,932,160 bytes is too large: at most 3,932,160 can be sent]")
    assert output.content == (small, named, Text("two"))
    failed = await rp.call_tool(shoot, {"wrong": True})
    left_out = Text("[something that is no text is left out of this error]")
    assert failed.content == (left_out, named, Text("two"))


def shoot() -> list[object]:
    """Shoot."""
    return ["a picture and a document", media_block(PNG, "image/png"), media_block(PDF, "application/pdf")]


@pytest.mark.parametrize("documents", [True, False])
async def test_they_are_shown_kept_and_brought_back(documents: bool) -> None:
    """The record has them as the model saw them; a retrieval shows them again. Documents only where it takes them."""
    profile = msgspec.structs.replace(OFFLINE, documents=documents)
    script = [call("shoot"), call("context_retrieve", tool_name="shoot"), "done"]
    model = ScriptedModel(script, profile=profile)
    agent = rp.Agent("a", tools=[shoot, *rp.context_tools()])
    async with rp.open_supervisor(None, model=model) as supervisor:
        run = await supervisor.spawn(agent, "task")
        await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
    for position in (2, 4):
        (result,) = entries[position].content
        assert isinstance(result, ToolResult)
        kinds = [type(part) for part in result.content]
        assert kinds == ([Text, Image, RawBlock] if documents else [Text, Image, Text][: 3 if position == 2 else 2])
    assert media_in(entries[2]) == ("1 image, 1 document" if documents else "1 image")
    assert IMAGE_TOKENS < entries[2].tokens < IMAGE_TOKENS + 5 * PAGE_TOKENS
