"""`glibc-too-old`, `libstdcxx-too-old` and `tag-understates`, and the floors of an environment; the public report C09."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.checks import run_checks
from envspec.checks.floors import LIBSTDCXX_BESIDE, Floor, Floors, measured_floors, promised_glibc
from tests.support.facts import Row, fails, make_binary, make_closure, make_facts, make_spec, passes, waiver
from tests.support.recorded import recorded_facts

if TYPE_CHECKING:
    from envspec.facts import WheelFacts

TAG_2014 = "cp312-cp312-manylinux2014_x86_64"


def needing(*names: str, tag: str = "cp312-cp312-manylinux_2_28_x86_64", library: str = "libstdc++.so.6") -> WheelFacts:
    """A wheel `demo` with a library that needs these versions."""
    versions = {
        "libc.so.6": [name for name in names if name.startswith("GLIBC_")],
        library: [name for name in names if not name.startswith("GLIBC_")],
    }
    return make_facts("demo", tag=tag, binaries=[make_binary("demo/_C.so", versions=versions)])


SEVERAL = make_facts(
    "demo",
    binaries=[
        make_binary("demo/a.so", versions={"libc.so.6": ["GLIBC_2.36", "GLIBC_2.2.5"]}),
        make_binary("demo/b.so", versions={"libm.so.6": ["GLIBC_2.38"]}),
        make_binary("demo/c.so", versions={"libc.so.6": ["GLIBC_2.35"]}),
    ],
)
OWN_LIBSTDCXX = make_facts(
    "demo",
    tag="cp312-cp312-manylinux_2_28_x86_64",
    binaries=[
        make_binary("demo/_C.so", versions={"libstdc++.so.6": ["GLIBCXX_3.4.33"]}),
        make_binary("demo/libstdc++.so.6", soname="libstdc++.so.6"),
    ],
)

ROWS = (
    passes("glibc-too-old", "what the target has", make_closure([needing("GLIBC_2.35")])),
    passes("glibc-too-old", "no binaries", make_closure([make_facts("a")])),
    passes("glibc-too-old", "symbols that are glibc's own matter", make_closure([needing("GLIBC_PRIVATE")])),
    passes(
        "glibc-too-old",
        "a binary of another machine, which is another check's",
        make_closure(
            [make_facts("a", binaries=[make_binary("a.so", machine="aarch64", versions={"libc.so.6": ["GLIBC_2.39"]})])]
        ),
    ),
    passes(
        "glibc-too-old",
        "binaries that are all waived",
        make_closure([SEVERAL], make_spec(waivers=[waiver("glibc-too-old", "demo", path="demo/*")])),
    ),
    fails(
        "glibc-too-old",
        "more than the target has, whatever the tag says",
        make_closure([needing("GLIBC_2.36")]),
        "error",
        "demo 1.0 has 1 binary that needs GLIBC_2.36, the target has glibc 2.35: `demo/_C.so`",
    ),
    fails(
        "glibc-too-old",
        "several binaries, of which the one that needs most is named first",
        make_closure([SEVERAL]),
        "error",
        "demo 1.0 has 2 binaries that need GLIBC_2.38, the target has glibc 2.35: `demo/b.so` and `demo/a.so`",
    ),
    fails(
        "glibc-too-old",
        "the others where one is waived",
        make_closure([SEVERAL], make_spec(waivers=[waiver("glibc-too-old", "demo", path="demo/b.so")])),
        "error",
        "demo 1.0 has 1 binary that needs GLIBC_2.36, the target has glibc 2.35: `demo/a.so`",
    ),
    fails("glibc-too-old", "a mark that stands for a release", make_closure([needing("GLIBC_ABI_DT_RELR")]), "error"),
    fails("glibc-too-old", "2.9 against 2.10", make_closure([needing("GLIBC_2.10")], make_spec(glibc="2.9")), "error"),
    passes("libstdcxx-too-old", "what systems have", make_closure([needing("GLIBCXX_3.4.30", "CXXABI_1.3.13")])),
    passes("libstdcxx-too-old", "a libstdc++ of the wheel's own", make_closure([OWN_LIBSTDCXX])),
    passes(
        "libstdcxx-too-old",
        "a libstdc++ under another name",
        make_closure([needing("GLIBCXX_3.4.33", library="libstdc++-f9a1b2c3.so.6.0.33")]),
    ),
    passes(
        "libstdcxx-too-old",
        "a glibc older than the table",
        make_closure([needing("GLIBCXX_3.4.30")], make_spec(glibc="2.3")),
    ),
    passes("libstdcxx-too-old", "other marks", make_closure([needing("CXXABI_TM_1", "CXXABI_FLOAT128")])),
    fails(
        "libstdcxx-too-old",
        "more than systems have",
        make_closure([needing("GLIBCXX_3.4.32", "CXXABI_1.3.13")]),
        "warning",
        "demo 1.0 has 1 binary that needs GLIBCXX_3.4.32, systems with glibc 2.35 have GLIBCXX_3.4.30 and CXXABI_1.3.13: "
        "`demo/_C.so`",
    ),
    fails(
        "libstdcxx-too-old",
        "both families",
        make_closure([needing("GLIBCXX_3.4.29", "CXXABI_1.3.13")], make_spec(glibc="2.31")),
        "warning",
    ),
    passes("tag-understates", "what the tag allows", make_closure([needing("GLIBC_2.28", "GLIBCXX_3.4.24")])),
    passes("tag-understates", "a tag without a promise", make_closure([needing("GLIBC_2.34", tag="py3-none-any")])),
    passes(
        "tag-understates",
        "a tag for this system alone",
        make_closure([needing("GLIBC_2.34", tag="cp312-cp312-linux_x86_64")]),
    ),
    fails(
        "tag-understates",
        "a newer glibc than the tag says",
        make_closure([needing("GLIBC_2.27", tag=TAG_2014)]),
        "warning",
        "demo 1.0 is tagged for glibc 2.17 and has 1 binary that needs GLIBC_2.27: `demo/_C.so`",
    ),
    fails(
        "tag-understates",
        "a newer libstdc++ than the tag says",
        make_closure([needing("GLIBC_2.17", "GLIBCXX_3.4.22", "CXXABI_1.3.11", tag=TAG_2014)]),
        "warning",
        "demo 1.0 is tagged for glibc 2.17 and has 1 binary that needs GLIBCXX_3.4.22 and CXXABI_1.3.11: `demo/_C.so`",
    ),
    fails(
        "tag-understates",
        "the oldest of several tags",
        make_closure([needing("GLIBC_2.27", tag="cp312-cp312-manylinux_2_17_x86_64.manylinux_2_28_x86_64")]),
        "warning",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def found(check: str, wheel: str, glibc: str = "2.35") -> list[tuple[str, str]]:
    closure = make_closure([recorded_facts(wheel)], make_spec(glibc=glibc))
    return [(each.severity, each.message) for each in run_checks(closure).findings if each.check == check]


def test_c09_sgl_deep_gemm_needs_more_than_its_tag_says() -> None:
    [(severity, message)] = found("tag-understates", "sgl-deep-gemm-0.2.3.post2")
    assert severity == "warning"
    assert message == (
        "sgl-deep-gemm 0.2.3.post2 is tagged for glibc 2.17 and has 1 binary that needs GLIBC_2.26, GLIBCXX_3.4.21 and "
        "CXXABI_1.3.9: `deep_gemm/_C.so`"
    )


def test_c09_sgl_kernel_needs_more_than_its_tag_says() -> None:
    [(severity, message)] = found("tag-understates", "sgl-kernel-0.3.21")
    assert severity == "warning"
    assert message.startswith("sgl-kernel 0.3.21 is tagged for glibc 2.17 and has ")
    assert "GLIBC_2.27, GLIBCXX_3.4.22" in message


def test_c09_what_counts_for_the_target_is_what_the_binaries_need() -> None:
    assert found("glibc-too-old", "sgl-deep-gemm-0.2.3.post2", "2.26") == []
    [(severity, message)] = found("glibc-too-old", "sgl-deep-gemm-0.2.3.post2", "2.17")
    assert severity == "error"
    assert message == (
        "sgl-deep-gemm 0.2.3.post2 has 1 binary that needs GLIBC_2.26, the target has glibc 2.17: `deep_gemm/_C.so`"
    )


def test_c09_honest_tag_passes() -> None:
    assert found("tag-understates", "torch-2.11.0") == []
    assert found("glibc-too-old", "sglang-0.5.11", "2.34") == []
    assert [severity for severity, _ in found("glibc-too-old", "sglang-0.5.11", "2.31")] == ["error"]


def test_floors_name_the_binary_that_needs_most() -> None:
    wheels = [recorded_facts(name) for name in ("torch-2.11.0", "sglang-0.5.11", "sglang-kernel-0.4.2")]
    floors = measured_floors(make_closure(wheels))
    assert floors.glibc == Floor(
        version="2.34",
        label="sglang 0.5.11",
        package="sglang",
        path="sglang/srt/grpc/_core.cpython-312-x86_64-linux-gnu.so",
    )
    assert floors.glibcxx is not None
    assert floors.cxxabi is not None
    assert (floors.glibcxx.version, floors.cxxabi.version) == ("3.4.22", "1.3.11")
    assert measured_floors(make_closure(wheels[::-1])) == floors


def test_floors_of_sources_alone_are_none() -> None:
    assert measured_floors(make_closure([make_facts("a")])) == Floors()


@pytest.mark.parametrize(
    ("tag", "promised"),
    [
        ("py3-none-any", None),
        ("cp312-cp312-linux_x86_64", None),
        ("cp312-cp312-musllinux_1_2_x86_64", None),
        ("cp312-cp312-manylinux1_x86_64", (2, 5)),
        ("cp312-cp312-manylinux2010_x86_64", (2, 12)),
        ("cp312-cp312-manylinux2014_aarch64", (2, 17)),
        ("cp312-cp312-manylinux_2_28_x86_64", (2, 28)),
        ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64", (2, 17)),
    ],
)
def test_tag_promises_the_oldest_glibc_that_it_names(tag: str, promised: tuple[int, int] | None) -> None:
    assert promised_glibc(f"demo-1.0-{tag}.whl") == promised


def test_name_that_is_no_wheels_promises_nothing() -> None:
    assert promised_glibc("demo.tar.gz") is None


def test_aarch64_wheel_for_2_17_may_need_what_centos_7_had() -> None:
    def understates(version: str) -> bool:
        binary = make_binary("d.so", machine="aarch64", versions={"libc.so.6": [version]})
        facts = make_facts("d", tag="cp312-cp312-manylinux2014_aarch64", binaries=[binary])
        closure = make_closure([facts], make_spec(platform="linux-aarch64"))
        return "tag-understates" in {each.check for each in run_checks(closure).findings}

    assert not understates("GLIBC_2.18")
    assert understates("GLIBC_2.19")


def test_libstdcxx_never_gets_older_with_a_newer_glibc() -> None:
    assert list(LIBSTDCXX_BESIDE) == sorted(LIBSTDCXX_BESIDE)
    assert [row[2] for row in LIBSTDCXX_BESIDE] == sorted(row[2] for row in LIBSTDCXX_BESIDE)


@given(st.lists(st.text(max_size=30) | st.from_regex(r"(GLIBC|GLIBCXX|CXXABI)_[0-9.]{0,30}"), max_size=5))
def test_any_version_that_a_file_names_is_judged_without_raising(names: list[str]) -> None:
    odd = make_facts("a", binaries=[make_binary("a.so", versions={"libstdc++.so.6": names})])
    closure = make_closure([odd], make_spec(glibc="2.35"))
    assert {each.check for each in run_checks(closure).findings} <= {"glibc-too-old", "libstdcxx-too-old"}
    measured_floors(closure)
