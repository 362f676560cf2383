"""Which mirror serves the wheels changes nothing, and neither it nor its credentials show anywhere (case C19)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.local_index import Fault, LocalIndex
from tests.support.projects import CREDENTIALS, Project, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

MIRROR = ("mirror-user", "mirror pass/word")


def secrets_of(index: LocalIndex) -> list[str]:
    """What must never show: host and port, user, password, and the password as a URL has it."""
    assert index.credentials is not None
    user, password = index.credentials
    return [f"127.0.0.1:{index.port}", str(index.port), user, password, quote(password, safe="")]


def assert_nowhere(project: Project, ran: Ran, indexes: list[LocalIndex]) -> None:
    """Nothing that a run printed or left tells of an index, but for uv's own cache."""
    secrets = [secret for index in indexes for secret in secrets_of(index) if not secret.isdecimal()]
    for secret in secrets:
        assert secret not in ran.text
    cache = project.store / "cache" / "uv"
    for path in [*project.store.rglob("*"), *project.spec_folder.rglob("*"), *project.home.rglob("*")]:
        if path.is_relative_to(cache) or not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in content, f"{path} has `{secret}`"


@pytest.fixture
def mirror(locked: Project) -> Iterator[LocalIndex]:
    """The same wheels below other URLs, for another user, in another form, without sizes and dates."""
    with LocalIndex(
        locked.wheels, layout="hashed", form="html", credentials=MIRROR, upload_time=None, sizes=False, metadata=False
    ) as served:
        yield served


def test_lock_is_byte_for_byte_the_same_through_a_mirror(locked: Project, mirror: LocalIndex) -> None:
    assert locked.index is not None
    before = locked.lock_text()
    locked.lock_path.unlink()
    shutil.rmtree(locked.store)
    ran = locked.good("lock", UV_DEFAULT_INDEX=mirror.url_with_credentials)
    assert locked.lock_text() == before
    assert mirror.paths_requested()
    assert locked.index.requests == []
    assert_nowhere(locked, ran, [mirror, locked.index])


def test_build_fetches_through_a_mirror_what_was_locked_elsewhere(locked: Project, mirror: LocalIndex) -> None:
    assert locked.index is not None
    shutil.rmtree(locked.store)
    ran = locked.good("build", UV_DEFAULT_INDEX=mirror.url_with_credentials)
    assert {path.rpartition("/")[2] for path in mirror.paths_requested()} >= {
        "alpha-1.0-py3-none-any.whl",
        "beta-1.0-py3-none-any.whl",
    }
    assert locked.index.requests == []
    assert_nowhere(locked, ran, [mirror, locked.index])
    for verb in (("status", "--json"), ("verify", "--deep", "--json"), ("generations", "--json"), ("gc", "--json")):
        assert_nowhere(locked, locked.good(*verb), [mirror, locked.index])


def test_mirror_of_uv_toml_serves_as_well(locked: Project, mirror: LocalIndex) -> None:
    shutil.rmtree(locked.store)
    folder = locked.home / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text(f'[[index]]\nurl = "{mirror.url_with_credentials}"\ndefault = true\n')
    locked.good("build", UV_DEFAULT_INDEX=None)
    assert mirror.paths_requested()


def test_credentials_may_come_from_netrc(locked: Project, mirror: LocalIndex) -> None:
    shutil.rmtree(locked.store)
    netrc = locked.home / ".netrc"
    netrc.write_text(f'machine 127.0.0.1 login {MIRROR[0]} password "{MIRROR[1]}"\n')
    netrc.chmod(0o600)
    locked.good("build", UV_DEFAULT_INDEX=mirror.url)
    assert mirror.paths_requested()


