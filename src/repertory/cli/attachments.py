"""Files that are attached to a task or a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repertory.cli.options import option
from repertory.errors import ConfigurationError
from repertory.tools.media import MOST_DOCUMENT, Media, media_block

ATTACH = option("--attach FILE", "An image or a PDF document that the model is shown with it. May be repeated.", ())


def read_attachments(paths: Sequence[Path]) -> list[Media]:
    """Read files as blocks for a model. Raises ``ConfigurationError`` if one cannot be read or shown."""
    blocks: list[Media] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(MOST_DOCUMENT)  # a device may have no end
            if len(data) == MOST_DOCUMENT:  # of base64, which is longer
                raise ValueError(f"it is too large: at most {MOST_DOCUMENT * 3 // 4:,} bytes can be sent")
            blocks.append(media_block(data, title=path.name))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"--attach {path}: {why}") from error
    return blocks
