"""`requires-dist` and `requires-python`."""

from __future__ import annotations

import pytest

from tests.support.facts import Row, fails, make_closure, make_facts, make_spec, passes

TORCH = make_facts("torch", "2.11.0")


ROWS = (
    passes(
        "requires-dist", "a requirement that holds", make_closure([TORCH, make_facts("app", requires=["torch>=2"])])
    ),
    fails(
        "requires-dist",
        "the origin story: torchvision of another torch",
        make_closure([TORCH, make_facts("torchvision", "0.24.1", requires=["torch (==2.9.1)"])]),
        "error",
        "torchvision 0.24.1 requires `torch==2.9.1`, the lock has torch 2.11.0",
    ),
    fails(
        "requires-dist",
        "a package that is missing",
        make_closure([make_facts("sglang", "0.5.9", requires=["pybase64"])]),
        "error",
        "sglang 0.5.9 requires `pybase64`, the lock has no pybase64",
    ),
    passes(
        "requires-dist",
        "a pin without local part and a version with one",
        make_closure([make_facts("torch", "2.11.0+cu130"), make_facts("app", requires=["torch==2.11.0"])]),
    ),
    fails(
        "requires-dist",
        "a pin with a local part and a version with another",
        make_closure([make_facts("torch", "2.11.0+cu130"), make_facts("app", requires=["torch==2.11.0+cu128"])]),
        "error",
        "app 1.0 requires `torch==2.11.0+cu128`, the lock has torch 2.11.0+cu130",
    ),
    passes(
        "requires-dist",
        "a prerelease",
        make_closure([make_facts("flash", "4.0.0b4"), make_facts("app", requires=["flash>=3"])]),
    ),
    passes(
        "requires-dist",
        "a name that is written otherwise",
        make_closure([make_facts("Apache_TVM.ffi"), make_facts("app", requires=["Apache.TVM__ffi"])]),
    ),
    passes(
        "requires-dist",
        "markers of other machines, Pythons and systems",
        make_closure(
            [
                make_facts(
                    "app",
                    requires=[
                        'a; sys_platform == "win32"',
                        'b; platform_machine == "aarch64"',
                        'c; python_version < "3.12"',
                        'd; platform_python_implementation == "PyPy"',
                        'e; os_name == "nt"',
                        'f; implementation_name == "pypy"',
                        'g; platform_system == "Darwin"',
                        'h; python_full_version < "3.12.0"',
                        'i; extra == "never"',
                    ],
                )
            ]
        ),
    ),
    fails(
        "requires-dist",
        "a marker of the target",
        make_closure([make_facts("app", requires=['a; sys_platform == "linux" and platform_machine == "x86_64"'])]),
        "error",
    ),
    fails(
        "requires-dist",
        "a marker of an exact Python",
        make_closure([make_facts("app", requires=['a; python_full_version >= "3.12.3"'])], make_spec(exact="3.12.3")),
        "error",
    ),
    fails(
        "requires-dist",
        "a marker of an aarch64 target",
        make_closure(
            [make_facts("app", requires=['a; platform_machine == "aarch64"'])], make_spec(platform="linux-aarch64")
        ),
        "error",
    ),
    passes(
        "requires-dist",
        "an extra that nobody asks for",
        make_closure([make_facts("app", requires=['a; extra == "fast"'])], make_spec(["app"])),
    ),
    fails(
        "requires-dist",
        "an extra that the spec asks for",
        make_closure([make_facts("app", requires=['a; extra == "fast"'])], make_spec(["app[fast]"])),
        "error",
        "app 1.0 requires `a`, the lock has no a",
    ),
    fails(
        "requires-dist",
        "an extra of an extra, through a requirement of the package on itself",
        make_closure(
            [
                make_facts("app", requires=['app[Fast_Path]; extra == "all"', 'tool[x]; extra == "fast-path"']),
                make_facts("tool", requires=['deep; extra == "x"']),
            ],
            make_spec(["app[all]"]),
        ),
        "error",
        "tool 1.0 requires `deep`, the lock has no deep",
    ),
    passes(
        "requires-dist",
        "extras that ask for each other in a circle",
        make_closure(
            [
                make_facts("one", requires=['two[b]; extra == "a"']),
                make_facts("two", requires=['one[a]; extra == "b"']),
            ],
            make_spec(["one[a]"]),
        ),
    ),
    fails(
        "requires-dist",
        "a package of the spec in another version",
        make_closure([make_facts("torch", "2.10.0")], make_spec(["torch==2.11.0"])),
        "error",
        "the spec asks for `torch==2.11.0`, the lock has torch 2.10.0",
    ),
    passes(
        "requires-dist",
        "an override that replaces what others ask for",
        make_closure(
            [make_facts("numpy", "2.3.5"), make_facts("app", requires=["numpy<2"])],
            make_spec(["app"], overrides=["numpy==2.3.5"]),
        ),
    ),
    fails(
        "requires-dist",
        "a version outside of the override, asked for twice",
        make_closure(
            [
                make_facts("numpy", "1.26.4"),
                make_facts("app", requires=["numpy<2"]),
                make_facts("tool", requires=["numpy"]),
            ],
            make_spec(["app"], overrides=["numpy==2.3.5"]),
        ),
        "error",
        "the override asks for `numpy==2.3.5`, the lock has numpy 1.26.4",
    ),
    passes(
        "requires-dist",
        "an override of a package that nobody asks for",
        make_closure([make_facts("app")], make_spec(["app"], overrides=["numpy==2.3.5"])),
    ),
    passes(
        "requires-dist",
        "an override without the extra that it replaces",
        make_closure(
            [make_facts("app", requires=["tool[x]"]), make_facts("tool", requires=['deep; extra == "x"'])],
            make_spec(["app"], overrides=["tool==1.0"]),
        ),
    ),
    passes(
        "requires-dist",
        "an override without the extra that the spec asks for",
        make_closure(
            [make_facts("tool", requires=['deep; extra == "x"'])], make_spec(["tool[x]"], overrides=["tool==1.0"])
        ),
    ),
    fails(
        "requires-dist",
        "a bound with more digits than Python converts",
        make_closure([TORCH, make_facts("app", requires=[f"torch>={'9' * 5000}"])]),
        "error",
    ),
    fails(
        "requires-dist",
        "an override with an extra",
        make_closure(
            [make_facts("app", requires=["tool"]), make_facts("tool", requires=['deep; extra == "x"'])],
            make_spec(["app"], overrides=["tool[x]==1.0"]),
        ),
        "error",
        "tool 1.0 requires `deep`, the lock has no deep",
    ),
    fails(
        "requires-dist",
        "a requirement that cannot be read",
        make_closure([make_facts("app", requires=["torch ~ 2"])]),
        "error",
        "app 1.0 has a requirement that cannot be read: `torch ~ 2`",
    ),
    fails(
        "requires-dist",
        "a requirement of an extra that cannot be read",
        make_closure([make_facts("app", requires=["torch ~ 2; extra == 'old'"])]),
        "warning",
    ),
    fails(
        "requires-dist",
        "a marker that nests deeper than any reader",
        make_closure([make_facts("app", requires=["a; " + "(" * 5000 + "os_name == 'nt'" + ")" * 5000])]),
        "error",
    ),
    fails(
        "requires-dist",
        "a marker that cannot be judged",
        make_closure([make_facts("app", requires=["a; 'x' ~= os_name"])]),
        "error",
        "app 1.0 has a requirement that cannot be read: `a; 'x' ~= os_name`",
    ),
    passes(
        "requires-dist",
        "a requirement by URL of a package that is there",
        make_closure([TORCH, make_facts("app", requires=["torch @ https://user:secret@host.invalid/torch.whl"])]),
    ),
    passes("requires-python", "no Requires-Python", make_closure([make_facts("app")])),
    passes("requires-python", "a Python that fits", make_closure([make_facts("app", requires_python=">=3.10, <4")])),
    fails(
        "requires-python",
        "an older minor version",
        make_closure([make_facts("app", requires_python=">=3.13")]),
        "error",
        "app 1.0 requires Python `>=3.13`, the spec has 3.12",
    ),
    fails(
        "requires-python",
        "an exact Python that is excluded",
        make_closure(
            [make_facts("torchvision", "0.29.1", requires_python=">=3.10,!=3.14.1", python="3.14")],
            make_spec(python="3.14", exact="3.14.1"),
        ),
        "error",
        "torchvision 0.29.1 requires Python `>=3.10,!=3.14.1`, the spec has 3.14.1",
    ),
    passes(
        "requires-python",
        "the exact Python after the one that is excluded",
        make_closure(
            [make_facts("torchvision", "0.29.1", requires_python=">=3.10,!=3.14.1", python="3.14")],
            make_spec(python="3.14", exact="3.14.2"),
        ),
    ),
    fails(
        "requires-python",
        "one patch level that is excluded",
        make_closure(
            [make_facts("torchvision", "0.29.1", requires_python=">=3.10,!=3.14.1", python="3.14")],
            make_spec(python="3.14"),
        ),
        "warning",
        "torchvision 0.29.1 excludes Python 3.14.1",
    ),
    fails(
        "requires-python",
        "several runs of patch levels that are excluded",
        make_closure([make_facts("app", requires_python=">=3.12.4,!=3.12.6,<3.12.9")]),
        "warning",
        "app 1.0 excludes Python 3.12.0 to 3.12.3, 3.12.6 and 3.12.9 and later",
    ),
    fails(
        "requires-python",
        "a Requires-Python that cannot be read",
        make_closure([make_facts("app", requires_python=">=3.6.*")]),
        "warning",
        "app 1.0 has a `Requires-Python` that cannot be read: `>=3.6.*`",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_evidence_quotes_the_line_and_the_extra_that_brought_it() -> None:
    closure = make_closure([make_facts("app", requires=['a>1; extra == "fast"'])], make_spec(["app[fast]"]))
    (finding,) = fails("requires-dist", "", closure, "error").findings()
    assert finding.evidence == (
        'app-1.0-py3-none-any.whl METADATA: Requires-Dist: a>1; extra == "fast" (extra `fast`)',
    )
    assert finding.packages == ("app", "a")


def test_password_in_a_requirement_is_not_shown() -> None:
    closure = make_closure([make_facts("app", requires=["torch @ https://user:secret@host.invalid/torch.whl"])])
    (finding,) = fails("requires-dist", "", closure, "error").findings()
    assert finding.message == "app 1.0 requires `torch`, the lock has no torch"
    assert "secret" not in repr(finding)


def test_each_requirement_is_one_finding() -> None:
    closure = make_closure([make_facts("app", requires=["a", "b", "a", "a; python_version > '3'"])])
    found = fails("requires-dist", "", closure, "error").findings()
    assert [finding.message.split("`")[1] for finding in found] == ["a", "a", "b"]