@pytest.mark.parametrize("verb", ["lock", "build"])
def test_wrong_password_is_told_without_it(locked: Project, mirror: LocalIndex, verb: str) -> None:
    if verb == "lock":
        locked.lock_path.unlink()
    shutil.rmtree(locked.store)
    wrong = mirror.url_with_credentials.replace(quote(MIRROR[1], safe=""), "guessed-it")
    ran = locked.run(verb, UV_DEFAULT_INDEX=wrong)
    assert ran.code == 2
    assert "credentials" in ran.stderr
    assert "guessed-it" not in ran.text
    assert_nowhere(locked, ran, [mirror])
    assert locked.active() is None


@pytest.mark.parametrize("verb", ["lock", "build"])
def test_index_that_is_gone_is_told_without_its_url(locked: Project, mirror: LocalIndex, verb: str) -> None:
    if verb == "lock":
        locked.lock_path.unlink()
    shutil.rmtree(locked.store)
    with LocalIndex(locked.wheels, credentials=("gone-user", "gone-pass")) as gone:
        url = gone.url_with_credentials
    ran = locked.run(verb, UV_DEFAULT_INDEX=url, UV_HTTP_RETRIES="0")
    assert ran.code == 2
    for secret in ("gone-user", "gone-pass", url):
        assert secret not in ran.text
    assert "cannot be reached" in ran.stderr
    assert mirror.requests == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("missing", "unknown-package"),
        ("swapped", "hash-changed"),
        ("refusing", "404"),
        ("corrupt", "sha256"),
    ],
)
def test_failing_build_does_not_tell_of_the_index(locked: Project, change: str, said: str) -> None:
    assert locked.index is not None
    shutil.rmtree(locked.store)
    wheel = locked.wheels / "beta-1.0-py3-none-any.whl"
    if change == "missing":
        wheel.unlink()
        said = "file-gone"
    elif change == "swapped":
        locked.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 99\n"})
    else:
        locked.index.faults[wheel.name] = Fault("status" if change == "refusing" else "corrupt", status=404)
    ran = locked.run("build")
    assert ran.code in {1, 2}
    assert said in ran.stderr
    assert_nowhere(locked, ran, [locked.index])
    assert locked.active() is None
    assert locked.environments() == []
    assert locked.leftovers() == []


def test_bug_report_does_not_tell_of_the_index(locked: Project) -> None:
    """Whatever fails, the message that a person posts is free of credentials."""
    assert locked.index is not None
    shutil.rmtree(locked.store)
    ran = locked.run("build", UV_DEFAULT_INDEX="http://[broken:s3cr3t@::1/simple")
    assert ran.code == 2
    assert "s3cr3t" not in ran.text
    ran = locked.run("build", UV_DEFAULT_INDEX=f"http://x:s3cr3t@127.0.0.1:{locked.index.port}9/simple/")
    assert ran.code == 2
    assert "s3cr3t" not in ran.text


def test_url_of_an_index_in_the_spec_is_neither_in_the_lock_nor_told(project: Project) -> None:
    assert project.index is not None
    project.wheel("beta", "1.0")
    with LocalIndex(project.wheels, layout="hashed", credentials=MIRROR) as extra:
        project.write_spec({"beta": "==1.0"}, more=f'[indexes.internal]\nurl = "{extra.url}"\npackages = ["beta"]')
        login = {"UV_INDEX_INTERNAL_USERNAME": MIRROR[0], "UV_INDEX_INTERNAL_PASSWORD": MIRROR[1]}
        locking = project.good("lock", **login)
        building = project.good("build", **login)
        assert extra.paths_requested()
        assert 'index = "internal"' in project.lock_text()
        assert "127.0.0.1" not in project.lock_text()
        for ran in (locking, building):
            assert CREDENTIALS[0] not in ran.text
            assert f"127.0.0.1:{extra.port}" not in ran.text


def test_credentials_in_the_spec_are_refused(project: Project) -> None:
    project.write_spec(
        {"beta": "==1.0"},
        more='[indexes.internal]\nurl = "https://me:hunter2@example.test/simple"\npackages = ["beta"]',
    )
    ran = project.run("lock")
    assert ran.code == 2
    assert "indexes.internal.url" in ran.stderr
    assert "hunter2" not in ran.text
