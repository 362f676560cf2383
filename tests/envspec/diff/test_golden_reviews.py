"""Reviews as people read them: `tests/data/review/*.txt` and `*.md`. Read one without looking at its case, and say what changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from envspec.diff.review import make_review
from envspec.diff.sides import Side
from envspec.lock import LockedFinding, LockedHook
from envspec.render.markdown import MOST_CHARACTERS, review_markdown
from envspec.render.page import review_page
from envspec.render.record import review_record
from envspec.render.terminal import review_lines
from envspec.spec import IndexSpec, Requirement, Waiver
from tests.support.reviews import HOSTS, altered, contents, digest_of, moved, patched, real_side, torch_sides

if TYPE_CHECKING:
    from collections.abc import Callable

    from envspec.diff.review import Review
    from envspec.spec import Spec

HEAD = "HEAD (1a2b3c4d5e)"
STEALER = "import os, base64; exec(base64.b64decode('cHJpbnQoMSk='))"

TIMEOUT = b"""\
Wait longer for a slow disk

--- a/torchvision/io/image.py
+++ b/torchvision/io/image.py
@@ -1,2 +1,2 @@
 import torch
-TIMEOUT_S = 10
+TIMEOUT_S = %d
"""
GUARD = b"""\
Refuse images of no size

