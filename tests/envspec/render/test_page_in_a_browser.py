"""The page in headless Chromium: it loads nothing, runs nothing, and its chart is where it should be, on a wide screen and a narrow one.

`PAGE_SCREENSHOT=folder pytest tests/envspec/render/test_page_in_a_browser.py` keeps the screenshots, to be looked at.
"""

from __future__ import annotations

import html
import http.server
import json
import os
import re
import shutil
import struct
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envspec.diff.review import make_review
from envspec.render.page import SHOWN_BARS, review_page
from tests.support.hostile_reviews import hostile_review
from tests.support.reviews import torch_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
LIMIT_S = 120.0

# What a layout is like can only be asked by a script, which the page's own policy forbids: it is taken out of the copy that is measured.
MEASURE = """<script>
const box = node => { const r = node.getBoundingClientRect(); return [r.left, r.right, r.width]; };
document.title = JSON.stringify({
  page: document.documentElement.scrollWidth, window: window.innerWidth,
  svg: box(document.querySelector("svg")), bars: [...document.querySelectorAll("rect.new")].map(box),
  texts: [...document.querySelectorAll("svg text")].map(box), list: document.querySelectorAll("ul.changes > li").length });
</script>"""

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Debian's `chromium`")


class Counting(http.server.BaseHTTPRequestHandler):
    requests: tuple[str, ...] = ()

    def do_GET(self) -> None:
        type(self).requests += (self.path,)
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture
def listener() -> Iterator[tuple[str, type[Counting]]]:
    """A server that should be asked for nothing: its address, and what it was asked for."""

    class Handler(Counting):
        requests: tuple[str, ...] = ()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}", Handler
        server.shutdown()
        thread.join()


def browse(page: Path, profile: Path, *arguments: str, width: int = 1200, height: int = 2400) -> str:
    """What Chromium prints of a page."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def torch_page() -> str:
    return review_page(make_review(*torch_sides(), lock_name="vision.lock"))


def measured(tmp_path: Path, width: int) -> dict[str, Any]:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", torch_page())
    page = tmp_path / f"measured-{width}.html"
    page.write_text(text.replace("</html>", MEASURE + "</html>"), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom", width=width)
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert found is not None
    value = json.loads(html.unescape(found[1]))
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("width", [1200, 500])
def test_the_chart_fits_and_its_bars_are_as_long_as_the_wheels_are_large(tmp_path: Path, width: int) -> None:
    layout = measured(tmp_path, width)
    assert layout["page"] <= layout["window"]
    left, right, _ = layout["svg"]
    assert all(left <= box[0] and box[1] <= right + 1 for box in layout["texts"])
    review = make_review(*torch_sides(), lock_name="vision.lock")
    sizes = [size.new_bytes for size in review.sizes[:SHOWN_BARS] if size.new_bytes]
    lengths = [box[2] for box in layout["bars"]]
    assert len(lengths) == len(sizes)
    scale = max(lengths) / max(sizes)
    assert all(abs(length - size * scale) <= 2 for length, size in zip(lengths, sizes, strict=True))


def test_the_page_is_drawn_whole(tmp_path: Path) -> None:
    keep = os.environ.get("PAGE_SCREENSHOT")
    folder = Path(keep).resolve() if keep else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = tmp_path / "review.html", folder / "review.png"
    page.write_text(torch_page(), encoding="utf-8")
    browse(page, tmp_path / "profile", f"--screenshot={picture}")
    content = picture.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (1200, 2400)
    assert len(content) > 100_000  # a blank page of this size takes 10 kB
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    assert "no longer qualifies" in dom
    assert dom.count('<li class="stop">') == 3


def test_a_hostile_page_asks_for_nothing_and_runs_nothing(tmp_path: Path, listener: tuple[str, type[Counting]]) -> None:
    address, handler = listener
    page = tmp_path / "hostile.html"
    text = review_page(hostile_review()).replace("127.0.0.1/x.png", f"{address}/x.png")
    # As the same texts would be without any escaping: the policy holds even then.
    bare = f'<img src="http://{address}/bare.png"><script>document.title = "ran"</script><link rel=stylesheet href="http://{address}/a.css">'
    page.write_text(text.replace("</html>", bare + "</html>"), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    assert handler.requests == ()
    assert "<title>ran</title>" not in dom
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
