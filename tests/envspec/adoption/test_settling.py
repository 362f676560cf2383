"""What becomes of every path: decided by digests first, then by contents, and named with the wheel that bytes are from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.adoption.attribution import attribute
from envspec.adoption.disk import Disk
from envspec.adoption.origins import Origins
from envspec.adoption.scripts import is_console_script, is_script_of
from envspec.adoption.settling import Contents, settle, wanted_contents
from envspec.adoption.sorting import sort_paths
from envspec.layout import console_script, rewrite_script
from tests.support.adoptions import SITE, distribution, observation, observed_file, published, sha256

if TYPE_CHECKING:
    from envspec.adoption.values import Fate, PublishedWheel
    from envspec.observed import Observation

BASE = {"demo/a.py": "a = 1\n", "demo/b.py": "b = 1\n", "demo/c.py": "c = 1\n", "demo/native.so": "ELF one"}


def settled(
    seen: Observation, wheels: list[PublishedWheel], contents: dict[str, str], *, known: tuple[PublishedWheel, ...] = ()
) -> dict[str, Fate]:
    """The fates by path below site-packages; contents: those of the venv and of base wheels, as text by digest."""
    by_digest = {sha256(text): text.encode() for text in contents.values()}
    disk = Disk(seen)
    attributions = [attribute(each, wheels, disk) for each in seen.distributions]
    found = sort_paths(disk, attributions)
    chosen = {each.wheel.name: each.wheel for each in attributions if each.wheel}
    of_venv, of_base = wanted_contents(found)
    rows = {(wheel.name, row.member): row.sha256 for wheel in chosen.values() for row in wheel.files}
    read = Contents(
        venv={path: by_digest[digest] for path, digest, _ in of_venv if digest in by_digest},
        base={key: by_digest[rows[key]] for key in of_base if rows.get(key) in by_digest},
    )
    fates, _ = settle(found, disk, read, chosen, Origins([*wheels, *known]))
    return {fate.path.removeprefix(f"{SITE}/"): fate for fate in fates}


def test_edited_added_and_removed_text_is_patched_and_the_rest_is_named() -> None:
    files = {"demo/a.py": "a = 2\n", "demo/b.py": "b = 1\n", "demo/native.so": "ELF two"}
    seen = observation(
        [distribution("demo", "1.0", files)], {f"{SITE}/demo/new.py": "new\n", f"{SITE}/stray.py": "stray\n"}
    )
    other = published("demo", "0.9", {**BASE, "demo/native.so": "ELF two"})
    contents = {**BASE, "1": "a = 2\n", "2": "new\n"}
    fates = settled(seen, [published("demo", "1.0", BASE)], contents, known=(other,))
    assert {path: fate.kind for path, fate in fates.items()} == {
        "demo-1.0.dist-info/METADATA": "made",
        "demo/a.py": "patched",
        "demo/b.py": "same",
        "demo/c.py": "deleted",
        "demo/native.so": "foreign",
        "demo/new.py": "patched",
        "stray.py": "unexplained",
    }
    assert fates["demo/native.so"].wheel == other.file


def test_content_that_could_not_be_read_makes_no_patch() -> None:
    seen = observation([distribution("demo", "1.0", {**BASE, "demo/a.py": "a = 2\n"})])
    fates = settled(seen, [published("demo", "1.0", BASE)], {})
    assert fates["demo/a.py"].kind == "unexplained"
    assert "could not be read" in fates["demo/a.py"].reason


def test_metadata_that_differs_in_its_local_version_only_is_made_anew() -> None:
    each = distribution("demo", "1.0+ours", BASE)
    contents = {"1": "Name: demo\nVersion: 1.0+ours\n", "2": "Name: demo\nVersion: 1.0\n"}
    fates = settled(observation([each]), [published("demo", "1.0", BASE)], contents)
    assert fates["demo-1.0+ours.dist-info/METADATA"].kind == "made"
    contents["1"] = "Name: demo\nVersion: 1.0+ours\nRequires-Dist: x\n"
    rows = [
        file._replace(sha256=sha256(contents["1"])) if file.path.endswith("METADATA") else file for file in each.files
    ]
    fates = settled(
        observation(
            [each.__class__(**{**{name: getattr(each, name) for name in each.__slots__}, "files": tuple(rows)})]
        ),
        [published("demo", "1.0", BASE)],
        contents,
    )
    assert fates["demo-1.0+ours.dist-info/METADATA"].kind == "unexplained"


def test_new_file_in_a_folder_of_several_packages_belongs_to_none() -> None:
    wheels = [
        published(name, "1.0", {f"space/{name}/x.py": name, f"space/{name}.py": name}) for name in ("left", "right")
    ]
    seen = observation(
        [
            distribution(name, "1.0", {f"space/{name}/x.py": name, f"space/{name}.py": name})
            for name in ("left", "right")
        ],
        {f"{SITE}/space/new.py": "1", f"{SITE}/space/left/new.py": "2"},
    )
    fates = settled(seen, wheels, {"1": "1", "2": "2"})
    assert (fates["space/new.py"].kind, fates["space/new.py"].package) == ("unexplained", "")
    assert (fates["space/left/new.py"].kind, fates["space/left/new.py"].package) == ("patched", "left")


def test_metadata_that_is_alike_in_other_packages_is_not_called_theirs() -> None:
    licence = "a licence\n" * 100
    files = {"demo-1.0.dist-info/LICENSE": licence, "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\n"}
    other = published("other", "2.0", {f"other-2.0.dist-info/{name}": text for name, text in
        (("LICENSE", licence), ("WHEEL", "Wheel-Version: 1.0\n"))})  # fmt: skip
    fates = settled(observation([distribution("demo", "1.0", {**BASE, **files})]), [], {}, known=(other,))
    assert {fate.kind for path, fate in fates.items() if "dist-info" in path} == {"unexplained"}


def test_foreign_files_are_of_the_one_version_that_has_most_of_them() -> None:
    names = [f"demo/lib{number}.so" for number in range(4)]
    wheels = {version: dict.fromkeys(names, f"{version} bytes") for version in ("1.0", "1.1", "1.2", "1.3")}
    wheels["1.1"]["demo/lib0.so"] = wheels["1.2"]["demo/lib0.so"] = "shared bytes"
    text = {f"demo/m{number}.py": f"{number}\n" for number in range(9)}
    known = [
        published("demo", version, {**files, **({} if version != "1.0" else text)}) for version, files in wheels.items()
    ]
    seen = observation([distribution("demo", "1.0", {**text, **wheels["1.1"]})])
    fates = settled(seen, known, {})
    assert {fates[name].wheel for name in names} == {"demo-1.1-py3-none-any.whl"}


def test_small_files_that_are_alike_by_chance_are_nobodys() -> None:
    other = published("other", "1.0", {"other/x.py": "x\n", "other/big.py": "y" * 600, "other/same.py": "z\n"})
    seen = observation(
        [distribution("demo", "1.0", BASE)],
        {f"{SITE}/a.py": "x\n", f"{SITE}/b.py": "y" * 600, f"{SITE}/same.py": "z\n"},
    )
    fates = settled(seen, [published("demo", "1.0", BASE)], {}, known=(other,))
    assert {path: fates[path].kind for path in ("a.py", "b.py", "same.py")} == {
        "a.py": "unexplained",
        "b.py": "foreign",
        "same.py": "foreign",
    }


PATHS = st.lists(
    st.sampled_from(["demo", "x.py", "..", "", "a\nb", "é", "demo-1.0.dist-info", "RECORD", "bin", "z.data"]),
    min_size=1,
    max_size=4,
)


@given(st.dictionaries(PATHS.map("/".join), st.sampled_from(["a", "b = 1\n", ""]), max_size=6), st.booleans())
def test_every_path_has_exactly_one_fate(files: dict[str, str], recorded: object) -> None:
    rows = [observed_file(f"{SITE}/{path}", text, text if recorded else None) for path, text in files.items()]
    each = distribution("demo", "1.0", {"demo/a.py": "a = 1\n"})
    if recorded:
        known = {file.path for file in each.files}
        extra = tuple(file for file in rows if file.path not in known)
        each = each.__class__(
            **{**{name: getattr(each, name) for name in each.__slots__}, "files": (*each.files, *extra)}
        )
        seen = observation([each])
    else:
        seen = observation([each], {file.path: files[file.path.removeprefix(f"{SITE}/")] for file in rows})
    fates = settled(seen, [published("demo", "1.0", {"demo/a.py": "a = 1\n", "demo/b.py": "b = 1\n"})], {})
    there = {file.path.removeprefix(f"{SITE}/") for one in seen.distributions for file in one.files} | {
        file.path.removeprefix(f"{SITE}/") for file in seen.strays
    }
    assert there <= fates.keys()


UV_SCRIPT = """#!/venv/bin/python
# -*- coding: utf-8 -*-
import sys
from demo.cli import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""
PIP_SCRIPT = r"""#!/venv/bin/python3.12
import re
import sys
from demo.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
LONG_START = "#!/bin/sh\n'''exec' \"/a very long/path/bin/python\" \"$0\" \"$@\"\n' '''\n"


@pytest.mark.parametrize(
    ("script", "plain"),
    [
        (UV_SCRIPT, True),
        (PIP_SCRIPT, True),
        (LONG_START + UV_SCRIPT.partition("\n")[2], True),
        (console_script("demo.cli", "main").decode(), True),
        (UV_SCRIPT.replace("import sys", "import sys; import os"), False),
        (UV_SCRIPT + "print('more')\n", False),
        (UV_SCRIPT.replace("demo.cli", "other.cli"), False),
        (LONG_START.replace("/a very", "$(rm -rf /)") + UV_SCRIPT.partition("\n")[2], False),
        (UV_SCRIPT.partition("\n")[2], False),
        ("", False),
    ],
)
def test_console_script_is_known_line_by_line(script: str, *, plain: bool) -> None:
    assert is_console_script(script.encode(), "demo.cli:main") is plain


@pytest.mark.parametrize(
    ("script", "same"),
    [
        ("#!python\nx = 1\n", True),
        ("#!/venv/bin/python\nx = 1\n", True),
        (LONG_START + "x = 1\n", True),
        (rewrite_script(b"#!python\nx = 1\n").decode(), True),
        ("#!/venv/bin/python\nx = 2\n", False),
        ("x = 1\n", False),
        ("#!/bin/sh\nrm -rf /\n' '''\nx = 1\n", False),
    ],
)
def test_script_of_a_wheel_is_known_whatever_its_first_line(script: str, *, same: bool) -> None:
    assert is_script_of(script.encode(), b"#!python\nx = 1\n") is same