--- a/torchvision/io/guard.py
+++ b/torchvision/io/guard.py
@@ -0,0 +1,3 @@
+def check(image):
+    if not image.numel():
+        raise ValueError("an image without pixels")
"""


def base(more: str = HOSTS) -> Side:
    return real_side("2.13.0", label=HEAD, more=more)


def with_packages(**specifiers: str) -> Callable[[Spec], Spec]:
    def change(spec: Spec) -> Spec:
        found = {requirement.name: requirement for requirement in spec.packages}
        found |= {name: Requirement(name=name, specifier=text) for name, text in specifiers.items()}
        return replace(spec, packages=tuple(found[name] for name in sorted(found)))

    return change


def torch() -> tuple[Side, Side]:
    return torch_sides()


def overlay_only() -> tuple[Side, Side]:
    image = b"import torch\nTIMEOUT_S = 10\n"
    old = patched(
        base(),
        "torchvision",
        {"0001-wait-longer.patch": TIMEOUT % 30},
        {"torchvision/io/image.py": (image, image.replace(b"10", b"30"))},
    )
    new = patched(
        base(),
        "torchvision",
        {"0001-wait-longer.patch": TIMEOUT % 90, "0002-refuse-no-pixels.patch": GUARD},
        {
            "torchvision/io/image.py": (image, image.replace(b"10", b"90")),
            "torchvision/io/guard.py": (None, b"def check(image):\n    if not image.numel():\n        raise\n"),
        },
    )
    return old, replace(new, label="the working tree")


def reuploaded() -> tuple[Side, Side]:
    old = base()
    return old, altered(
        old, packages={"triton": {"sha256": digest_of("other"), "tree": digest_of("x"), "size": 197_700_123}}
    )


def new_hook() -> tuple[Side, Side]:
    old = base()
    hook = LockedHook(path="fsspec_init.pth", sha256=digest_of(STEALER), code=(STEALER,))
    fields = {**moved("fsspec", "2026.11.1"), "hooks": (hook,), "size": 203_411}
    finding = LockedFinding(
        check="startup-hook",
        severity="warning",
        subject="fsspec 2026.11.1",
        message="fsspec 2026.11.1: `fsspec_init.pth` runs 1 line of code at every start of Python, and is new since the last lock",
    )
    assert old.lock is not None
    findings = tuple(sorted((*old.lock.findings, finding), key=lambda each: (each.check, each.subject, each.message)))
    new = altered(old, packages={"fsspec": fields}, findings=findings)
    known = {
        old.packages["fsspec"].sha256: contents({"fsspec/__init__.py": "1"}),
        new.packages["fsspec"].sha256: contents(
            {"fsspec/__init__.py": "2", "fsspec_init.pth": STEALER, "tools/__init__.py": "", "fsspec/_fast.so": "elf"},
            scripts=("fsspec-sync",),
        ),
    }
    return replace(old, contents=known), replace(new, contents=known)


def dropped_gpu() -> tuple[Side, Side]:
    old = base(HOSTS.replace("570.86.10", "580.95.05"))
    vision = {
        "version": "0.28.1",
        "file": "torchvision-0.28.1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "sha256": digest_of("0.28.1"),
        "tree": digest_of("tree 0.28.1"),
        "gpu_code": ("sm_90", "sm_100", "sm_120", "compute_120"),
    }
    finding = LockedFinding(
        check="gpu-code-missing",
        severity="warning",
        subject="torchvision 0.28.1",
        message="torchvision 0.28.1 has no code for compute 8.0 in 1 binary: `torchvision/_C.so`",
        waived="the A100s go at the end of the month",
    )
    waiver = Waiver(check="gpu-code-missing", package="torchvision", reason="the A100s go at the end of the month")
    assert old.lock is not None
    findings = tuple(sorted((*old.lock.findings, finding), key=lambda each: (each.check, each.subject, each.message)))

    def change(spec: Spec) -> Spec:
        return replace(with_packages(torchvision="==0.28.1")(spec), waivers=(waiver,))

    return old, altered(old, packages={"torchvision": vision}, findings=findings, waivers=(waiver,), spec=change)


def noop() -> tuple[Side, Side]:
    old = base()
    return old, replace(old, label="the working tree")


def index_moved() -> tuple[Side, Side]:
    def with_index(spec: Spec) -> Spec:
        index = IndexSpec(name="vendor", url="http://127.0.0.1/simple", packages=("pillow",))
        return replace(spec, indexes=(index,))

    old = base()
    fields = {"index": "vendor", "sha256": digest_of("pillow of the vendor"), "tree": digest_of("its tree")}
    return old, altered(old, packages={"pillow": fields, "numpy": {"index": "vendor"}}, spec=with_index)


def downgraded() -> tuple[Side, Side]:
    old = base()
    new = altered(
        old,
        packages={"numpy": moved("numpy", "1.26.4"), "zstandard": {"version": "0.25.0"}},
        spec=lambda spec: replace(spec, overrides=(Requirement(name="numpy", specifier="<2"),)),
        overrides=("numpy<2",),
    )
    return old, new


def first() -> tuple[Side, Side]:
    return Side(label=HEAD, lock=None), replace(base(), label="the working tree")


CASES = {
    case.__name__.replace("_", "-"): case
    for case in (torch, overlay_only, reuploaded, new_hook, dropped_gpu, noop, index_moved, downgraded, first)
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Review]:
    old, new = CASES[request.param]()
    return request.param, make_review(old, new, lock_name="vision.lock")


def as_text(review: Review, *, excerpts: bool = False) -> str:
    lines = (
        "".join(span.text for span in line).rstrip() for line in review_lines(review, width=100, excerpts=excerpts)
    )
    return "\n".join(lines) + "\n"


def test_review_reads_as_it_was_read(case: tuple[str, Review], golden: Callable[[str, str], None]) -> None:
    name, review = case
    golden(f"review/{name}.txt", as_text(review, excerpts=name == "overlay-only"))


def test_review_in_a_comment_reads_as_it_was_read(case: tuple[str, Review], golden: Callable[[str, str], None]) -> None:
    name, review = case
    text = review_markdown(review)
    assert len(text) < MOST_CHARACTERS
    golden(f"review/{name}.md", text)


def test_record_is_as_it_was_read(golden: Callable[[str, str], None]) -> None:
    record = review_record(make_review(*torch(), lock_name="vision.lock"))
    golden(
        "review/torch.json", json.dumps({"version": 1, **record}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def test_page_is_as_it_was_read(golden: Callable[[str, str], None]) -> None:
    golden("review/torch.html", review_page(make_review(*torch(), lock_name="vision.lock")))
