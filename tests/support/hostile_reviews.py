"""Texts that try to be more than text: for a terminal, for Markdown, for HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from envspec.diff.review import make_review
from envspec.lock import LockedFinding, LockedHook
from envspec.spec import Waiver
from tests.support.reviews import digest_of, patched, real_side

if TYPE_CHECKING:
    from envspec.diff.review import Review

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07 gone",
    "a\u202eb\u2066c\ufeff",
    "@everyone ![x](http://127.0.0.1/x.png) [y](javascript:alert(1)) #1 GH-2 !3 ~4 :tada:",
    "</code></pre></details><script>alert(1)</script><img src=x onerror=alert(1)>",
    "`` ` ``` ```` @someone",
    "```\n# heading\n- [ ] task\n",
    "a | b | c \\| d || e",
    "&lt;b&gt; &#64;someone $x^2$ ~~no~~ __yes__ **yes** <!-- -->",
    "www.example.invalid and ftp://example.invalid/",
    "\r\n\u2028\u2029\x00\x7f\x85",
    '" onmouseover="alert(1)',
    "' \" ` < > &",
)

UNUSABLE = re.compile(r"[^ -~]|/|\\")
"""What a path in a lock cannot have."""


def hostile_review() -> Review:
    """A review with every hostile text wherever a lock, a patch or a file may have any text."""
    base = real_side("2.13.0", label="HEAD")
    hooks = tuple(
        LockedHook(path=f"a{number}.pth", sha256=digest_of(text), code=(text,)) for number, text in enumerate(HOSTILE)
    )
    findings = tuple(
        LockedFinding(check="a-check", severity="warning", subject=text, message=text, waived=text) for text in HOSTILE
    )
    waivers = tuple(
        Waiver(check=f"check-{number}", package="numpy", path=text, reason=text)
        for number, text in enumerate(text for text in HOSTILE if "\x00" not in text)
    )
    old = patched(base, "numpy", {"0001-a.patch": b"x"}, {"numpy/a.py": (b"a", b"b")})
    patch = "\n".join(HOSTILE).encode()
    files: dict[str, tuple[bytes | None, bytes | None]] = {
        f"numpy/{number} {UNUSABLE.sub('', text)}.py": (b"a", patch) for number, text in enumerate(HOSTILE)
    }
    changed = patched(base, "numpy", {"0001 <b>@you`.patch": patch}, files)
    assert changed.lock is not None
    packages = tuple(
        replace(package, hooks=hooks) if package.name == "numpy" else package for package in changed.lock.packages
    )
    lock = replace(changed.lock, packages=packages, findings=findings, waivers=waivers)
    new = replace(changed, lock=lock, label=HOSTILE[3])
    return make_review(replace(old, label=HOSTILE[0]), new, lock_name=HOSTILE[2])
