"""Waivers, the order of findings, and what holds for any facts whatever."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.checks import Closure, ClosureWheel, apply_waivers, run_checks
from envspec.checks.verdict import strictly
from envspec.facts import Anomaly, Finding, InstalledFile, StartupHook, WheelFacts
from envspec.lock import LockedHook, LockedPackage
from envspec.spec import PolicyRule, PythonSpec, Requirement, Spec, Waiver
from tests.support.facts import Row, fails, make_closure, make_facts, make_spec, passes, waiver

LINK = make_facts("links", anomalies=[("symlink-member", "links/x.so", "a link")])
COLLIDING = [make_facts(name, files={"x.py": name}) for name in ("a", "b")]


def under(*rules: tuple[str, str]) -> Spec:
    """A spec with a policy: check -> severity."""
    policy = tuple(PolicyRule(check=check, severity=severity) for check, severity in rules)
    return replace(make_spec(), policy=policy)


ROWS = (
    passes("unused-waiver", "no waivers", make_closure([LINK])),
    passes(
        "unused-waiver",
        "a waiver of use",
        make_closure([LINK], make_spec(waivers=[waiver("symlink-member", "links", path="links/*.so")])),
    ),
    passes(
        "unused-waiver",
        "two waivers for the same finding",
        make_closure([LINK], make_spec(waivers=[waiver("symlink-member", "links")] * 2)),
    ),
    fails(
        "unused-waiver",
        "another path",
        make_closure([LINK], make_spec(waivers=[waiver("symlink-member", "links", path="links/y.so")])),
        "warning",
        "waiver of `symlink-member` for links at `links/y.so` has no effect: it matches no finding",
    ),
    fails(
        "unused-waiver",
        "a path in other letters",
        make_closure([LINK], make_spec(waivers=[waiver("symlink-member", "links", path="LINKS/*")])),
        "warning",
    ),
    fails(
        "unused-waiver",
        "another check",
        make_closure([LINK], make_spec(waivers=[waiver("path-escape", "links")])),
        "warning",
        "waiver of `path-escape` for links has no effect: it matches no finding",
    ),
    fails(
        "unused-waiver",
        "a check that does not exist",
        make_closure([LINK], make_spec(waivers=[waiver("symlinks-member", "links")])),
        "warning",
        "waiver of `symlinks-member` for links has no effect: there is no check `symlinks-member`",
    ),
    fails(
        "unused-waiver",
        "a package that is not there",
        make_closure([LINK], make_spec(waivers=[waiver("symlink-member", "link")])),
        "warning",
        "waiver of `symlink-member` for link has no effect: the environment has no package link",
    ),
    fails(
        "unused-waiver",
        "a collision without an owner",
        make_closure(COLLIDING, make_spec(waivers=[waiver("file-collision", "a", path="x.py")])),
        "warning",
        "waiver of `file-collision` for a at `x.py` has no effect: it names no `owner`, the package whose file stays",
    ),
    fails(
        "unused-waiver",
        "a collision with a third package as its owner",
        make_closure(COLLIDING, make_spec(waivers=[waiver("file-collision", "a", path="x.py", owner="c")])),
        "warning",
        "waiver of `file-collision` for a at `x.py` has no effect: its owner `c` is none of the packages that have the file",
    ),
    passes("unknown-policy", "no policy", make_closure([LINK])),
    passes("unknown-policy", "a check that exists", make_closure([LINK], under(("symlink-member", "warning")))),
    fails(
        "unknown-policy",
        "a check that does not exist",
        make_closure([LINK], under(("symlinks-member", "warning"))),
        "warning",
        "[policy] names `symlinks-member`, which is no check",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_check_that_is_nearly_named_is_suggested() -> None:
    row = next(row for row in ROWS if row.case == "a check that does not exist")
    assert row.findings()[0].hint == "did you mean `symlink-member`?"


def severities(closure: Closure) -> dict[str, str]:
    return {finding.check: finding.severity for finding in run_checks(closure).findings}


@pytest.mark.parametrize(
    ("check", "rule", "severity"),
    [
        ("symlink-member", "error", "error"),
        ("symlink-member", "warning", "warning"),
        ("record-ghost", "error", "error"),
        ("record-ghost", "warning", "warning"),
        ("generic-top-level", "error", "info"),
    ],
)
def test_policy_makes_errors_of_warnings_and_the_other_way_round_and_leaves_information(
    check: str, rule: str, severity: str
) -> None:
    facts = make_facts("a", files={"test/x.py": ""}, anomalies=[("record-ghost", "g", ""), ("symlink-member", "s", "")])
    assert severities(make_closure([facts], under((check, rule))))[check] == severity


def test_policy_that_is_misspelt_gets_a_suggestion() -> None:
    row = next(row for row in ROWS if row.check == "unknown-policy" and row.severity)
    assert row.findings()[0].hint == "did you mean `symlink-member`?"


def test_strict_makes_errors_of_warnings_alone() -> None:
    facts = make_facts("a", files={"test/x.py": ""}, anomalies=[("record-ghost", "g", "")])
    found = strictly(run_checks(make_closure([facts]))).findings
    assert {finding.check: finding.severity for finding in found} == {
        "generic-top-level": "info",
        "record-ghost": "error",
    }


def mismatch(check: str = "cuda-major-mismatch", *packages: str) -> Finding:
    return Finding(check=check, severity="error", subject="v", message="m", packages=packages or ("v", "torch"))


def pin(*packages: str) -> Finding:
    return Finding(check="requires-dist", severity="error", subject="p", message="v wants t", packages=packages)


@pytest.mark.parametrize("check", ["cuda-major-mismatch", "dual-cuda-runtime", "torch-abi-mismatch"])
def test_broken_pin_between_packages_that_do_not_match_is_evidence_of_the_mismatch(check: str) -> None:
    verdict = apply_waivers([pin("v", "torch"), mismatch(check)], [])
    assert [(finding.check, finding.evidence) for finding in verdict.findings] == [(check, ("v wants t",))]


@pytest.mark.parametrize("packages", [("v",), ("torch",), ("v", "numpy"), ("w", "torch"), ("v", "w")])
def test_requirement_of_something_else_stays_a_finding_of_its_own(packages: tuple[str, ...]) -> None:
    verdict = apply_waivers([mismatch("cuda-major-mismatch", "v", "w", "torch"), pin(*packages)], [])
    expected = 1 if packages == ("w", "torch") else 2
    assert len(verdict.findings) == expected


def test_pin_stays_a_finding_where_the_mismatch_is_waived() -> None:
    verdict = apply_waivers([mismatch(), pin("v", "torch")], [waiver("cuda-major-mismatch", "v")])
    assert [finding.check for finding in verdict.findings] == ["requires-dist"]


def test_what_explains_most_comes_first() -> None:
    checks = ("undefined-symbol", "torch-abi-mismatch", "host-library", "cuda-major-mismatch", "cuda-toolkit-mismatch")
    found = [Finding(check=check, severity="error", subject="s", message="m", packages=("p", "q")) for check in checks]
    assert [finding.check for finding in apply_waivers(found, []).findings] == [
        "cuda-major-mismatch",
        "cuda-toolkit-mismatch",
        "torch-abi-mismatch",
        "host-library",
        "undefined-symbol",
    ]


def test_findings_come_by_severity_check_and_subject() -> None:
    wheels = [
        make_facts("b", files={"test/x.py": ""}, anomalies=[("record-ghost", "g", ""), ("symlink-member", "s", "")]),
        make_facts("a", files={"tools/x.py": ""}, anomalies=[("record-ghost", "g", ""), ("symlink-member", "s", "")]),
        make_facts("c", anomalies=[("path-escape", "../x", "")]),
    ]
    assert [(finding.check, finding.subject) for finding in run_checks(make_closure(wheels)).findings] == [
        ("path-escape", "c 1.0"),
        ("symlink-member", "a 1.0"),
        ("symlink-member", "b 1.0"),
        ("record-ghost", "a 1.0"),
        ("record-ghost", "b 1.0"),
        ("generic-top-level", "a 1.0"),
        ("generic-top-level", "b 1.0"),
    ]


def test_first_waiver_that_resolves_a_finding_is_the_one_shown() -> None:
    waivers = [
        waiver("path-escape", "links"),
        waiver("symlink-member", "links", path="links/x.so"),
        waiver("symlink-member", "links"),
    ]
    verdict = run_checks(make_closure([LINK], make_spec(waivers=waivers)))
    assert [by for _, by in verdict.waived] == [waivers[1]]


def test_waiver_of_any_of_the_packages_of_a_finding_applies() -> None:
    spec = make_spec(waivers=[waiver("requires-dist", "torch")])
    closure = make_closure([make_facts("torch", "2.11.0"), make_facts("vision", requires=["torch==2.9.1"])], spec)
    verdict = run_checks(closure)
    assert verdict.findings == ()
    assert len(verdict.waived) == 1


def test_errors_are_those_that_refuse_a_lock() -> None:
    verdict = run_checks(make_closure([LINK, make_facts("b", files={"test/x.py": ""})]))
    assert [finding.check for finding in verdict.findings] == ["symlink-member", "generic-top-level"]
    assert [finding.check for finding in verdict.errors] == ["symlink-member"]


def test_findings_of_other_sources_take_waivers_too() -> None:
    finding = Finding(check="sdist-only", severity="error", subject="x", message="x", packages=("x",))
    verdict = apply_waivers([finding], [waiver("sdist-only", "x")])
    assert verdict.findings == ()
    assert verdict.waived == ((finding, waiver("sdist-only", "x")),)


def test_text_of_wheels_is_made_safe_to_show() -> None:
    wheel = make_facts(
        "evil",
        anomalies=[("path-escape", "../\x1b[2Jx\n", "line\nline"), ("symlink-member", "\udcff", "x" * 10_000)],
        requires=["a\x07 !!"],
    )
    findings = run_checks(make_closure([wheel])).findings
    text = json.dumps([finding.to_json() for finding in findings], ensure_ascii=False)
    assert len(findings) == 3
    assert text.isprintable()
    assert text.encode()
    assert len(text) < 5000


def test_all_checks_of_a_large_closure_stay_small_work() -> None:
    wheels = [
        make_facts(f"package{number}", files={f"package{number}/{index}.py": "" for index in range(300)})
        for number in range(30)
    ]
    assert run_checks(make_closure(wheels)).findings == ()


_Item = TypeVar("_Item")

# Texts that lead into the corners of readers, beside whatever hypothesis thinks of.
_ODD_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "a",
            "A.b",
            "-",
            "..",
            "1.0",
            "1.0+cu130",
            "9" * 5000,
            "v1",
            "1.0_1",
            "\udcff",
            "\x1b[2J",
            "a\nb",
            "x" * 2000,
        ]
    ),
)
_NAME = st.sampled_from(["a", "b", "a-b", "a-c", "sgl-kernel", "sglang-kernel", "", "\udcff"])
_PATH = st.one_of(
    _ODD_TEXT,
    st.sampled_from(
        [
            "lib/python3.12/site-packages/a/b.py",
            "lib/python3.12/site-packages/a",
            "lib/python3.12/site-packages/A/b.py",
            "lib/python3.12/site-packages/",
            "lib/python3.12/site-packages/test/x.py",
            "bin/serve",
            "bin/python3",
            "bin",
            "pyvenv.cfg",
            "../x",
            "/x",
            "a//b",
        ]
    ),
)
_REQUIREMENT = st.one_of(
    _ODD_TEXT,
    st.sampled_from(
        [
            "a",
            "b>=1",
            "a-b[x,y]==1.0; extra == 'x'",
            "b; 'x' ~= os_name",
            "b; python_version > '3'",
            "b @ https://user:secret@host.invalid/b.whl",
            "a[x]; extra == 'y'",
            "b; platform_release >= '1'",
            f"b=={'9' * 5000}",
            "b===odd",
            "b; " + "(" * 3000 + "os_name == ''" + ")" * 3000,
        ]
    ),
)
_KIND = st.sampled_from(
    [
        "path-escape",
        "symlink-member",
        "duplicate-member",
        "encrypted-member",
        "size-lie",
        "bad-crc",
        "record-hash",
        "record-ghost",
        "record-path",
        "unrecorded",
        "shipped-bytecode",
        "dist-info",
        "bad-metadata",
        "bad-name",
        "reserved-path",
        "of-tomorrow",
    ]
)
_SHA256 = st.sampled_from(["0" * 64, "1" * 64, "2" * 64, "3" * 64, ""])


def _tuples(items: st.SearchStrategy[_Item], most: int = 3) -> st.SearchStrategy[tuple[_Item, ...]]:
    return st.lists(items, max_size=most).map(tuple)


_FACTS = st.builds(
    WheelFacts,
    filename=st.one_of(
        _ODD_TEXT, st.sampled_from(["a-1.0-py3-none-any.whl", "a-1.0+x-1-py2.py3-none-any.whl", "b-2-py3-none.whl"])
    ),
    sha256=_SHA256,
    size=st.integers(),
    python=st.sampled_from(["3.12", "3.13", ""]),
    name=_NAME,
    version=_ODD_TEXT,
    requires_python=st.one_of(
        _ODD_TEXT, st.sampled_from([">=3.10", ">=3.6.*", "!=3.12.3", f"=={'9' * 5000}", "==3.12"])
    ),
    requires_dist=_tuples(_REQUIREMENT),
    provides_extra=_tuples(_ODD_TEXT),
    wheel_tags=_tuples(st.one_of(_ODD_TEXT, st.sampled_from(["py3-none-any", "py2.py3-none-manylinux1_x86_64"]))),
    scripts=_tuples(_ODD_TEXT),
    hooks=_tuples(st.builds(StartupHook, path=_PATH, sha256=_SHA256, code=_tuples(_ODD_TEXT))),
    files=_tuples(
        st.builds(InstalledFile, path=_PATH, sha256=_SHA256, size=st.integers(), executable=st.booleans()), most=6
    ),
    anomalies=_tuples(st.builds(Anomaly, kind=_KIND, path=_PATH, detail=_ODD_TEXT), most=4),
    tree=_SHA256,
)
_WHEEL = st.builds(
    ClosureWheel,
    facts=_FACTS,
    index=_ODD_TEXT,
    yanked=_ODD_TEXT,
    required_by=_tuples(_NAME),
    base_file=_ODD_TEXT,
    base_sha256=_SHA256,
)
_WAIVER = st.builds(
    Waiver,
    check=st.sampled_from(["file-collision", "script-collision", "symlink-member", "requires-dist", "no-such-check"]),
    package=_NAME,
    path=st.sampled_from(["", "*", "a/*", "[", "bin/serve"]),
    owner=st.one_of(st.just(""), _NAME),
    reason=st.just("looked at"),
)
_WANTED = st.builds(
    Requirement,
    name=_NAME,
    specifier=st.sampled_from(["", "==1.0", ">=2,<3"]),
    extras=st.sampled_from([(), ("x",), ("x", "y")]),
)
_LOCKED = st.builds(
    LockedPackage,
    name=_NAME,
    version=_ODD_TEXT,
    index=_ODD_TEXT,
    file=st.sampled_from(["a-1.0-py3-none-any.whl", "a", ""]),
    size=st.integers(),
    sha256=_SHA256,
    tree=_SHA256,
    hooks=_tuples(st.builds(LockedHook, path=_PATH, sha256=_SHA256, code=_tuples(_ODD_TEXT))),
)


@st.composite
def _closures(draw: st.DrawFn) -> Closure:
    exact = draw(st.sampled_from(["", "3.12.3"]))
    spec = replace(
        make_spec(),
        python=PythonSpec(version="3.12", exact=exact),
        packages=draw(_tuples(_WANTED)),
        overrides=draw(_tuples(_WANTED)),
        waivers=draw(_tuples(_WAIVER)),
    )
    return Closure(
        spec=spec,
        wheels=draw(st.lists(_WHEEL, max_size=4, unique_by=lambda wheel: wheel.facts.sha256).map(tuple)),
        accepted_tags=draw(st.sampled_from([(), ("py3-none-any",)])),
        previous=draw(_tuples(_LOCKED)),
    )


@settings(max_examples=150)
@given(closure=_closures(), data=st.data())
def test_checks_report_any_facts_in_any_order_and_never_raise(closure: Closure, data: st.DataObject) -> None:
    verdict = run_checks(closure)
    shuffled = data.draw(st.permutations(closure.wheels))
    assert run_checks(replace(closure, wheels=tuple(shuffled))) == verdict

    for finding in (*verdict.findings, *(finding for finding, _ in verdict.waived)):
        text = json.dumps(finding.to_json(), ensure_ascii=False)
        assert text.isprintable()
        assert text.encode()
        assert "secret" not in text
        assert finding.message
        assert not finding.message.endswith(".")
