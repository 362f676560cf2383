"""Which lines of a `.pth` are those of honest packages."""

from __future__ import annotations

import pytest

from envspec.diagnosis.hooks import is_benign
from envspec.facts import StartupHook
from tests.support.observations import distribution

TRIED = (
    "import os\n\nif os.getenv('TRACER'):\n try:\n  import tracer\n except:\n  pass\n else:\n  tracer.start(slug='pth')"
)


def _is_benign(text: str) -> bool:
    hook = StartupHook(path="a1_tracer.pth", sha256="0" * 64, code=(f"import sys; exec({text!r})",))
    return is_benign(hook, distribution("tracer"))


def test_text_that_stands_in_the_line_is_read_as_the_line() -> None:
    assert _is_benign(TRIED)


@pytest.mark.parametrize(
    "text",
    [
        "import urllib.request\nurllib.request.urlopen('x')",
        "import os\n@os._exit\ndef end():\n pass",
        f"import os\nos{'.a' * 900}()",
        "exec('import tracer')",
        "import os\nif 1:\n os.environ['A'] = '1'",
        "import other",
        "if",
    ],
    ids=["fetches", "decorates", "nested-deeply", "hides-more-text", "sets-a-variable", "of-another", "cannot-be-read"],
)
def test_text_in_the_line_that_does_what_no_honest_line_does_is_told(text: str) -> None:
    assert not _is_benign(text)
