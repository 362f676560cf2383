"""What a review says, and that it says nothing where there is nothing."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.diff.changes import KINDS, LEVELS, Change, Section, literal
from envspec.diff.packages import order_of
from envspec.diff.pairs import changed_pairs, stem_of
from envspec.diff.review import Review, make_review
from envspec.diff.sides import Side
from envspec.lock import Lock, LockedFinding, LockedHook, LockedNeeds, parts
from envspec.spec import HostSpec, IndexSpec, Waiver
from tests.support.reviews import altered, contents, digest_of, moved, patched, real_side, torch_sides
from tests.support.strategies import locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FEW = settings(max_examples=30)  # a whole lock takes 20 ms to make up


def side(lock: Lock | None, label: str = "a side") -> Side:
    return Side(label=label, lock=lock)


def base() -> Side:
    return real_side("2.13.0", label="HEAD", more='[hosts.one]\ncompute = "9.0"\ndriver = "580.65.06"\n')


def review(old: Side, new: Side) -> Review:
    return make_review(old, new, lock_name="demo.lock")


def of_kind(found: Review, kind: str) -> list[Change]:
    return [change for change in found.changes if change.kind == kind]


def only(found: Review, kind: str) -> Change:
    changes = of_kind(found, kind)
    assert len(changes) == 1, [change.text for change in found.changes]
    return changes[0]


@FEW
@given(locks())
def test_a_lock_beside_itself_changes_nothing(lock: Lock) -> None:
    found = review(side(lock), side(lock))
    assert found.changes == ()
    assert found.same_env
    assert found.same_site
    assert found.cost.host_bytes == 0


@FEW
@given(locks(), locks())
def test_changes_are_in_order_and_each_package_that_moved_is_among_them(one: Lock, other: Lock) -> None:
    found = review(side(one), side(other))
    keys = [(list(Section).index(change.section), LEVELS.index(change.level)) for change in found.changes]
    assert keys == sorted(keys)
    assert all(change.kind in KINDS for change in found.changes)
    before, after = ({package.name: package for package in lock.packages} for lock in (one, other))
    moved_names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    told = {name for change in found.changes for name in (change.package, change.subject) if name}
    silent = {
        name
        for name in moved_names - told
        if not (name in before and name in after and before[name].sha256 == after[name].sha256)
    }
    assert silent == set()


@FEW
@given(locks(), locks())
def test_what_is_sent_and_what_is_used_again_make_up_the_new_environment(one: Lock, other: Lock) -> None:
    cost = review(side(one), side(other)).cost
    assert cost.host_bytes + cost.reused_bytes == cost.new_bytes
    assert cost.host_wheels + cost.reused_wheels == len(parts(other))


@FEW
@given(locks())
def test_a_first_lock_is_all_new(lock: Lock) -> None:
    found = review(side(None), side(lock))
    assert {change.package for change in of_kind(found, "added")} == {package.name for package in lock.packages}
    assert found.cost.reused_bytes == 0


@given(st.text())
def test_a_literal_is_one_line_between_two_backticks(text: str) -> None:
    shown = literal(text)
    assert shown[0] == shown[-1] == "`"
    assert "`" not in shown[1:-1]
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("old", "new", "order"),
    [
        ("1.0", "1.0", "same"),
        ("1.0", "1.0.0", "same"),
        ("2.9.1", "2.10.0", "newer"),
        ("2.10.0", "2.9.1", "older"),
        ("1.0rc1", "1.0", "newer"),
        ("2.11.0+cu128", "2.11.0+cu130", "local"),
        ("odd", "1.0", "unknown"),
    ],
)
def test_versions_are_compared_as_pep_440_does(old: str, new: str, order: str) -> None:
    assert order_of(old, new) == order


@pytest.mark.parametrize(
    ("name", "stem"),
    [("nvidia-cublas-cu12", "nvidia-cublas"), ("nvidia-cublas", "nvidia-cublas"), ("cupy-cuda13x", "cupy-cuda13x")],
)
def test_names_for_two_cuda_majors_have_one_stem(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_a_package_for_another_cuda_takes_the_place_of_the_old_one_unless_there_are_several() -> None:
    old, new = torch_sides()
    names = {pair.names for pair in changed_pairs(old, new)}
    assert ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13") in names
    assert ("nvidia-cublas-cu12", "nvidia-cublas") in names
    both = altered(new, packages={"nvidia-cublas-cu13": {"version": "1.0"}})
    assert ("nvidia-cublas-cu12",) in {pair.names for pair in changed_pairs(old, both)}


FIRST_LINES = (
    ({"packages": {"triton": {"sha256": digest_of("x")}}}, "reuploaded", "stop"),
    (
        {
            "packages": {
                "triton": {
                    "sha256": digest_of("x"),
                    "file": "triton-3.7.1-2-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
                }
            }
        },
        "other-build",
        "look",
    ),
    (
        {"packages": {"triton": {"sha256": digest_of("x"), "file": "triton-3.7.1-py3-none-any.whl"}}},
        "other-wheel",
        "look",
    ),
    ({"packages": {"triton": {"tree": digest_of("x")}}}, "other-tree", "look"),
    ({"packages": {"triton": {"index": "mirror"}}}, "index-moved", "stop"),
    ({"packages": {"numpy": moved("numpy", "1.26.4")}}, "downgraded", "look"),
    ({"packages": {"numpy": moved("numpy", "3.0.0")}}, "upgraded", "note"),
    ({"packages": {"sympy": {"requires": ()}}}, "requirements", "note"),
    ({"packages": {"stranger": {"version": "1.0"}}}, "added", "look"),
    ({"glibc": "2.39"}, "glibc", "stop"),
    ({"glibc": "2.28"}, "glibc", "note"),
    ({"libraries": ("libnuma.so.1",)}, "host-library", "look"),
    ({"python_exact": "3.12.3"}, "python", "look"),
    ({"platform": "linux-aarch64"}, "platform", "stop"),
    ({"cuda_toolkit": "13.1"}, "cuda-line", "look"),
    ({"cuda_toolkit": "14.0"}, "cuda-line", "stop"),
    ({"cuda_compute": ("9.0",)}, "cuda-compute", "stop"),
    ({"cuda_compute": ("8.0", "9.0", "12.0")}, "cuda-compute", "note"),
    ({"name": "other"}, "name", "look"),
)


@pytest.mark.parametrize(("changes", "kind", "level"), FIRST_LINES, ids=[f"{row[1]}-{row[2]}" for row in FIRST_LINES])
def test_one_difference_gives_its_kind_and_level(changes: dict[str, object], kind: str, level: str) -> None:
    old = base()
    found = review(old, altered(old, **changes))  # type: ignore[arg-type]
    change = only(found, kind)
    assert change.level == level
    assert found.changes != ()


NEEDS = (
    ({"driver": "590.44.01"}, "driver", "stop"),
    ({"driver": "570.26"}, "driver", "note"),
    ({"glibc": "2.34"}, "glibc", "look"),
    ({"glibc": "2.17"}, "glibc", "note"),
    ({"libstdcxx": "3.4.30"}, "libstdcxx", "look"),
    ({"cxxabi": "1.3.9"}, "libstdcxx", "note"),
)


@pytest.mark.parametrize(("changes", "kind", "level"), NEEDS, ids=[f"{row[1]}-{row[2]}" for row in NEEDS])
def test_measured_needs_that_moved_are_told(changes: dict[str, str], kind: str, level: str) -> None:
    old = base()
    assert old.lock is not None
    new = altered(old, needs=replace(old.lock.needs, **changes))  # type: ignore[arg-type]
    assert only(review(old, new), kind).level == level


def test_needs_that_were_never_measured_are_not_called_none() -> None:
    new = base()
    assert new.lock is not None
    old = replace(new, lock=replace(new.lock, needs=LockedNeeds()))
    assert "the lock before stated none" in of_kind(review(old, new), "glibc")[0].text


def test_same_inputs_with_another_tree_stop_the_review() -> None:
    old = base()
    assert old.lock is not None
    new = replace(old, lock=replace(old.lock, site=digest_of("another")))
    assert only(review(old, new), "site").level == "stop"


def test_a_lock_of_another_spec_than_the_one_beside_it_is_stale() -> None:
    old = base()
    assert old.lock is not None
    new = replace(old, lock=replace(old.lock, spec_sha256=digest_of("another")))
    assert only(review(old, new), "stale").level == "stop"


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("580.65.06", "570.26", "host-lost"),
        ("570.26", "580.65.06", "host-gained"),
        ("570.26", "570.26", ""),
        ("", "", ""),
    ],
)
def test_a_host_is_told_where_its_answer_moved(before: str, after: str, kind: str) -> None:
    old, new = (
        replace(each, spec=replace(each.spec, hosts=(HostSpec(name="one", ssh="one", driver=driver),)))
        for each, driver in ((base(), before), (base(), after))
        if each.spec is not None
    )
    kinds = {change.kind for change in review(old, new).changes if change.kind.startswith("host-")}
    assert kinds == ({kind} if kind else set())


def test_a_raised_need_that_no_host_states_leaves_it_open() -> None:
    old = base()
    found = review(old, altered(old, glibc="2.39"))
    assert [(host.old, host.new) for host in found.hosts] == [("yes", "unsure")]
    assert "glibc 2.39" in only(found, "host-unsure").consequences[0]


def test_hosts_are_judged_by_the_new_spec_where_the_old_one_is_not_known() -> None:
    old, new = torch_sides('[hosts.one]\ndriver = "570.26"\n')
    found = review(replace(old, spec=None), new)
    assert [(host.old, host.new) for host in found.hosts] == [("yes", "no")]


def test_gpu_code_lost_for_a_declared_capability_stops_and_for_others_is_one_line() -> None:
    old = base()
    found = review(old, altered(old, packages={"torchvision": {"gpu_code": ("sm_90",), "sha256": digest_of("x")}}))
    stop, *others = of_kind(found, "gpu-lost")
    assert (stop.level, stop.subject) == ("stop", "8.0")
    assert [change.level for change in others] == ["look"]


def test_code_that_is_ptx_only_now_is_told() -> None:
    old = base()
    codes = ("sm_80", "compute_90", "sm_100", "sm_120", "sm_75", "sm_86", "sm_89")
    found = review(old, altered(old, packages={"torchvision": {"gpu_code": codes, "sha256": digest_of("x")}}))
    assert [(change.subject, change.level) for change in of_kind(found, "gpu-jit")] == [("9.0", "look")]


HOOK = LockedHook(path="x.pth", sha256=digest_of("1"), code=("import os",))


@pytest.mark.parametrize(
    ("before", "after", "kind", "level"),
    [
        ((), (HOOK,), "hook-added", "stop"),
        ((), (replace(HOOK, code=()),), "hook-added", "look"),
        ((HOOK,), (replace(HOOK, sha256=digest_of("2"), code=("import sys",)),), "hook-changed", "stop"),
        ((HOOK,), (replace(HOOK, sha256=digest_of("2")),), "hook-changed", "look"),
        ((HOOK,), (), "hook-removed", "note"),
    ],
)
def test_start_up_hooks_are_told(
    before: tuple[LockedHook, ...], after: tuple[LockedHook, ...], kind: str, level: str
) -> None:
    old = altered(base(), packages={"numpy": {"hooks": before}})
    new = altered(old, packages={"numpy": {**moved("numpy", "3.0"), "hooks": after}})
    assert only(review(old, new), kind).level == level


def test_a_waiver_that_comes_with_a_hook_does_not_make_it_quieter() -> None:
    waiver = Waiver(check="startup-hook", package="numpy", path="x.pth", reason="read")
    old = base()
    new = altered(old, packages={"numpy": {"hooks": (HOOK,)}}, waivers=(waiver,))
    change = only(review(old, new), "hook-added")
    assert change.level == "stop"
    assert not any("waived" in line for line in change.consequences)


def test_a_package_is_explained_by_the_spec_through_what_needs_it() -> None:
    old, new = torch_sides()
    found = {each.package: each for each in review(old, new).changes if each.section is Section.PACKAGE}
    assert found["torch"].because == ("packages.torch",)
    assert found["triton"].because == ("torch",)
    assert found["nvidia-cublas"].heads == ("torch",)
    assert "cuda-toolkit" in found["nvidia-cublas"].requesters


def test_reasons_are_not_guessed_where_a_spec_is_not_known() -> None:
    old, new = torch_sides()
    found = review(replace(old, spec=None, spec_problem="`x.toml` cannot be read"), new)
    assert of_kind(found, "unexplained") == []
    assert "HEAD (1a2b3c4d5e): `x.toml` cannot be read" in only(found, "spec-unknown").consequences
    assert all(change.because == () for change in found.changes)


def test_a_change_that_the_same_spec_does_not_explain_is_told_without_specs_too() -> None:
    old = base()
    new = altered(old, packages={"numpy": moved("numpy", "3.0")})
    found = review(replace(old, spec=None), replace(new, spec=None))
    assert "numpy" in only(found, "unexplained").text


def test_a_url_of_an_index_is_in_no_review() -> None:
    old = base()
    secret = "s3cr3t"
    spec = old.spec
    assert spec is not None
    index = IndexSpec(name="a", url=f"http://me:{secret}@127.0.0.1/simple", packages=("numpy",))
    new = altered(old, packages={"numpy": {"index": "a"}}, spec=lambda each: replace(each, indexes=(index,)))
    found = review(old, new)
    assert only(found, "index-moved").level == "look"
    assert secret not in repr(found.changes)
    assert "127.0.0.1" not in repr(found.changes)


def with_contents(each: Side, **known: object) -> Side:
    return replace(each, contents={each.parts[name].sha256: value for name, value in known.items()})  # type: ignore[misc]


def test_contents_of_wheels_are_compared_where_both_are_known_and_else_said_not_to_be() -> None:
    old = base()
    new = altered(old, packages={"numpy": moved("numpy", "3.0"), "sympy": moved("sympy", "2.0")})
    before = with_contents(
        old, numpy=contents({"numpy/a.py": "1", "shared/x.py": "s"}), sympy=contents({"sympy/a.py": "1"})
    )
    after = with_contents(
        new,
        numpy=contents({"numpy/a.py": "2", "numpy/b.so": "elf", "tests/x.py": ""}, scripts=("ls",)),
        sympy=contents({"sympy/a.py": "1", "shared/x.py": "t"}),
    )
    found = review(before, after)
    assert only(found, "script-added").new == "ls"
    assert only(found, "native-added").level == "look"
    assert only(found, "top-level-added").new == "tests"
    owner = only(found, "owner-changed")
    assert (owner.old, owner.new, owner.consequences) == ("numpy", "sympy", ("1 file with other contents",))
    assert of_kind(found, "contents-unknown") == []
    unknown = only(review(before, new), "contents-unknown")
    assert "2 packages" in unknown.text


def test_metadata_and_the_version_of_python_are_no_moved_files() -> None:
    old = base()
    new = altered(old, packages={"numpy": moved("numpy", "3.0")}, python="3.13")
    before = with_contents(old, numpy=contents({"numpy/a.py": "1", "numpy-2.dist-info/RECORD": "1"}))
    after = with_contents(new, numpy=contents({"numpy/a.py": "1", "numpy-3.dist-info/RECORD": "2"}, python="3.13"))
    found = review(before, after)
    assert of_kind(found, "owner-changed") == []
    assert only(found, "python").level == "stop"


PATCH = b"say what\n\n--- a/numpy/a.py\n+++ b/numpy/a.py\n@@ -1 +1 @@\n-a\n+b\n"
FILES = {"numpy/a.py": (b"a\n", b"b\n")}


def test_a_renamed_patch_is_no_new_one() -> None:
    old = patched(base(), "numpy", {"0001-a.patch": PATCH}, FILES)
    new = patched(base(), "numpy", {"0001-b.patch": PATCH}, FILES)
    found = review(old, new)
    assert only(found, "patch-order").level == "note"
    assert of_kind(found, "patch-added") == of_kind(found, "patch-removed") == []


def test_the_order_of_patches_is_told() -> None:
    other = PATCH.replace(b"a.py", b"b.py")
    old = patched(base(), "numpy", {"0001-a.patch": PATCH, "0002-b.patch": other}, FILES)
    new = patched(base(), "numpy", {"0002-b.patch": other, "0001-a.patch": PATCH}, FILES)
    assert only(review(old, new), "patch-order").level == "look"


def test_a_base_that_moves_under_patches_is_told_with_the_files_that_moved() -> None:
    old = patched(base(), "numpy", {"0001-a.patch": PATCH}, FILES)
    moved_base = altered(base(), packages={"numpy": moved("numpy", "3.0")})
    new = patched(moved_base, "numpy", {"0001-a.patch": PATCH}, {"numpy/a.py": (b"a\n#\n", b"b\n#\n")})
    change = only(review(old, new), "base-moved")
    assert "3.0 in place of" in change.text
    assert any("`numpy/a.py`" in line for line in change.consequences)


def test_a_patch_that_is_not_at_hand_is_called_so() -> None:
    old = patched(base(), "numpy", {"0001-a.patch": PATCH}, FILES)
    new = patched(base(), "numpy", {"0001-a.patch": PATCH + b"\n"}, {"numpy/a.py": (b"a\n", b"c\n")})
    found = review(replace(old, patches={}), replace(new, patches={}))
    change = only(found, "patch-changed")
    assert change.excerpts == ()
    assert "not at hand" in change.consequences[0]


def test_a_package_that_is_patched_no_longer_is_told() -> None:
    old = patched(base(), "numpy", {"0001-a.patch": PATCH}, FILES)
    assert only(review(old, base()), "overlay-removed").level == "look"
    assert only(review(base(), old), "overlay-added").excerpts[0].title == "0001-a.patch"


def test_waivers_are_told_when_new_when_other_and_when_gone() -> None:
    one = Waiver(check="a-check", package="numpy", reason="because")
    old, without = altered(base(), waivers=(one,)), base()
    assert only(review(without, old), "waiver-added").level == "look"
    assert only(review(old, without), "waiver-removed").level == "note"
    other = altered(base(), waivers=(replace(one, reason="for another reason"),))
    assert "reason before: because" in only(review(old, other), "waiver-changed").consequences


def test_a_waiver_that_came_to_be_of_no_use_is_told_as_such() -> None:
    old = base()
    assert old.lock is not None
    idle = LockedFinding(
        check="unused-waiver", severity="warning", subject="numpy", message="waiver of `x` for numpy has no effect"
    )
    findings = tuple(sorted((*old.lock.findings, idle), key=lambda each: (each.check, each.subject, each.message)))
    found = review(old, altered(old, findings=findings))
    assert only(found, "waiver-unused").package == "numpy"
    assert of_kind(found, "finding-added") == []


def test_a_finding_that_differs_in_the_version_alone_is_the_same() -> None:
    old = base()
    assert old.lock is not None
    findings = tuple(
        replace(each, subject="triton 3.8.0", message=each.message.replace("triton 3.7.1", "triton 3.8.0"))
        if each.subject == "triton 3.7.1"
        else each
        for each in old.lock.findings
    )
    assert findings != old.lock.findings
    found = review(old, altered(old, packages={"triton": moved("triton", "3.8.0")}, findings=findings))
    assert of_kind(found, "finding-added") == of_kind(found, "finding-removed") == []


def leaves(value: Any, rebuild: Callable[[Any], Any], path: str) -> Iterator[tuple[str, Any]]:
    """Every variant of a lock in which one leaf is otherwise, or a tuple lacks its last item."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            name = field.name

            def with_field(new: Any, name: str = name) -> Any:
                return rebuild(replace(value, **{name: new}))

            yield from leaves(getattr(value, name), with_field, f"{path}.{name}")
    elif isinstance(value, tuple):
        for number, item in enumerate(value[:3]):

            def with_item(new: Any, number: int = number) -> Any:
                return rebuild((*value[:number], new, *value[number + 1 :]))

            yield from leaves(item, with_item, f"{path}[{number}]")
        if value:
            yield f"{path}[-1]", rebuild(value[:-1])
    elif isinstance(value, int):
        yield path, rebuild(value + 1)
    else:
        other = {"8.0": "8.6", "9.0": "8.6", "580": "590"}
        yield path, rebuild(other.get(value, f"{value}x"))


def test_a_lock_that_differs_in_any_leaf_is_never_called_unchanged() -> None:
    patches = {"0001-a.patch": PATCH}
    old = altered(patched(base(), "numpy", patches, FILES), waivers=(Waiver(check="x", package="numpy", reason="y"),))
    assert old.lock is not None
    variants = list(leaves(old.lock, lambda new: new, "lock"))
    assert len(variants) > 80
    assert [path for path, lock in variants if not review(side(old.lock), side(lock)).changes] == []


def test_what_a_newer_envspec_measures_is_one_note_and_what_it_measures_otherwise_is_not() -> None:
    old = base()
    bare = altered(old, packages={name: {"gpu_code": (), "cuda": ""} for name in ("torch", "torchvision")})
    found = review(bare, old)
    assert (only(found, "record").level, "2 wheels" in only(found, "record").text) == ("note", True)
    other = altered(old, packages={"torch": {"cuda": "13.1"}})
    assert only(review(old, other), "record").level == "stop"
    assert [change.level for change in of_kind(review(old, bare), "record")] == ["stop", "stop"]
