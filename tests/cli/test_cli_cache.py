"""`envspec cache`, and builds that take their wheels from caches, with real servers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cache_servers import REGISTRY_USER, DockerRegistry, Nginx
from tests.support.faulty_cache import FaultyCache
from tests.support.local_index import Fault
from tests.support.projects import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project


def declare(project: Project, *caches: tuple[str, str], **more: object) -> None:
    """Declare caches in the spec, in place of those that it declares."""
    text = project.spec_path.read_text().partition("\n[[caches]]")[0]
    keys = "".join(f"{key.replace('_', '-')} = {json.dumps(value)}\n" for key, value in more.items())
    for name, url in caches:
        text += f'\n[[caches]]\nname = "{name}"\nurl = "{url}"\n{keys}'
    project.spec_path.write_text(text)


def empty_store(project: Project) -> None:
    """Take away everything that was fetched and built."""
    remove_tree(project.store)


def wheels_in(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/*.whl")}


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    with Nginx(tmp_path / "nginx") as server:
        yield server


@pytest.fixture
def cached(locked: Project, nginx: Nginx) -> Project:
    """A locked project whose wheels are all in an HTTP folder, with an empty store."""
    declare(locked, ("lab", nginx.url))
    locked.good("cache", "push")
    empty_store(locked)
    assert locked.index is not None
    locked.index.requests.clear()
    return locked


def test_a_push_sends_what_is_missing_and_patched_wheels_too(locked: Project, nginx: Nginx) -> None:
    declare(locked, ("lab", nginx.url))
    first = locked.good("cache", "push", "--json").json()["caches"][0]
    assert (first["cache"], first["kind"], first["wheels"], len(first["sent"])) == ("lab", "HTTP folder", 3, 3)
    assert {wheel["sha256"] for wheel in first["sent"]} == wheels_in(nginx.root).keys()
    again = locked.good("cache", "push", "--json").json()["caches"][0]
    assert (again["sent"], again["sent_bytes"]) == ([], 0)
    assert locked.good("cache", "push").stdout == "lab  0 of 3 wheels sent, 0 B; it has all of them\n"


def test_a_lock_does_not_depend_on_caches(locked: Project) -> None:
    before = locked.lock_text()
    declare(locked, ("lab", "https://cache.example/wheels"), ("s3", "s3://wheels"))
    locked.good("lock", "--check")
    locked.good("lock")
    assert locked.lock_text() == before
    assert "cache" not in before


def test_a_build_takes_everything_from_the_cache_and_asks_no_index(cached: Project, nginx: Nginx) -> None:
    cached.good("build", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV="/nowhere/uv")
    assert cached.index is not None
    assert cached.index.requests == []
    assert cached.site("beta/__init__.py").read_text() == "VALUE = 2\n"
    assert cached.lock_text().count("sha256")
    assert sum(line.startswith("GET") for line in nginx.requests()) >= 2


def test_what_the_cache_lacks_comes_from_the_index(cached: Project, nginx: Nginx) -> None:
    for path in nginx.root.glob("*/alpha*.whl"):
        shutil.rmtree(path.parent)
    ran = cached.good("build")
    assert "warning" not in ran.stderr
    assert cached.index is not None
    assert [Path(path).name for path in cached.index.paths_requested()] == ["alpha-1.0-py3-none-any.whl"]


@pytest.mark.parametrize("fault", ["corrupt", "html", "goes-away", "refuses", "absent"])
def test_a_build_is_the_same_whatever_the_first_cache_does(cached: Project, nginx: Nginx, fault: str) -> None:
    with FaultyCache(wheels_in(nginx.root)) as faulty:
        faulty.fault = fault  # type: ignore[assignment]
        declare(cached, ("bad", faulty.url), ("lab", nginx.url))
        ran = cached.good("build")
    assert faulty.requests
    assert cached.site("beta/__init__.py").read_text() == "VALUE = 2\n"
    assert cached.good("status", "--deep", "--json").host()["drift"] == []
    assert faulty.url not in ran.text
    assert ("warning: cache `bad`: " in ran.stderr) == (fault != "absent")


def test_caches_of_the_configuration_come_first_and_replace_those_of_the_spec(cached: Project, nginx: Nginx) -> None:
    with FaultyCache({}) as mine, FaultyCache({}) as replaced:
        folder = cached.home / ".config" / "envspec"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(
            f'[[caches]]\nname = "mine"\nurl = "{mine.url}"\n[[caches]]\nname = "old"\nurl = "{mine.url}/2"\n'
        )
        declare(cached, ("old", replaced.url), ("lab", nginx.url))
        cached.good("build")
        assert sorted(path.count("/2/") for path in mine.requests) == [0, 0, 1, 1]
        assert replaced.requests == []


def test_a_wrong_configuration_is_refused_with_its_problems_and_no_url(cached: Project) -> None:
    folder = cached.home / "xdg" / "envspec"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        '[[caches]]\nname = "mine"\nurl = "https://jane:s3cr3t@cache.example/"\nhost = "h0"\nto-host = true\n'
    )
    ran = cached.run("build", XDG_CONFIG_HOME=str(cached.home / "xdg"))
    assert ran.code == 2
    assert "the configuration has 3 problems" in ran.stderr
    assert "caches[0].host (line 4): unknown key" in ran.stderr
    assert "did you mean `to-hosts`?" in ran.stderr
    assert "s3cr3t" not in ran.text
    assert "cache.example" not in ran.text


def test_a_pull_fills_the_store_and_says_what_is_nowhere(cached: Project, nginx: Nginx) -> None:
    ran = cached.good("cache", "pull", "--json").json()
    assert (ran["wheels"], len(ran["pulled"]), ran["missing"]) == (3, 3, [])
    assert wheels_in(cached.store / "wheels") == wheels_in(nginx.root)
    empty_store(cached)
    for path in nginx.root.glob("*/alpha*.whl"):
        path.unlink()
    ran2 = cached.run("cache", "pull")
    assert ran2.code == 1
    assert "2 of 3 wheels pulled" in ran2.stdout
    assert "missing  alpha-1.0-py3-none-any.whl" in ran2.stdout
    assert cached.index is not None
    assert cached.index.requests == []


def test_a_check_tells_missing_and_damaged_wheels(cached: Project, nginx: Nginx) -> None:
    assert "3 of 3 wheels are there (by name and size)" in cached.good("cache", "check").stdout
    (alpha,) = nginx.root.glob("*/alpha*.whl")
    (beta, *_) = sorted(nginx.root.glob("*/beta*.whl"))
    alpha.unlink()
    content = bytearray(beta.read_bytes())
    content[100] ^= 1
    beta.write_bytes(content)
    shallow = cached.run("cache", "check", "--json")
    assert shallow.code == 1
    (record,) = shallow.json()["caches"]
    assert ([wheel["file"] for wheel in record["missing"]], record["damaged"]) == ([alpha.name], [])
    deep = cached.run("cache", "check", "lab", "--deep", "--json")
    (record,) = deep.json()["caches"]
    assert deep.code == 1
    assert record["there"] == 1
    assert [wheel["file"] for wheel in record["missing"]] == [alpha.name]
    assert [wheel["file"] for wheel in record["damaged"]] == [beta.name]
    assert record["damaged"][0]["reason"].startswith("its sha256 is ")


def test_a_push_mends_what_is_missing_or_cut_off(cached: Project, nginx: Nginx) -> None:
    (alpha,) = nginx.root.glob("*/alpha*.whl")
    alpha.write_bytes(alpha.read_bytes()[:100])
    assert len(cached.good("cache", "push", "--json").json()["caches"][0]["sent"]) == 1
    cached.good("cache", "check", "--deep")


def test_a_cache_that_cannot_be_asked_is_an_error_with_its_name(cached: Project, nginx: Nginx) -> None:
    nginx.power_off()
    ran = cached.run("cache", "check", "--json")
    assert ran.code == 2
    assert ran.json()["caches"][0]["error"]["message"] == "cache `lab`: Connection refused"
    pushed = cached.run("cache", "push")
    assert (pushed.code, pushed.stdout) == (2, "")
    assert "error: cache `lab`: Connection refused" in pushed.stderr
    assert "127.0.0.1" not in pushed.text


def test_gc_removes_what_no_lock_names_and_says_so_before(cached: Project, nginx: Nginx) -> None:
    old = {path.parent.name for path in nginx.root.glob("*/*.whl")}
    stray = nginx.root / ("a" * 64)
    stray.mkdir()
    (stray / "stray-1-py3-none-any.whl").write_bytes(b"stray")
    shown = cached.good("cache", "gc", "--dry-run")
    assert "stray-1-py3-none-any.whl" in shown.stdout
    assert "1 wheels would be removed, 5 B; 3 wheels of 1 locks stay" in shown.stdout
    assert stray.exists()
    cached.good("cache", "gc")
    assert wheels_in(nginx.root).keys() == old

    cached.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    cached.good("lock")
    assert len(cached.good("cache", "push", "--json").json()["caches"][0]["sent"]) == 1
    assert cached.good("cache", "gc", "--json").json()["removed"] == []
    forgotten = cached.good("cache", "gc", "--keep", "1", "--json").json()
    assert (len(forgotten["removed"]), len(forgotten["forgotten"]), forgotten["kept_wheels"]) == (1, 1, 3)
    cached.good("cache", "check", "--deep")
    assert len(wheels_in(nginx.root)) == 3


def test_gc_keeps_what_a_named_lock_needs(cached: Project, nginx: Nginx, tmp_path: Path) -> None:
    other = tmp_path / "other.lock"
    other.write_text(cached.lock_text())
    shutil.rmtree(nginx.root / "locks")
    cached.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    cached.good("lock")
    assert cached.good("cache", "gc", "--lock", other, "--json").json()["removed"] == []
    assert len(cached.good("cache", "gc", "--dry-run", "--json").json()["removed"]) == 1


def test_gc_removes_nothing_where_a_lock_in_the_cache_cannot_be_read(cached: Project, nginx: Nginx) -> None:
    (lock,) = (nginx.root / "locks").iterdir()
    lock.write_text("version = 9\n")
    ran = cached.run("cache", "gc", "--keep", "0")
    assert ran.code == 2
    assert "is damaged" in ran.stderr
    assert len(wheels_in(nginx.root)) == 3


def test_no_cache_and_no_such_cache_are_said(locked: Project) -> None:
    ran = locked.run("cache", "push")
    assert (ran.code, "no cache is declared" in ran.stderr) == (2, True)
    declare(locked, ("a", "https://a.example/"), ("b", "https://b.example/"))
    assert "2 caches are declared: `a`, `b`" in locked.run("cache", "push").stderr
    assert "no cache `c` is declared" in locked.run("cache", "check", "c").stderr


def test_a_registry_gives_the_same_environment(locked: Project, tmp_path: Path) -> None:
    with DockerRegistry(tmp_path / "registry") as registry:
        declare(locked, ("registry", registry.url))
        locked.good("cache", "push")
        empty_store(locked)
        locked.good("build", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple")
        assert locked.site("beta/__init__.py").read_text() == "VALUE = 2\n"
        locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
        locked.good("lock")
        pushed = locked.good("cache", "push", "--json").json()["caches"][0]
        assert [wheel["file"].partition("-")[0] for wheel in pushed["sent"]] == ["beta"]


def test_a_login_comes_from_docker_and_appears_nowhere(locked: Project, tmp_path: Path) -> None:
    with DockerRegistry(tmp_path / "registry", login=True) as registry:
        declare(locked, ("registry", registry.url))
        refused = locked.run("cache", "push")
        assert refused.code == 2
        assert "cache `registry`: it refuses the credentials, or needs some (status 401)" in refused.stderr
        auth = base64.b64encode(":".join(REGISTRY_USER).encode()).decode()
        (locked.home / ".docker").mkdir()
        (locked.home / ".docker" / "config.json").write_text(
            json.dumps({"auths": {registry.authority: {"auth": auth}}})
        )
        ran = locked.good("cache", "push")
        log = (registry.folder / "log").read_text()
        assert REGISTRY_USER[1] not in ran.text + log + locked.lock_text()


def test_a_wheel_that_is_damaged_here_is_not_pushed(locked: Project, nginx: Nginx) -> None:
    locked.good("build")
    declare(locked, ("lab", nginx.url))
    (alpha,) = (locked.store / "wheels").glob("*/alpha*.whl")
    right = alpha.read_bytes()
    alpha.chmod(0o644)
    alpha.write_bytes(right[:-1] + b"x")
    ran = locked.good("cache", "push")
    assert "is damaged in the store: getting it again" in ran.stderr
    assert wheels_in(nginx.root)[alpha.parent.name] == right


def test_a_wheel_that_is_nowhere_ends_a_push_with_an_error_and_what_is_there_serves(
    locked: Project, nginx: Nginx
) -> None:
    empty_store(locked)
    declare(locked, ("lab", nginx.url))
    assert locked.index is not None
    locked.index.faults["alpha-1.0-py3-none-any.whl"] = Fault("status", status=404)
    assert locked.run("cache", "push").code == 1
    locked.index.faults.clear()
    locked.good("cache", "push")
    locked.good("cache", "check", "--deep")


def test_a_lock_that_is_made_anew_takes_wheels_from_caches_too(cached: Project) -> None:
    before = cached.lock_text()
    cached.lock_path.unlink()
    cached.good("lock")
    assert cached.lock_text() == before
    assert cached.index is not None
    assert cached.index.paths_requested() == []


def test_a_push_that_is_killed_leaves_a_cache_that_serves_what_is_whole(locked: Project, nginx: Nginx) -> None:
    instants = random.Random(20261130)  # noqa: S311 - no secret
    declare(locked, ("lab", nginx.url))
    started = time.monotonic()
    locked.good("cache", "push")
    duration = time.monotonic() - started
    for _ in range(int(os.environ.get("ENVSPEC_KILL_ROUNDS", "3"))):
        for path in nginx.root.iterdir():
            shutil.rmtree(path)
        process = locked.start("cache", "push")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(instants.uniform(duration * 0.4, duration))
        process.kill()
        process.communicate()
        checked = locked.run("cache", "check", "--deep", "--json").json()["caches"][0]
        assert checked["damaged"] == []
    locked.good("cache", "push")
    locked.good("cache", "check", "--deep")
