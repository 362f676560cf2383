"""Which GPU code runs on which compute capability."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.gpu import (
    Capability,
    Code,
    Coverage,
    coverage,
    has_native_code_of_major,
    how_any_runs,
    how_code_runs,
    parse_capability,
    parse_code,
    sorted_codes,
)

CAPABILITIES = ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")

# Code -> where it runs natively, and where the driver has to compile it.
RULES = {
    "sm_75": ("7.5", ""),
    "sm_80": ("8.0 8.6 8.7 8.9", ""),
    "sm_86": ("8.6 8.7 8.9", ""),
    "sm_90": ("9.0", ""),
    "sm_90a": ("9.0", ""),
    "sm_100": ("10.0 10.3", ""),
    "sm_100a": ("10.0", ""),
    "sm_100f": ("10.0 10.3", ""),
    "sm_103": ("10.3", ""),
    "sm_103a": ("10.3", ""),
    "sm_103f": ("10.3", ""),
    "sm_120": ("12.0 12.1", ""),
    "sm_120a": ("12.0", ""),
    "sm_120f": ("12.0 12.1", ""),
    "sm_121": ("12.1", ""),
    "compute_89": ("", "8.9 9.0 10.0 10.3 11.0 12.0 12.1"),
    "compute_90a": ("", "9.0"),
    "compute_100": ("", "10.0 10.3 11.0 12.0 12.1"),
    "compute_100f": ("", "10.0 10.3"),
    "compute_120": ("", "12.0 12.1"),
    "compute_121": ("", "12.1"),
    "kind-7": ("", ""),
    "sm_": ("", ""),
}


@pytest.mark.parametrize("code", RULES)
def test_code_runs_where_the_rules_say(code: str) -> None:
    native, jit = ([], [])  # type: tuple[list[str], list[str]]
    for capability in CAPABILITIES:
        how = how_code_runs(code, parse_capability(capability))
        if how is not None:
            (native if how == "native" else jit).append(capability)
    assert (" ".join(native), " ".join(jit)) == RULES[code]


def test_codes_are_parsed() -> None:
    assert parse_code("sm_100f") == Code(True, Capability(10, 0), "f")  # noqa: FBT003
    assert parse_code("compute_90a") == Code(False, Capability(9, 0), "a")  # noqa: FBT003
    assert [parse_code(name) for name in ("sm_9", "sm_90b", "sm_90a ", "lto_90", "", "sm_\u0669\u0660")] == [None] * 6


@pytest.mark.parametrize("text", ["12", "12.", "12.10", "a.b", "", "-1.0"])
def test_text_that_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no compute capability"):
        parse_capability(text)


def test_machine_code_is_preferred_to_ptx() -> None:
    assert how_any_runs(["compute_90", "sm_90"], Capability(9, 0)) == "native"
    assert how_any_runs(["compute_90", "sm_90"], Capability(10, 0)) == "jit"
    assert how_any_runs(["compute_90", "sm_90"], Capability(8, 9)) is None
    assert how_any_runs([], Capability(9, 0)) is None


def test_pieces_are_counted_by_how_they_run() -> None:
    pieces = ((("sm_90",), 3), (("compute_80", "sm_80"), 2), (("sm_80",), 5), (("kind-9",), 1))
    covered = coverage(pieces, Capability(9, 0))
    assert covered == Coverage(native=3, jit=2, missing=6)
    assert covered.total == 11
    assert covered.runs
    assert not coverage([], Capability(9, 0)).runs


def test_native_code_of_a_major_is_seen() -> None:
    assert has_native_code_of_major(["sm_120a"], 12)
    assert not has_native_code_of_major(["compute_120", "sm_90", "kind-1"], 12)


def test_codes_are_listed_as_a_person_does() -> None:
    shuffled = ["compute_90", "sm_120a", "sm_90", "sm_100f", "kind-3", "sm_90a", "sm_90"]
    assert sorted_codes(shuffled) == ["sm_90", "sm_90a", "sm_100f", "sm_120a", "compute_90", "kind-3"]


@given(st.integers(5, 30), st.integers(0, 9), st.sampled_from(["", "a", "f"]), st.sampled_from(["sm", "compute"]))
def test_code_runs_on_the_capability_that_it_was_made_for(major: int, minor: int, suffix: str, kind: str) -> None:
    own = Capability(major, minor)
    assert how_code_runs(f"{kind}_{own.number}{suffix}", own) == ("native" if kind == "sm" else "jit")
    assert parse_capability(str(own)) == own


@given(st.integers(5, 30), st.integers(0, 9), st.integers(5, 30), st.integers(0, 9))
def test_suffix_never_makes_code_run_on_more(major: int, minor: int, gpu_major: int, gpu_minor: int) -> None:
    code, gpu = Capability(major, minor).number, Capability(gpu_major, gpu_minor)
    for kind in ("sm", "compute"):
        plain, family, only = (how_code_runs(f"{kind}_{code}{suffix}", gpu) for suffix in ("", "f", "a"))
        assert only is None or only == family
        assert family is None or family == plain
