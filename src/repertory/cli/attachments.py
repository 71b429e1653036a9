"""Files that are attached to a task or a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repertory.cli.options import option
from repertory.errors import ConfigurationError
from repertory.tools.media import Media, media_block

ATTACH = option("--attach FILE", "An image or a PDF document that the model is shown with it. May be repeated.", ())


def read_attachments(paths: Sequence[Path]) -> list[Media]:
    """Read files as blocks for a model. Raises ``ConfigurationError`` if one cannot be read or shown."""
    blocks: list[Media] = []
    for path in paths:
        try:
            blocks.append(media_block(path.read_bytes(), title=path.name))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"--attach {path}: {why}") from error
    return blocks
