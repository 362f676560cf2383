"""The report says what is explained and what not, and nothing of the venv acts as Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from envspec.adoption.report import adoption_to_json, percent, report_markdown, shares, summary_lines
from envspec.adoption.values import Adoption, Attribution, Collision, Conflict, Fate, Pin, Refusal
from tests.support.adoptions import distribution, published


def adoption(fates: tuple[Fate, ...], **more: object) -> Adoption:
    values: dict[str, object] = {
        "name": "demo",
        "prefix": "/srv/venv",
        "host": "",
        "attributions": (
            Attribution(distribution=distribution("demo", "1.0", {}), wheel=published("demo", "1.0", {})),
        ),
        "fates": fates,
        "overlays": (),
        "pins": (Pin(name="demo", version="1.0", wanted=True),),
        "conflicts": (),
        "collisions": (),
    }
    return Adoption(**{**values, **more})  # type: ignore[arg-type]


FATES = (
    Fate("a", "same", 10, "demo"),
    Fate("b", "made", 5, "demo", "an installer writes it"),
    Fate("c", "patched", 5, "demo", "an edited file"),
    Fate("d", "deleted", 0, "demo", "gone"),
    Fate("e", "foreign", 20, "demo", "of other 1.0", "pin it", "other.whl"),
    Fate("f", "unexplained", 40, "", "nobody's", "make a wheel"),
    Fate("g", "restored", 0, "demo", "not there"),
)


def test_shares_are_of_what_the_venv_has() -> None:
    assert shares(FATES) == (3, 5, 20, 80)


@pytest.mark.parametrize(
    ("part", "whole", "shown"), [(0, 3, "0.00"), (1, 3, "33.33"), (56_667, 56_668, "99.99"), (3, 3, "100")]
)
def test_share_says_100_only_for_all(part: int, whole: int, shown: str) -> None:
    assert percent(part, whole) == shown


def test_summary_names_each_group_once_with_its_reason() -> None:
    lines = summary_lines(adoption((*FATES, Fate("f2", "unexplained", 1, "", "nobody's", "make a wheel"))))
    assert [line for line in lines if line.startswith(("foreign", "unexplained", "restored"))] == [
        "foreign    demo: e: of other 1.0",
        "unexplained 2 files, f first: nobody's",
        "restored   demo: g: not there",
    ]


HOSTILE = st.text(max_size=30)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_texts_of_the_venv_never_act_as_markdown(path: str, reason: str, name: str) -> None:
    hostile = adoption(
        (
            Fate(path, "unexplained", 1, "", f"it is `{reason}`", f"do {name}"),
            Fate(f"x{path}", "foreign", 1, name, reason),
        ),
        prefix=f"/srv/{path}",
        conflicts=(Conflict(requester=name, line=reason, name=name, version=""),),
        collisions=(Collision(path=path, owner="demo", packages=("demo", "other")),),
        refusals=(Refusal(check="yanked", message=reason, fix=name),),
        notes=(f"`{path}` {reason}",),
    )
    text = report_markdown(hostile)
    kinds = {token.type for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)}
    inner = {
        child.type
        for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
        for child in token.children or ()
    }
    assert not {kind for kind in kinds | inner if "html" in kind or "link" in kind or "image" in kind}
    assert text.count("\n# ") == 0
    assert all(char.isprintable() or char == "\n" for char in text)


@given(HOSTILE)
def test_json_has_no_control_characters(path: str) -> None:
    record = adoption_to_json(adoption((Fate(path, "unexplained", 1, "", path),)), folder="/out", spec="demo.toml")
    assert all(char.isprintable() or char == "\n" for char in str(record["paths"][0]["path"]))
