from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from builder.resolve import Located, Resolution, locate, resolve
from builder.uv import Uv, find_uv
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.lock import LockedPackage
from envspec.spec import IndexSpec, PythonSpec, Requirement, Spec, TargetSpec
from tests.support.local_index import Fault, LocalIndex
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SNAPSHOT = datetime(2024, 1, 1, tzinfo=timezone.utc)


def requirement(text: str) -> Requirement:
    name, equals, version = text.partition("==")
    name, bracket, extras = name.partition("[")
    return Requirement(
        name=name, specifier=equals + version, extras=tuple(extras.rstrip("]").split(",")) if bracket else ()
    )


def spec_of(*packages: str, overrides: tuple[str, ...] = (), python: str = "3.12", **changed: Any) -> Spec:
    fields: dict[str, Any] = {
        "name": "demo",
        "snapshot": None,
        "python": PythonSpec(version=python),
        "target": TargetSpec(platform="linux-x86_64", glibc="2.35"),
        "cuda": None,
        "packages": tuple(requirement(text) for text in sorted(packages)),
        "overrides": tuple(requirement(text) for text in overrides),
    }
    return Spec(**{**fields, **changed})


class Desk:
    """Resolves and locates with the real uv, in an environment without any configuration."""

    def __init__(self, folder: Path, index: LocalIndex, uv: Uv) -> None:
        self.folder = folder
        self.cache_dir = folder / "cache"
        self.uv = uv
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_CONFIG_DIRS": str(folder / "none"),
            "UV_DEFAULT_INDEX": index.url,
            "UV_HTTP_RETRIES": "0",
        }

    def resolve(self, spec: Spec, *, preferences: dict[str, str] | None = None, upgrade: str = "") -> Resolution:
        return resolve(
            spec,
            uv=self.uv,
            environ=self.environ,
            cache_dir=self.cache_dir,
            preferences=preferences or {},
            upgrade=frozenset(filter(None, [upgrade])),
        )

    def fail(self, spec: Spec) -> EnvspecError:
        with pytest.raises(EnvspecError) as caught:
            self.resolve(spec)
        assert_silent(caught.value)
        return caught.value

    def locate(self, *wanted: LockedPackage, **changed: Any) -> dict[str, str]:
        options: dict[str, Any] = {"python": "3.12", "platform": "linux-x86_64", "glibc": "2.35", "indexes": ()}
        return locate(wanted, uv=self.uv, environ=self.environ, cache_dir=self.cache_dir, **{**options, **changed})

    def fail_to_locate(self, *wanted: LockedPackage, **changed: Any) -> EnvspecError:
        with pytest.raises(EnvspecError) as caught:
            self.locate(*wanted, **changed)
        assert_silent(caught.value)
        return caught.value


def assert_silent(error: EnvspecError) -> None:
    """No error shows where an index is or how one logs in."""
    shown = str(error)
    assert "127.0.0.1" not in shown
    assert "://" not in shown
    assert "s3cret" not in shown


def versions(resolution: Resolution) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in resolution.wheels}


def places(resolution: Resolution) -> dict[str, str]:
    return {wheel.name: wheel.index for wheel in resolution.wheels}


@pytest.fixture
def main(tmp_path: Path) -> Iterator[LocalIndex]:
    """The default index."""
    folder = tmp_path / "main"
    make_wheel(folder, "app", "1.0", requires=["lib>=1", "other"])
    for version in ("1.0", "1.5", "2.0"):
        make_wheel(folder, "lib", version)
    make_wheel(folder, "other", "1.0")
    make_wheel(folder, "other", "2.0")
    with LocalIndex(folder) as index:
        yield index


@pytest.fixture
def side(tmp_path: Path) -> Iterator[LocalIndex]:
    """An index beside the default one."""
    folder = tmp_path / "side"
    make_wheel(folder, "lib", "1.2")
    make_wheel(folder, "lib", "1.3+cu130")
    make_wheel(folder, "other", "9.0")
    make_wheel(folder, "only-here", "1.0", requires=["lib"])
    with LocalIndex(folder) as index:
        yield index


@pytest.fixture(scope="module")
def uv() -> Uv:
    return find_uv(os.environ)


@pytest.fixture
def desk(tmp_path: Path, main: LocalIndex, uv: Uv) -> Desk:
    return Desk(tmp_path, main, uv)


def side_index(side: LocalIndex, *packages: str) -> tuple[IndexSpec, ...]:
    return (IndexSpec(name="side", url=side.url, packages=packages),)


# What is chosen


