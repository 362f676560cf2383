"""The pages of a folder that serves as an index (PEP 503), for wheels that no index has."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

INDEX_NAME = "adopted"
"""What the spec calls the index that the written folder carries."""

INDEX_FOLDER = "index"


def index_page(wheels: Sequence[tuple[str, str]]) -> str:
    """The page of one project.

    Args:
        wheels: File name and sha256 of each wheel beside the page.
    """
    links = [
        f'<a href="{html.escape(quote(file))}#sha256={sha256}">{html.escape(file)}</a><br>'
        for file, sha256 in sorted(wheels)
    ]
    return "\n".join(["<!DOCTYPE html>", "<html><body>", *links, "</body></html>", ""])
