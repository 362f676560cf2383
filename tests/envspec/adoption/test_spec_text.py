"""The spec of an adoption is one that the reader of specs reads back, whatever names and paths the venv has."""

from __future__ import annotations

import fnmatch

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from envspec.adoption.requirements import Needs, find_needs, make_pins, target_markers
from envspec.adoption.spec_text import AdoptedHost, SpecParts, comment, glob_escaped, is_pinnable, spec_text
from envspec.adoption.target import AdoptedTarget
from envspec.adoption.values import Attribution, Collision, Conflict, Pin
from envspec.spec_toml import parse_spec
from tests.support.adoptions import distribution, published

TARGET = AdoptedTarget(
    python="3.12",
    python_exact="3.12.3",
    platform="linux-x86_64",
    glibc="2.36",
    cuda_toolkit="13.0",
    compute=("12.0",),
    notes=(),
)
NO_NEEDS = Needs(conflicts=(), needed=frozenset(), extras={})
MARKERS = target_markers("3.12.3", "linux-x86_64")


def parts(**changes: object) -> SpecParts:
    values: dict[str, object] = {
        "name": "demo",
        "target": TARGET,
        "libraries": (),
        "pins": (Pin(name="torch", version="2.11.0", wanted=True),),
        "needs": NO_NEEDS,
        "overlays": (),
        "indexes": (),
        "collisions": (),
    }
    return SpecParts(**{**values, **changes})  # type: ignore[arg-type]


def test_spec_says_what_the_machine_is_and_pins_everything() -> None:
    text = spec_text(
        parts(
            libraries=("libnuma.so.1",),
            pins=(
                Pin(name="numpy", version="2.3.5", wanted=False),
                Pin(name="own", version="1.0", wanted=False, stands_in=True),
                Pin(name="torch", version="2.11.0+cu130", wanted=True, index="cu130"),
            ),
            host=AdoptedHost(name="ct129", compute="12.0", gpus=8, venv="/srv/venv"),
        )
    )
    spec = parse_spec(text, input_name="demo.toml")
    assert {each.name: each.specifier for each in spec.packages} == {
        "numpy": "==2.3.5",
        "own": "==1.0",
        "torch": "==2.11.0+cu130",
    }
    assert spec.target.libraries == ("libnuma.so.1",)
    assert spec.cuda is not None
    assert (spec.cuda.toolkit, spec.cuda.compute) == ("13.0", ("12.0",))
    (host,) = spec.hosts
    assert (host.name, host.gpus, host.compute, host.reuse) == ("ct129", 8, "12.0", ("/srv/venv",))
    assert (
        text.index("torch")
        < text.index("# Needed by")
        < text.index("numpy")
        < text.index("# Needed too")
        < text.index("own")
    )


TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@given(
    TEXT,
    TEXT,
    st.text(max_size=40).filter(
        lambda text: not any(ord(char) < 32 or ord(char) == 127 for char in text) and text.isprintable()
    ),
)
def test_hostile_texts_stay_in_comments_and_strings(line: str, requester: str, path: str) -> None:
    needs = Needs(
        conflicts=(Conflict(requester=requester, line=line, name="torch", version="2.11.0"),),
        needed=frozenset({"torch"}),
        extras={"torch": ("opt",)},
    )
    collisions = (Collision(path=path or "x", owner="torch", packages=("numpy", "torch")),)
    read = tomllib.loads(spec_text(parts(needs=needs, collisions=collisions)))
    assert set(read) == {"envspec", "name", "python", "target", "cuda", "packages", "overrides", "waivers"}
    assert read["packages"] == {"torch": "==2.11.0"}
    assert read["overrides"] == {"torch": {"version": "==2.11.0", "extras": ["opt"]}}
    assert fnmatch.fnmatchcase(path or "x", read["waivers"][0]["path"])


@given(TEXT)
def test_comment_is_one_line(text: str) -> None:
    assert len(comment(text).splitlines()) == 1


@given(st.text("ab*?[]!", max_size=6), st.text("ab*?[]!", max_size=6))
def test_escaped_pattern_matches_its_path_and_no_other(path: str, other: str) -> None:
    assert fnmatch.fnmatchcase(path, glob_escaped(path))
    assert fnmatch.fnmatchcase(other, glob_escaped(path)) == (path == other)


@pytest.mark.parametrize(
    ("name", "version", "good"),
    [
        ("torch", "2.11.0", True),
        ("torch", "2.11.0+cu130", True),
        ("torch", "latest", False),
        ("../x", "1", False),
        ("a\nb", "1", False),
        ("", "1", False),
    ],
)
def test_only_names_and_versions_that_are_some_can_be_pinned(name: str, version: str, *, good: bool) -> None:
    assert is_pinnable(name, version) is good


def test_requirements_that_do_not_hold_are_found_with_extras_and_markers() -> None:
    wheels = {
        "app": published(
            "app",
            "1.0",
            {},
            requires_dist=(
                "lib[fast]>=2",
                "gone",
                'winonly; sys_platform == "win32"',
                "not a requirement!!",
                'x; python_version < "3"',
            ),
        ),
        "lib": published(
            "lib",
            "1.5",
            {},
            requires_dist=('turbo==3; extra == "fast"', 'slow==1; extra == "slow"', "app>=1"),
            provides_extra=("fast", "slow"),
        ),
        "turbo": published("turbo", "4.0", {}),
    }
    needs = find_needs(wheels, {"gone": "0.1"}, MARKERS)
    assert [(each.requester, each.name, each.version, each.there) for each in needs.conflicts] == [
        ("app 1.0", "gone", "", "0.1"),
        ("app 1.0", "lib", "1.5", ""),
        ("lib 1.5", "turbo", "4.0", ""),
    ]
    assert needs.extras == {"lib": ("fast",)}
    assert needs.needed == {"lib", "gone", "turbo", "app"}


def test_what_nobody_needs_or_somebody_asked_for_is_wanted() -> None:
    wheels = {
        name: published(name, "1", {}, requires_dist=requires)
        for name, requires in (("app", ("lib",)), ("lib", ()), ("aside", ()))
    }
    needs = find_needs(wheels, {}, MARKERS)

    def wanted(*requested: str) -> set[str]:
        attributions = [
            Attribution(distribution=distribution(name, "1", {}, requested=name in requested), wheel=wheel)
            for name, wheel in wheels.items()
        ]
        return {pin.name for pin in make_pins(attributions, wheels, needs, {}) if pin.wanted}

    assert wanted() == {"app", "aside"}
    assert wanted("lib") == {"app", "aside", "lib"}
    assert wanted("app", "aside", "lib") == {"app", "aside"}, "as uv leaves it: then it says nothing"
