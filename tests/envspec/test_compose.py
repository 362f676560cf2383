"""The union of trees: one owner a path, true RECORDs, one digest."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.compose import Collision, CollisionError, Composition, compose, owner_of, site_relative
from envspec.layout import record_content
from envspec.tree import Entry, manifest, manifest_lines, parse_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SITE = "lib/python3.12/site-packages"


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def record_path(package: str) -> str:
    return f"{SITE}/{package.replace('-', '_')}-1.0.dist-info/RECORD"


@dataclass(frozen=True)
class Package:
    """A package with its files (path in the environment -> content) and a true RECORD."""

    name: str
    files: Mapping[str, str]
    executable: tuple[str, ...] = ()
    has_record: bool = True

    def entries(self) -> list[Entry]:
        found = [
            Entry(path, "file", sha256(content), len(content.encode()), path in self.executable)
            for path, content in self.files.items()
        ]
        if self.has_record:
            record = self.record().decode()
            found.append(Entry(record_path(self.name), "file", sha256(record), len(record.encode())))
        return found

    def record(self) -> bytes:
        rows = [(path, sha256(content), len(content.encode())) for path, content in self.files.items()]
        return record_content(record_path(self.name), rows)

    def tree(self) -> tuple[str, str]:
        return self.name, manifest(self.entries())


def site(**files: str) -> dict[str, str]:
    """Files of site-packages; `__` stands for a slash, and the suffix is `.py`."""
    return {f"{SITE}/{name.replace('__', '/')}.py": content for name, content in files.items()}


def composed(*packages: Package, owners: Mapping[str, str] | None = None) -> Composition:
    return compose(sorted(package.tree() for package in packages), owners or {})


def entries_of(composition: Composition) -> dict[str, Entry]:
    return {entry.path: entry for entry in map(parse_line, manifest_lines(composition.manifest))}


def rows_of(record: bytes) -> dict[str, tuple[str, str]]:
    """Path within site-packages -> sha256 (hex) and size, as RECORD says."""
    rows: dict[str, tuple[str, str]] = {}
    for path, digest, size in csv.reader(io.StringIO(record.decode())):
        value = digest.removeprefix("sha256=")
        rows[path] = (base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if value else "", size)
    return rows


def naive_site(entries: Sequence[Entry]) -> str:
    """The site digest of an environment with these files, as simple as can be (all names are plain)."""
    lines = set()
    for entry in entries:
        mode = "0555" if entry.executable else "0444"
        lines.add(f"./{entry.path} mode={mode} sha256={entry.sha256} size={entry.size} type=file\n")
        pieces = entry.path.split("/")
        for count in range(1, len(pieces)):
            lines.add(f"./{'/'.join(pieces[:count])} type=dir\n")
    return hashlib.sha256(("#mtree\n. type=dir\n" + "".join(sorted(lines))).encode()).hexdigest()


A = Package("a", site(a____init__="a", shared="same"))
B = Package("b", site(b____init__="b", shared="same"))


def test_environment_is_the_union_of_its_trees() -> None:
    one = Package("a", site(a____init__="1") | {"bin/a": "x"}, executable=("bin/a",))
    two = Package("b", site(b____init__="2", nvidia__b="3"))
    result = composed(one, two)
    assert result.site == naive_site([*one.entries(), *two.entries()])
    assert result.site == hashlib.sha256(result.manifest.encode()).hexdigest()
    assert (result.skipped, result.generated) == ({}, {})


def test_one_tree_is_itself() -> None:
    assert composed(A).manifest == A.tree()[1]


def test_no_trees_are_an_empty_environment() -> None:
    assert compose([], {}) == Composition(
        manifest="#mtree\n. type=dir\n", site=naive_site([]), skipped={}, generated={}
    )


def test_equal_files_come_from_the_first_package_and_stay_in_every_record() -> None:
    third = Package("c", site(shared="same"))
    result = composed(A, B, third)
    assert result.skipped == {"b": {f"{SITE}/shared.py"}, "c": {f"{SITE}/shared.py"}}
    assert result.generated == {}
    assert result.site == naive_site([*A.entries(), *B.entries(), *third.entries()])


def test_same_content_with_and_without_the_executable_bit_collides() -> None:
    with pytest.raises(CollisionError) as caught:
        composed(A, Package("b", site(shared="same"), executable=(f"{SITE}/shared.py",)))
    assert caught.value.collisions == (Collision(f"{SITE}/shared.py", ("a", "b")),)


FLASH = Package("flashinfer-python", site(flashinfer____init__="f", build_backend="of flashinfer"))
DLPACK = Package("torch-c-dlpack-ext", site(dlpack____init__="d", build_backend="of dlpack"))
CONTENDED = f"{SITE}/build_backend.py"


@pytest.mark.parametrize("owner", ["flashinfer-python", "torch-c-dlpack-ext"])
@pytest.mark.parametrize(
    "pattern", ["build_backend.py", "*.py", CONTENDED, "lib/*/build_*", "*", "build_backend.[op]y"]
)
def test_file_of_the_owner_stays_and_the_other_record_loses_its_row(owner: str, pattern: str) -> None:
    winner, loser = (FLASH, DLPACK) if owner == FLASH.name else (DLPACK, FLASH)
    result = composed(FLASH, DLPACK, owners={pattern: owner})
    entries = entries_of(result)
    assert entries[CONTENDED].sha256 == sha256(winner.files[CONTENDED])
    assert result.skipped == {loser.name: {CONTENDED, record_path(loser.name)}}
    assert result.generated.keys() == {record_path(loser.name)}
    content = result.generated[record_path(loser.name)]
    before = rows_of(loser.record())
    assert before.pop("build_backend.py") == (sha256(loser.files[CONTENDED]), str(len(loser.files[CONTENDED])))
    assert rows_of(content) == before
    entry = entries[record_path(loser.name)]
    assert (entry.sha256, entry.size, entry.executable) == (sha256(content.decode()), len(content), False)
    lost = {CONTENDED, record_path(loser.name)}
    kept = [entry for entry in loser.entries() if entry.path not in lost]
    assert result.site == naive_site([*winner.entries(), *kept, entry])


def test_every_record_is_true_afterwards() -> None:
    packages = [
        Package("a", site(one="a", two="same", three="a", a="a") | {"bin/serve": "a"}),
        Package("b", site(one="b", two="same", three="b", b="b") | {"bin/serve": "b"}),
        Package("c", site(one="b", two="same", three="c", c="c") | {"bin/serve": "c"}),
    ]
    result = composed(*packages, owners={"one.py": "c", "three.py": "a", "bin/serve": "b"})
    entries = entries_of(result)
    recorded: set[str] = set()
    for package in packages:
        record = result.generated.get(record_path(package.name), package.record())
        assert entries[record_path(package.name)].sha256 == sha256(record.decode())
        for path, (digest, size) in rows_of(record).items():
            place = path.removeprefix("../../../") if path.startswith("../../../") else f"{SITE}/{path}"
            recorded.add(place)
            if place != record_path(package.name):
                assert (entries[place].sha256, str(entries[place].size)) == (digest, size), (package.name, place)
    assert recorded == {path for path, entry in entries.items() if entry.kind == "file"}


def test_contender_with_the_owners_content_keeps_its_row() -> None:
    packages = [Package(name, site(shared=content)) for name, content in (("a", "x"), ("b", "x"), ("c", "y"))]
    path = f"{SITE}/shared.py"
    for owner, losers in (("a", {"c"}), ("b", {"c"}), ("c", {"a", "b"})):
        result = composed(*packages, owners={"shared.py": owner})
        assert result.generated.keys() == {record_path(name) for name in losers}
        assert {name for name, paths in result.skipped.items() if path in paths} == {"a", "b", "c"} - {owner}


def test_each_path_comes_from_exactly_one_package() -> None:
    packages = [Package(name, site(x=x, y="y", own=x)) for name, x in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "3"))]
    result = composed(*packages, owners={"x.py": "b", "own.py": "d"})
    sources: dict[str, int] = dict.fromkeys(result.generated, 1)
    for package in packages:
        for entry in package.entries():
            if entry.path not in result.skipped.get(package.name, ()):
                sources[entry.path] = sources.get(entry.path, 0) + 1
    assert sources == {path: 1 for path, entry in entries_of(result).items() if entry.kind == "file"}


def test_all_collisions_are_told_at_once() -> None:
    one = Package("a", site(x="1", y="1", same="s", z="1") | {"bin/serve": "1"})
    two = Package("b", site(x="2", y="2", same="s"))
    three = Package("c", site(x="3", z="3") | {"bin/serve": "3"})
    with pytest.raises(CollisionError) as caught:
        composed(one, two, three, owners={"y.py": "b"})
    assert caught.value.collisions == (
        Collision("bin/serve", ("a", "c")),
        Collision(f"{SITE}/x.py", ("a", "b", "c")),
        Collision(f"{SITE}/z.py", ("a", "c")),
    )
    assert str(caught.value) == "`bin/serve` is in a and c with different contents (and 2 more)"


def test_one_collision_is_told_as_one() -> None:
    with pytest.raises(CollisionError, match=r"^`bin/serve` is in a and b with different contents$"):
        composed(Package("a", {"bin/serve": "1"}), Package("b", {"bin/serve": "2"}))


def test_file_cannot_stand_in_place_of_a_folder_whoever_owns_it() -> None:
    one, two = Package("a", {f"{SITE}/tools": "a file"}), Package("b", site(tools__x="x"))
    for owners in ({}, {"*": "a"}, {"*": "b"}):
        with pytest.raises(CollisionError) as caught:
            composed(one, two, owners=owners)
        assert caught.value.collisions == (Collision(f"{SITE}/tools", ("a", "b")),)


@pytest.mark.parametrize("name", ["RECORD", "METADATA"])
def test_metadata_of_a_package_is_not_given_to_another(name: str) -> None:
    path = f"{SITE}/a-1.0.dist-info/{name}"
    one = Package("a", {**A.files, **({path: "own"} if name != "RECORD" else {})})
    with pytest.raises(CollisionError) as caught:
        composed(one, Package("b", {path: "other"}), owners={"*": "b"})
    assert caught.value.collisions == (Collision(path, ("a", "b")),)


def test_package_without_record_gives_way_without_one() -> None:
    one, two = Package("a", site(x="1"), has_record=False), Package("b", site(x="2"))
    result = composed(one, two, owners={"x.py": "b"})
    assert result.skipped == {"a": {f"{SITE}/x.py"}}
    assert result.generated == {}
    assert result.site == naive_site(two.entries())


def test_record_in_a_nested_folder_is_a_file_like_any_other() -> None:
    nested = f"{SITE}/a/_vendor/x-1.0.dist-info/RECORD"
    one = Package("a", site(x="1") | {nested: "vendored"})
    result = composed(one, Package("b", site(x="2")), owners={"x.py": "b"})
    assert result.generated.keys() == {record_path("a")}
    assert entries_of(result)[nested].sha256 == sha256("vendored")


def test_damaged_manifest_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        compose([("a", "")], {})


# Owners


@pytest.mark.parametrize(
    ("path", "owners", "contenders", "owner"),
    [
        (f"{SITE}/cv2/a.py", {"cv2/*": "x"}, None, "x"),
        (f"{SITE}/cv2/a.py", {"cv2/a.py": "x", "*": "y"}, None, "y"),
        (f"{SITE}/cv2/a.py", {"cv2/a.py": "x", "*": "y"}, ["x", "z"], "x"),
        (f"{SITE}/cv2/a.py", {"cv2/a.py": "x"}, ["z"], ""),
        (f"{SITE}/cv2/a.py", {"CV2/*": "x", "a.py": "x"}, None, ""),
        ("bin/serve", {"bin/serve": "x"}, None, "x"),
        ("bin/serve", {"serve": "x"}, None, ""),
        ("bin/serve", {}, None, ""),
    ],
)
def test_owner_is_that_of_the_first_pattern_whose_owner_contends(
    path: str, owners: dict[str, str], contenders: list[str] | None, owner: str
) -> None:
    assert owner_of(path, owners, contenders) == owner


def test_waiver_for_one_pair_of_packages_leaves_another_pair_alone() -> None:
    opencv = [Package(name, site(cv2__version=name)) for name in ("opencv-python", "opencv-python-headless")]
    result = composed(FLASH, DLPACK, *opencv, owners={"*": "opencv-python", "build_backend.py": FLASH.name})
    assert entries_of(result)[CONTENDED].sha256 == sha256("of flashinfer")
    assert entries_of(result)[f"{SITE}/cv2/version.py"].sha256 == sha256("opencv-python")


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        (f"{SITE}/a/b.py", "a/b.py"),
        ("lib/python3.9/site-packages/b.py", "b.py"),
        (f"{SITE}/a/site-packages/b.py", "a/site-packages/b.py"),
        ("bin/serve", "bin/serve"),
        ("share/x/site-packages/b.py", "share/x/site-packages/b.py"),
    ],
)
def test_path_within_site_packages_is_as_the_wheel_has_it(path: str, relative: str) -> None:
    assert site_relative(path) == relative


# Anything

_paths = st.sampled_from([f"{SITE}/{name}" for name in ("x.py", "y.py", "n/a.py", "n/b.py", "n")] + ["bin/t", "bin/u"])
_files = st.dictionaries(_paths, st.sampled_from(["", "1", "2"]), max_size=5)
_packages = st.dictionaries(st.sampled_from("abcd"), _files, min_size=1).map(
    lambda found: [Package(name, files) for name, files in found.items()]
)
_owners = st.dictionaries(st.sampled_from(["*", "x.py", "n/*", "bin/t", "n"]), st.sampled_from("abcd"))


def without_inner_clash(package: Package) -> Package:
    """A tree that can exist: not with `n` as a file and a folder."""
    if any(path.startswith(f"{SITE}/n/") for path in package.files):
        return Package(package.name, {path: text for path, text in package.files.items() if path != f"{SITE}/n"})
    return package


def outcome(trees: list[tuple[str, str]], owners: dict[str, str]) -> Any:
    try:
        return compose(trees, owners).site
    except CollisionError as error:
        return error.collisions


@settings(max_examples=300)
@given(packages=_packages, owners=_owners, order=st.randoms(use_true_random=False))
def test_order_of_the_trees_changes_nothing_in_the_result(
    packages: list[Package], owners: dict[str, str], order: Any
) -> None:
    trees = sorted(without_inner_clash(package).tree() for package in packages)
    shuffled = list(trees)
    order.shuffle(shuffled)
    assert outcome(trees, owners) == outcome(shuffled, owners)


@settings(max_examples=300)
@given(packages=_packages, owners=_owners)
def test_site_digest_is_that_of_the_files_which_are_not_skipped(
    packages: list[Package], owners: dict[str, str]
) -> None:
    packages = [without_inner_clash(package) for package in packages]
    try:
        result = composed(*packages, owners=owners)
    except CollisionError:
        return
    files = [
        entry
        for package in packages
        for entry in package.entries()
        if entry.path not in result.skipped.get(package.name, ())
    ]
    files += [Entry(path, "file", sha256(content.decode()), len(content)) for path, content in result.generated.items()]
    assert len({entry.path for entry in files}) == len(files)
    assert result.site == naive_site(files)