def test_a_resolution_has_every_wheel_with_its_digest_and_its_requesters(desk: Desk, main: LocalIndex) -> None:
    resolution = desk.resolve(spec_of("app"))
    assert versions(resolution) == {"app": "1.0", "lib": "2.0", "other": "2.0"}
    assert places(resolution) == dict.fromkeys(["app", "lib", "other"], "default")
    assert resolution.required_by == {"app": (), "lib": ("app",), "other": ("app",)}
    assert resolution.yanked == {}
    for wheel in resolution.wheels:
        content = (main.folder / wheel.file).read_bytes()
        assert (wheel.sha256, wheel.size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert wheel.url == main.file_url(wheel.file)
    assert "127.0.0.1" not in repr(resolution)


def test_of_several_wheels_the_one_is_taken_that_an_installer_takes(desk: Desk, main: LocalIndex) -> None:
    for build, tag in [
        ("", "cp312-cp312-manylinux_2_28_x86_64"),
        ("2", "cp312-cp312-manylinux_2_28_x86_64"),
        ("10", "cp312-cp312-manylinux_2_28_x86_64"),
        ("99", "cp312-cp312-manylinux_2_17_x86_64"),
        ("99", "cp312-cp312-manylinux_2_39_x86_64"),
        ("99", "cp311-cp311-manylinux_2_28_x86_64"),
        ("99", "py3-none-any"),
    ]:
        make_wheel(main.folder, "many", "1.0", build=build, tag=tag)
    (wheel,) = desk.resolve(spec_of("many")).wheels
    assert wheel.file == "many-1.0-10-cp312-cp312-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize("glibc", ["2.30", "2.41"])
def test_a_glibc_that_uv_has_no_platform_for_is_resolved_for_the_next_lower_one(
    desk: Desk, main: LocalIndex, glibc: str
) -> None:
    make_wheel(main.folder, "many", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    spec = spec_of("many", target=TargetSpec(platform="linux-x86_64", glibc=glibc))
    assert versions(desk.resolve(spec)) == {"many": "1.0"}


def test_the_wheels_are_those_of_the_targets_platform(desk: Desk, main: LocalIndex) -> None:
    for machine in ("x86_64", "aarch64"):
        make_wheel(main.folder, "many", "1.0", tag=f"cp312-cp312-manylinux_2_28_{machine}")
    spec = spec_of("many", target=TargetSpec(platform="linux-aarch64", glibc="2.35"))
    assert desk.resolve(spec).wheels[0].file == "many-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"


def test_extras_and_the_markers_of_the_target_count(desk: Desk, main: LocalIndex) -> None:
    make_wheel(
        main.folder,
        "rich-app",
        "1.0",
        extras=["more"],
        requires=[
            "lib; extra == 'more' and python_version == '3.12'",
            "missing; platform_machine != 'x86_64'",
            "missing; python_full_version != '3.12.3'",
        ],
    )
    spec = replace(spec_of("rich-app[more]"), python=PythonSpec(version="3.12", exact="3.12.3"))
    assert set(versions(desk.resolve(spec))) == {"rich-app", "lib"}


def test_an_override_replaces_what_others_ask_for(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "strict", "1.0", requires=["lib==1.5"])
    assert versions(desk.resolve(spec_of("strict", overrides=("lib==1.0",))))["lib"] == "1.0"


def test_nothing_that_was_published_after_the_snapshot_is_taken(desk: Desk, main: LocalIndex) -> None:
    main.upload_times["lib-2.0-py3-none-any.whl"] = "2024-01-02T00:00:00Z"
    assert versions(desk.resolve(spec_of("app", snapshot=SNAPSHOT)))["lib"] == "1.5"
    assert versions(desk.resolve(spec_of("app")))["lib"] == "2.0"


# The lock so far


def test_versions_of_the_lock_are_kept_where_they_can(desk: Desk) -> None:
    kept = {"lib": "1.5", "other": "1.0", "gone": "3.0"}
    assert versions(desk.resolve(spec_of("app"), preferences=kept)) == {"app": "1.0", "lib": "1.5", "other": "1.0"}
    assert versions(desk.resolve(spec_of("app"), preferences=kept, upgrade="lib"))["lib"] == "2.0"
    assert versions(desk.resolve(spec_of("app"), preferences=kept, upgrade="lib"))["other"] == "1.0"


def test_only_what_must_move_moves(desk: Desk) -> None:
    kept = {"lib": "1.5", "other": "1.0"}
    moved = desk.resolve(spec_of("app", "lib==2.0"), preferences=kept)
    assert versions(moved) == {"app": "1.0", "lib": "2.0", "other": "1.0"}


# Mirrors


def without_urls(resolution: Resolution) -> Resolution:
    return replace(resolution, wheels=tuple(replace(wheel, url="") for wheel in resolution.wheels))


def test_two_mirrors_of_other_layouts_give_the_same_resolution(desk: Desk, main: LocalIndex) -> None:
    main.yanked["other-2.0-py3-none-any.whl"] = "why"
    spec = spec_of("app", "other==2.0", snapshot=SNAPSHOT)
    first = desk.resolve(spec)
    with LocalIndex(main.folder, layout="hashed", credentials=("us er", "s3cret@/:")) as mirror:
        mirror.yanked = main.yanked
        for place in ({"UV_DEFAULT_INDEX": mirror.url_with_credentials}, {"UV_INDEX_URL": mirror.url_with_credentials}):
            del desk.environ["UV_DEFAULT_INDEX" if "UV_DEFAULT_INDEX" in desk.environ else "UV_INDEX_URL"]
            desk.environ.update(place)
            second = desk.resolve(spec)
            assert without_urls(second) == without_urls(first)
            assert [wheel.url for wheel in second.wheels] == [mirror.file_url(wheel.file) for wheel in second.wheels]


@pytest.mark.parametrize(
    "text",
    [
        '[[index]]\nname = "corp"\nurl = "{url}"\ndefault = true\n',
        'index-url = "{url}"\n',
        '[pip]\nindex-url = "{url}"\n',
    ],
)
def test_the_mirror_of_uv_toml_is_used_and_nothing_else_of_it(desk: Desk, main: LocalIndex, text: str) -> None:
    del desk.environ["UV_DEFAULT_INDEX"]
    with LocalIndex(main.folder, credentials=("user", "s3cret")) as mirror:
        (desk.folder / ".config/uv").mkdir(parents=True)
        (desk.folder / ".config/uv/uv.toml").write_text(
            'resolution = "lowest"\nconstraint-dependencies = ["lib<2"]\nexclude-newer = "2000-01-01"\n'
            + text.format(url=mirror.url_with_credentials)
        )
        assert versions(desk.resolve(spec_of("app"))) == {"app": "1.0", "lib": "2.0", "other": "2.0"}
        assert mirror.requests[-1].authorization == "user"


@pytest.mark.parametrize("folder", ["here", "above"])
def test_a_uv_toml_of_a_project_does_not_count(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    here = tmp_path / "project/sub"
    here.mkdir(parents=True)
    (here if folder == "here" else here.parent).joinpath("uv.toml").write_text('resolution = "lowest"\n')
    monkeypatch.chdir(here)
    assert versions(desk.resolve(spec_of("app")))["lib"] == "2.0"


def test_variables_of_uv_do_not_change_the_resolution(desk: Desk, tmp_path: Path) -> None:
    plain = desk.resolve(spec_of("app"))
    (tmp_path / "c.txt").write_text("lib<2\n")
    desk.environ |= {
        "UV_RESOLUTION": "lowest",
        "UV_PRERELEASE": "allow",
        "UV_CONSTRAINT": str(tmp_path / "c.txt"),
        "UV_OVERRIDE": str(tmp_path / "c.txt"),
        "UV_BUILD_CONSTRAINT": str(tmp_path / "gone"),
        "UV_EXCLUDE_NEWER": "2000-01-01",
        "UV_NO_BINARY": "1",
        "UV_TORCH_BACKEND": "cpu",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_CACHE": "1",
        "UV_PYTHON": "3.6",
        "PIP_INDEX_URL": "http://nowhere.invalid/",
    }
    assert desk.resolve(spec_of("app")) == plain


def test_a_broken_python_in_path_does_no_harm(desk: Desk, tmp_path: Path) -> None:
    for name in ("python", "python3", "python3.12"):
        shim = tmp_path / "shims" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text("#!/bin/sh\nexit 127\n")
        shim.chmod(0o755)
    desk.environ["PATH"] = os.pathsep.join([str(tmp_path / "shims"), desk.environ["PATH"]])
    assert len(desk.resolve(spec_of("app", python="3.14")).wheels) == 3


def test_an_index_that_forbids_to_keep_its_pages_is_asked_twice(desk: Desk, main: LocalIndex) -> None:
    main.headers = {"Cache-Control": "no-store"}
    assert places(desk.resolve(spec_of("app")))["lib"] == "default"


def test_an_index_of_links_without_sizes_and_digests_will_do(desk: Desk, main: LocalIndex) -> None:
    main.form, main.hashes = "html", False
    resolution = desk.resolve(spec_of("lib"))
    content = (main.folder / "lib-2.0-py3-none-any.whl").read_bytes()
    assert [(wheel.sha256, wheel.size) for wheel in resolution.wheels] == [(hashlib.sha256(content).hexdigest(), None)]


def test_a_folder_can_stand_in_for_the_default_index(desk: Desk, tmp_path: Path) -> None:
    page = tmp_path / "folder/lib"
    wheel = make_wheel(page, "lib", "7.0")
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    desk.environ["UV_DEFAULT_INDEX"] = str(tmp_path / "folder")
    (found,) = desk.resolve(spec_of("lib")).wheels
    assert (found.index, found.url) == ("default", wheel.as_uri())


# Indexes of the spec


def test_a_package_comes_from_the_index_that_names_it(desk: Desk, side: LocalIndex) -> None:
    resolution = desk.resolve(spec_of("app", "lib", indexes=side_index(side, "lib")))
    assert places(resolution) == {"app": "default", "lib": "side", "other": "default"}
    assert versions(resolution) == {"app": "1.0", "lib": "1.3+cu130", "other": "2.0"}


@pytest.mark.parametrize("pattern", ["lib", "li*"])
def test_a_package_that_only_others_need_comes_from_the_index_that_names_it(
    desk: Desk, side: LocalIndex, pattern: str
) -> None:
    resolution = desk.resolve(spec_of("app", indexes=side_index(side, pattern)))
    assert places(resolution) == {"app": "default", "lib": "side", "other": "default"}
    assert resolution.required_by["lib"] == ("app",)


def test_a_package_that_is_nowhere_else_is_found_where_the_spec_says(
    desk: Desk, main: LocalIndex, side: LocalIndex
) -> None:
    make_wheel(main.folder, "needs-it", "1.0", requires=["only-here"])
    resolution = desk.resolve(spec_of("needs-it", indexes=side_index(side, "only-*")))
    assert places(resolution) == {"needs-it": "default", "only-here": "side", "lib": "default"}


def test_many_packages_that_are_nowhere_else_are_found(desk: Desk, main: LocalIndex, side: LocalIndex) -> None:
    names = [f"cu-{number}" for number in range(20)]
    make_wheel(main.folder, "needs-all", "1.0", requires=[*names, "lib"])
    for name in names:
        make_wheel(side.folder, name, "1.0", requires=[f"{name}-data"])
        make_wheel(side.folder, f"{name}-data", "1.0")
    resolution = desk.resolve(spec_of("needs-all", indexes=side_index(side, "cu-*")))
    found = places(resolution)
    assert {name for name, place in found.items() if place == "side"} == {*names, *(f"{name}-data" for name in names)}
    assert versions(resolution)["lib"] == "2.0"


def test_a_package_that_nobody_needs_after_all_is_left_out(desk: Desk, main: LocalIndex, side: LocalIndex) -> None:
    # The newest `flex` needs a `lib` that the index named for it does not have; the one before needs none.
    make_wheel(main.folder, "flex", "1.0")
    make_wheel(main.folder, "flex", "2.0", requires=["lib<1.1"])
    resolution = desk.resolve(spec_of("flex", indexes=side_index(side, "lib")))
    assert versions(resolution) == {"flex": "1.0"}
    assert resolution.required_by == {"flex": ()}


def test_an_index_of_the_spec_gets_its_credentials_and_shows_none(desk: Desk, side: LocalIndex) -> None:
    side.credentials = ("user", "s3cret")
    spec = spec_of("app", indexes=side_index(side, "lib"))
    refused = desk.fail(spec)
    assert refused.message == "the index `side` refuses the credentials, or needs some"
    assert "UV_INDEX_<NAME>_USERNAME" in refused.hint
    assert refused.exit_code == COULD_NOT_LOOK
    desk.environ |= {"UV_INDEX_SIDE_USERNAME": "user", "UV_INDEX_SIDE_PASSWORD": "s3cret"}
    assert places(desk.resolve(spec))["lib"] == "side"


def test_netrc_gives_credentials_for_an_index_of_the_spec(desk: Desk, side: LocalIndex) -> None:
    side.credentials = ("user", "s3cret")
    (desk.folder / ".netrc").write_text("machine 127.0.0.1 login user password s3cret\n")
    (desk.folder / ".netrc").chmod(0o600)
    assert places(desk.resolve(spec_of("lib", indexes=side_index(side, "lib"))))["lib"] == "side"


def test_a_mirror_of_an_index_of_the_spec_has_its_name(desk: Desk, side: LocalIndex) -> None:
    spec = spec_of("app", indexes=side_index(side, "lib"))
    first = desk.resolve(spec)
    with LocalIndex(side.folder, layout="hashed", credentials=("user", "s3cret")) as mirror:
        desk.environ["UV_INDEX"] = f"side={mirror.url_with_credentials}"
        asked_before = len(side.requests)
        second = desk.resolve(spec)
        assert without_urls(second) == without_urls(first)
        assert len(side.requests) == asked_before


def test_an_override_of_a_package_with_an_index_comes_from_that_index(desk: Desk, side: LocalIndex) -> None:
    side.credentials = ("user", "s3cret")
    desk.environ |= {"UV_INDEX_SIDE_USERNAME": "user", "UV_INDEX_SIDE_PASSWORD": "s3cret"}
    spec = spec_of("app", "lib==2.0", overrides=("lib==1.2",), indexes=side_index(side, "lib"))
    resolution = desk.resolve(spec)
    assert places(resolution) == {"app": "default", "lib": "side", "other": "default"}
    lib = resolution.wheels[1]
    content = (side.folder / "lib-1.2-py3-none-any.whl").read_bytes()
    assert (lib.version, lib.sha256, lib.size) == ("1.2", hashlib.sha256(content).hexdigest(), len(content))


# Indexes that nobody asked for


@pytest.mark.parametrize("place", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "uv.toml"])
def test_a_package_from_an_index_that_is_not_named_for_it_is_an_error(desk: Desk, side: LocalIndex, place: str) -> None:
    side.credentials = ("user", "s3cret")
    if place == "uv.toml":
        (desk.folder / ".config/uv").mkdir(parents=True)
        text = f'[[index]]\nurl = "{side.url_with_credentials}"\n'
        (desk.folder / ".config/uv/uv.toml").write_text(text)
    else:
        desk.environ[place] = str(side.folder) if place == "UV_FIND_LINKS" else side.url_with_credentials
    error = desk.fail(spec_of("app", "lib==1.2"))
    assert error.message == "2 packages come from an index that the spec does not name for it [index-not-allowed]"
    assert [problem.message for problem in error.problems] == ["`lib` 1.2", "`other` 9.0"]
    assert error.exit_code == FOUND_WRONG


def test_an_index_that_gives_nothing_does_no_harm(desk: Desk, side: LocalIndex, main: LocalIndex) -> None:
    make_wheel(main.folder, "alone", "1.0")
    desk.environ["UV_INDEX"] = side.url
    assert places(desk.resolve(spec_of("alone"))) == {"alone": "default"}


def test_an_index_of_the_spec_gives_nothing_that_it_does_not_name(desk: Desk, side: LocalIndex) -> None:
    resolution = desk.resolve(spec_of("lib", "other", indexes=side_index(side, "lib")))
    assert versions(resolution)["other"] == "2.0"


# Why there is no resolution


def test_a_package_without_wheels_is_told_with_its_requesters(desk: Desk, main: LocalIndex) -> None:
    (main.folder / "flash-1.0.tar.gz").write_bytes(b"not even looked at")
    make_wheel(main.folder, "mid", "1.0", requires=["flash"])
    make_wheel(main.folder, "top", "1.0", requires=["mid"])
    error = desk.fail(spec_of("top"))
    assert error.message == "`flash` has no wheel, only source archives [sdist-only]"
    assert error.detail.splitlines()[0] == "asked for by: the spec -> top -> mid -> flash"
    assert error.exit_code == FOUND_WRONG
    assert main.paths_requested(".tar.gz") == []


def test_a_partly_published_release_is_told_with_the_newest_that_is_complete(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "nixl", "1.5.0", requires=["nixl-cu13==1.5.0"])
    make_wheel(main.folder, "nixl", "1.5.1", requires=["nixl-cu13==1.5.1"])
    make_wheel(main.folder, "nixl", "1.5.2", requires=["nixl-cu13==1.5.2"])
    make_wheel(main.folder, "nixl-cu13", "1.5.0")
    make_wheel(main.folder, "nixl-cu13", "1.5.1")
    error = desk.fail(spec_of("nixl==1.5.2"))
    assert error.message == (
        "no set of packages satisfies the spec on Python 3.12, linux-x86_64, glibc 2.35 [unsatisfiable]"
    )
    assert "there is no version of nixl-cu13==1.5.2" in error.detail
    assert error.hint == "with `nixl` 1.5.1 the spec resolves: it is the newest version that does"
    assert error.exit_code == FOUND_WRONG


def test_two_pins_that_contradict_each_other_are_told_with_a_way_out_for_each(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "strict", "1.0", requires=["lib==1.5"])
    make_wheel(main.folder, "strict", "2.0", requires=["lib==2.0"])
    error = desk.fail(spec_of("strict==2.0", "lib==1.5"))
    assert error.hint == ("with `lib` 2.0 or `strict` 1.0 the spec resolves: each is the newest version that does")


def test_what_was_published_after_the_snapshot_is_told(desk: Desk, main: LocalIndex) -> None:
    main.upload_times["lib-2.0-py3-none-any.whl"] = "2024-01-02T00:00:00Z"
    error = desk.fail(spec_of("lib==2.0", snapshot=SNAPSHOT))
    assert "`snapshot` leaves out every version of `lib` that would do" in error.hint


def test_wheels_for_other_platforms_only_are_told(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "newer", "1.0", tag="cp312-cp312-manylinux_2_39_x86_64")
    error = desk.fail(spec_of("newer"))
    assert "[unsatisfiable]" in error.message
    assert "manylinux_2_39_x86_64" in error.hint


def test_a_package_that_is_nowhere_is_told(desk: Desk) -> None:
    error = desk.fail(spec_of("app", "nowhere"))
    assert error.message == "`nowhere` is not on the index `default` [unknown-package]"
    assert error.exit_code == FOUND_WRONG


def test_a_package_that_is_not_on_its_index_is_told(desk: Desk, side: LocalIndex) -> None:
    error = desk.fail(spec_of("app", indexes=side_index(side, "app")))
    assert error.message == "`app` is not on the index `side` [unknown-package]"


def test_refused_credentials_are_told(desk: Desk, main: LocalIndex) -> None:
    main.credentials = ("user", "s3cret")
    desk.environ["UV_DEFAULT_INDEX"] = main.url.replace("://", "://user:s3cret-but-wrong@")
    error = desk.fail(spec_of("app"))
    assert error.message == "the index `default` refuses the credentials, or needs some"
    assert error.exit_code == COULD_NOT_LOOK


def test_an_index_that_is_not_there_is_told(desk: Desk, main: LocalIndex) -> None:
    with LocalIndex(main.folder) as gone:
        desk.environ["UV_DEFAULT_INDEX"] = gone.url.replace("://", "://user:s3cret@")
    error = desk.fail(spec_of("app"))
    assert error.message == "an index cannot be reached: Connection refused (os error 111)"
    assert error.exit_code == COULD_NOT_LOOK


def test_an_index_that_is_out_of_order_is_told(desk: Desk, main: LocalIndex) -> None:
    main.faults["app"] = Fault("status", status=500)
    error = desk.fail(spec_of("app"))
    assert error.message == (
        "an index cannot be reached: HTTP status server error (500 Internal Server Error) for url (<url>)"
    )


def test_a_uv_that_may_not_use_the_network_is_told(desk: Desk) -> None:
    desk.environ["UV_OFFLINE"] = "1"
    assert desk.fail(spec_of("app")).message == "uv may not use the network, and its cache lacks what the spec needs"


def test_a_wheel_that_uv_cannot_read_is_told_in_its_words(desk: Desk, main: LocalIndex) -> None:
    main.metadata = False
    (main.folder / "bad-1.0-py3-none-any.whl").write_bytes(b"no archive")
    error = desk.fail(spec_of("bad"))
    assert error.message == "uv could not answer"
    assert "bad-1.0-py3-none-any.whl" in error.detail


def test_a_snapshot_with_an_index_that_knows_no_upload_times_is_told(desk: Desk, main: LocalIndex) -> None:
    main.upload_time = None
    error = desk.fail(spec_of("app", snapshot=SNAPSHOT))
    assert error.message == (
        "the index of `app` does not say when files were uploaded, so `snapshot` leaves them all out [no-upload-time]"
    )


def test_a_file_without_an_upload_time_does_not_change_the_choice_in_silence(desk: Desk, main: LocalIndex) -> None:
    main.upload_times["lib-2.0-py3-none-any.whl"] = None
    assert "`lib`" in desk.fail(spec_of("app", snapshot=SNAPSHOT)).message


def test_what_the_spec_pins_comes_from_an_index_without_upload_times(desk: Desk, side: LocalIndex) -> None:
    side.upload_time = None
    indexes = side_index(side, "lib")
    spec = spec_of("app", "lib==1.2", snapshot=SNAPSHOT, indexes=indexes)
    assert versions(desk.resolve(spec)) == {"app": "1.0", "lib": "1.2", "other": "2.0"}
    overridden = spec_of("app", overrides=("lib==1.2",), snapshot=SNAPSHOT, indexes=indexes)
    assert versions(desk.resolve(overridden))["lib"] == "1.2"
    assert "[no-upload-time]" in desk.fail(spec_of("app", snapshot=SNAPSHOT, indexes=indexes)).message


def test_a_yanked_version_that_is_pinned_comes_with_its_reason(desk: Desk, main: LocalIndex) -> None:
    main.yanked = {"lib-1.5-py3-none-any.whl": "corrupted wheel", "other-1.0-py3-none-any.whl": ""}
    resolution = desk.resolve(spec_of("app", "lib==1.5", "other==1.0"))
    assert resolution.yanked == {"lib": "corrupted wheel", "other": ""}
    assert desk.resolve(spec_of("app")).yanked == {}


def test_an_extra_that_does_not_exist_is_an_error(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "half", "1.0", requires=["lib[no-such]"], extras=["real"])
    error = desk.fail(spec_of("half[real,unreal]"))
    assert error.message == "the spec asks for extras that do not exist"
    assert [problem.message for problem in error.problems] == ["`half` has no extra `unreal`"]
    assert set(versions(desk.resolve(spec_of("half[real]")))) == {"half", "lib"}


def test_no_url_stands_in_an_argument_of_a_process(desk: Desk, main: LocalIndex, side: LocalIndex) -> None:
    script = desk.folder / "uv"
    script.write_text(f'#!/bin/sh\necho "$@" >> {desk.folder}/arguments\nexec {desk.uv.path} "$@"\n')
    script.chmod(0o755)
    desk.uv = replace(desk.uv, path=script)
    for index in (main, side):
        index.credentials = ("user", "s3cret")
    desk.environ |= {
        "UV_DEFAULT_INDEX": main.url_with_credentials,
        "UV_INDEX": f"side={side.url_with_credentials} {main.url_with_credentials}",
    }
    spec = spec_of(
        "app", "only-here", overrides=("lib==1.2",), snapshot=SNAPSHOT, indexes=side_index(side, "lib", "only-here")
    )
    desk.resolve(spec)
    arguments = (desk.folder / "arguments").read_text()
    assert arguments.count("pip compile") == 3
    for secret in ("://", "127.0.0.1", "s3cret", "user"):
        assert secret not in arguments


# Where the wheels of a lock are today


def locked(folder: Path, file: str, *, index: str = "default", **changed: Any) -> LockedPackage:
    content = (folder / file).read_bytes()
    name, version = file.split("-")[:2]
    fields = {
        "name": name.replace("_", "-"),
        "version": version,
        "index": index,
        "file": file,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "tree": "",
    }
    return LockedPackage(**{**fields, **changed})


APP, LIB, OTHER = "app-1.0-py3-none-any.whl", "lib-1.5-py3-none-any.whl", "other-1.0-py3-none-any.whl"


def test_locked_wheels_are_found_on_any_mirror(desk: Desk, main: LocalIndex) -> None:
    wanted = [locked(main.folder, file) for file in (APP, LIB, OTHER)]
    assert desk.locate(*wanted) == {package.sha256: main.file_url(package.file) for package in wanted}
    with LocalIndex(main.folder, layout="hashed", form="html", credentials=("user", "s3cret")) as mirror:
        desk.environ["UV_DEFAULT_INDEX"] = mirror.url_with_credentials
        assert desk.locate(*wanted) == {package.sha256: mirror.file_url(package.file) for package in wanted}


def test_each_wheel_is_told_of_as_it_is_found(desk: Desk, main: LocalIndex) -> None:
    files = [make_wheel(main.folder, f"w{number}", "1").name for number in range(20)]
    wanted = [locked(main.folder, file) for file in files]
    told: list[Located] = []
    urls = desk.locate(*wanted, on_located=told.append)
    assert {one.package.sha256: one.url for one in told} == urls
    assert len(told) == 20
    assert "127.0.0.1" not in repr(told)


def test_a_locked_wheel_is_found_among_those_of_other_build_tags(desk: Desk, main: LocalIndex) -> None:
    for build in ("", "1", "2"):
        make_wheel(main.folder, "built", "1.0", {"built.py": build}, build=build)
    package = locked(main.folder, "built-1.0-1-py3-none-any.whl")
    assert desk.locate(package) == {package.sha256: main.file_url(package.file)}


def test_a_locked_wheel_is_not_mistaken_for_its_local_version(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "lib", "1.5+cu130")
    package = locked(main.folder, LIB)
    assert desk.locate(package) == {package.sha256: main.file_url(LIB)}


def test_the_version_of_the_file_name_is_looked_for(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "odd", "1.0+cu130", metadata_version="1.0")
    package = locked(main.folder, "odd-1.0+cu130-py3-none-any.whl", version="1.0")
    assert desk.locate(package) == {package.sha256: main.file_url(package.file)}


def test_a_wheel_that_was_yanked_later_is_found(desk: Desk, main: LocalIndex) -> None:
    main.yanked[LIB] = "broken"
    package = locked(main.folder, LIB)
    assert set(desk.locate(package)) == {package.sha256}


def test_upload_times_play_no_part(desk: Desk, main: LocalIndex) -> None:
    main.upload_time = None
    package = locked(main.folder, LIB)
    assert set(desk.locate(package)) == {package.sha256}


def test_other_indexes_of_the_user_play_no_part(desk: Desk, main: LocalIndex, side: LocalIndex) -> None:
    desk.environ |= {"UV_INDEX": side.url, "UV_FIND_LINKS": str(side.folder)}
    package = locked(main.folder, LIB)
    assert desk.locate(package) == {package.sha256: main.file_url(LIB)}
    assert side.requests == []


def test_a_wheel_is_looked_for_on_its_own_index(desk: Desk, main: LocalIndex, side: LocalIndex) -> None:
    wanted = [locked(main.folder, APP), locked(side.folder, "lib-1.2-py3-none-any.whl", index="side")]
    urls = desk.locate(*wanted, indexes=side_index(side, "lib"))
    assert urls[wanted[1].sha256] == side.file_url(wanted[1].file)
    error = desk.fail_to_locate(*wanted)
    assert error.message == "the lock takes packages from an index that the spec does not have"
    assert [problem.message for problem in error.problems] == ["`lib` comes from `side`"]


def test_other_bytes_under_the_same_name_are_an_error_with_both_digests(desk: Desk, main: LocalIndex) -> None:
    package = locked(main.folder, LIB)
    make_wheel(main.folder, "lib", "1.5", {"lib/evil.py": "x"})
    other = hashlib.sha256((main.folder / LIB).read_bytes()).hexdigest()
    error = desk.fail_to_locate(package, locked(main.folder, APP))
    assert error.message == (
        f"`{LIB}` has sha256 {other} on the index `default`, the lock has {package.sha256} [hash-changed]"
    )
    assert error.exit_code == FOUND_WRONG


def test_all_wheels_that_are_gone_are_told_at_once(desk: Desk, main: LocalIndex) -> None:
    wanted = [locked(main.folder, file) for file in (APP, LIB, OTHER)]
    for file in (LIB, OTHER):
        (main.folder / file).unlink()
    (main.folder / "other-2.0-py3-none-any.whl").unlink()
    told: list[Located] = []
    error = desk.fail_to_locate(*wanted, on_located=told.append)
    assert error.message == "2 wheels of the lock are not on the indexes as they were"
    assert [problem.message for problem in error.problems] == [
        f"`{file}` is not on the index `default`: it was removed, or the index is another than at lock time [file-gone]"
        for file in (LIB, OTHER)
    ]
    assert [one.package.file for one in told] == [APP]


def test_a_package_whose_name_is_a_word_of_uvs_sentences_is_not_taken_for_a_missing_one(
    desk: Desk, main: LocalIndex
) -> None:
    files = [make_wheel(main.folder, name, "1.0").name for name in ("version", "all", "requirements")]
    wanted = [locked(main.folder, file) for file in (LIB, *files)]
    (main.folder / LIB).unlink()
    error = desk.fail_to_locate(*wanted)
    assert error.message.startswith(f"`{LIB}` is not on the index `default`")


def test_a_wheel_that_is_gone_while_others_of_its_version_stay_is_told(desk: Desk, main: LocalIndex) -> None:
    make_wheel(main.folder, "built", "1.0", build="1")
    package = locked(main.folder, "built-1.0-1-py3-none-any.whl")
    (main.folder / package.file).unlink()
    make_wheel(main.folder, "built", "1.0", {"built.py": "x"}, build="2")
    assert "[file-gone]" in desk.fail_to_locate(package).message


def test_a_locked_file_that_is_no_wheel_is_an_error(desk: Desk, main: LocalIndex) -> None:
    error = desk.fail_to_locate(replace(locked(main.folder, LIB), file="x\n.whl"))
    assert error.message == "`x .whl` in the lock is not the name of a wheel"


def test_refused_credentials_are_told_when_wheels_are_looked_for(desk: Desk, main: LocalIndex) -> None:
    package = locked(main.folder, LIB)
    main.credentials = ("user", "s3cret")
    error = desk.fail_to_locate(package)
    assert error.message == "the index `default` refuses the credentials, or needs some"
    assert error.exit_code == COULD_NOT_LOOK


# The default index of uv itself


@pytest.mark.real
def test_a_small_spec_resolves_from_uvs_own_default_index(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    resolution = resolve(
        spec_of("idna==3.10", snapshot=SNAPSHOT.replace(year=2025)),
        uv=find_uv(os.environ),
        environ={**environ, "UV_NO_CONFIG": "1"},
        cache_dir=tmp_path,
        preferences={},
        upgrade=frozenset(),
    )
    assert [(wheel.file, wheel.index) for wheel in resolution.wheels] == [("idna-3.10-py3-none-any.whl", "default")]
