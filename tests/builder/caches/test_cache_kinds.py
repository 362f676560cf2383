"""Every kind of cache does the same: real servers, one set of tests."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from builder.caches.bucket import _aws_profile, _reason
from builder.caches.checking import check, find_cache_garbage
from builder.caches.folder import HttpFolder
from builder.caches.opening import open_cache
from builder.caches.protocol import CachedWheel, CacheError, LockFile
from builder.caches.sources import CacheSources
from builder.fetch import WantedWheel, fetch_from
from builder.progress import SilentReporter
from envspec.spec import CacheSpec
from tests.support.cache_servers import REGISTRY_USER, Azurite, DockerRegistry, MotoGcs, MotoS3, Nginx
from tests.support.faulty_cache import FaultyCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.caches.protocol import Cache

CONTENTS = [bytes([number]) + b"wheel" * (40_000 * (1 + number)) for number in range(3)]
WHEELS = tuple(
    CachedWheel(
        file=f"w{number}-1+cu130-py3-none-any.whl", sha256=hashlib.sha256(content).hexdigest(), size=len(content)
    )
    for number, content in enumerate(CONTENTS)
)
KINDS = ["http", "oci", "oci-login", "s3", "gs", "az"]
BUCKETS = {"s3": MotoS3, "gs": MotoGcs, "az": Azurite}
SECRETS = ("s3cr3t-of-jane", "127.0.0.1", "://")


class Bench:
    """A cache on a real server."""

    def __init__(self, kind: str, server: Any, spec: CacheSpec, environ: dict[str, str], folder: Path) -> None:
        self.kind = kind
        self.server = server
        self.spec = spec
        self.environ = environ
        self.folder = folder

    @contextmanager
    def open(self) -> Iterator[Cache]:
        spec: Any = None
        cache = open_cache(self.spec, spec, self.environ)
        try:
            yield cache
        finally:
            cache.close()

    def path(self, number: int) -> Path:
        path = self.folder / WHEELS[number].file
        path.write_bytes(CONTENTS[number])
        return path

    def store(self, cache: Cache, *numbers: int) -> int:
        told: list[int] = []
        for number in numbers:
            cache.store(WHEELS[number], self.path(number), told.append)
        return sum(told)


def _server(kind: str, folder: Path) -> Any:
    if kind == "http":
        return Nginx(folder, lists="html")
    return BUCKETS[kind](folder) if kind in BUCKETS else DockerRegistry(folder, login=kind == "oci-login")


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    folder = tmp_path_factory.mktemp(request.param)
    with _server(request.param, folder) as running:
        yield request.param, running


@pytest.fixture
def bench(
    server: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Bench:
    kind, running = server
    place = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]  # each test has a corner of its own
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    if kind == "http":
        spec = CacheSpec(name="lab", url=f"{running.url}/{place}")
    elif kind in BUCKETS:
        running.make_bucket("wheels")
        spec = CacheSpec(name="lab", url=f"{kind}://wheels/{place}", endpoint=running.endpoint)
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
            environ[name] = value
    else:
        spec = CacheSpec(name="lab", url=f"oci://{running.authority}/envs/{place}")
    if kind == "oci-login":
        log_in(tmp_path, running.authority, REGISTRY_USER)
    return Bench(kind, running, spec, environ, tmp_path)


def log_in(home: Path, registry: str, user: tuple[str, str]) -> None:
    """Write docker's configuration, as `docker login` does."""
    import base64  # noqa: PLC0415 - beside its only use

    (home / ".docker").mkdir(exist_ok=True)
    auth = base64.b64encode(":".join(user).encode()).decode()
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def lock_of(*wheels: CachedWheel, name: str = "demo", more: str = "") -> LockFile:
    """A lock that names wheels, in the form of a real one."""
    from tests.support.locks import lock_text  # noqa: PLC0415

    text = lock_text(name, wheels, more)
    env = hashlib.sha256(text.encode()).hexdigest()[:16].translate(str.maketrans("0189", "abcd")).ljust(32, "a")
    return LockFile(file="demo.lock", content=text.encode(), name=name, env=env, site="0" * 64, wheels=wheels)


def test_an_empty_cache_has_nothing_and_says_so(bench: Bench) -> None:
    with bench.open() as cache:
        assert cache.has(WHEELS) == frozenset()
        assert cache.locks() == ()
        with pytest.raises(CacheError) as caught, cache.fetch(WHEELS[0], 0) as body:
            b"".join(body.blocks)
    assert caught.value.kind == "absent"
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_what_is_stored_is_there_and_comes_back_from_any_byte(bench: Bench) -> None:
    with bench.open() as cache:
        assert bench.store(cache, 0, 2) == len(CONTENTS[0]) + len(CONTENTS[2])
        assert cache.has(WHEELS) == {WHEELS[0].sha256, WHEELS[2].sha256}
        for offset in (0, 1, 12345, len(CONTENTS[2]) - 1):
            with cache.fetch(WHEELS[2], offset) as body:
                assert body.start == offset
                assert b"".join(body.blocks) == CONTENTS[2][offset:]


def test_wheels_come_back_through_the_fetch_that_builds_use(bench: Bench) -> None:
    with bench.open() as cache:
        bench.store(cache, 0, 1)
    remarks: list[str] = []
    spec: Any = None
    wanted = [WantedWheel(file=wheel.file, sha256=wheel.sha256, size=wheel.size, url="") for wheel in WHEELS]
    wheelhouse = bench.folder / "store" / "wheels"
    with CacheSources([bench.spec], spec, bench.environ, remarks.append) as sources:
        left = fetch_from(sources.bring, wanted, wheels_dir=wheelhouse, reporter=SilentReporter())
    assert [wheel.file for wheel in left] == [WHEELS[2].file]
    assert remarks == []
    assert (wheelhouse / WHEELS[1].sha256 / WHEELS[1].file).read_bytes() == CONTENTS[1]


def test_storing_again_and_from_two_at_once_does_no_harm(bench: Bench) -> None:
    errors: list[BaseException] = []
    paths = [bench.path(number) for number in range(3)]

    def push() -> None:
        try:
            with bench.open() as cache:
                for wheel, path in zip(WHEELS, paths, strict=True):
                    cache.store(wheel, path, lambda _units: None)
                cache.store_lock(lock_of(*WHEELS))
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=push) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with bench.open() as cache:
        checked = check(cache, WHEELS, deep=True, reporter=SilentReporter())
        assert (checked.there, checked.missing, checked.damaged) == (WHEELS, (), ())
        assert [lock.name for lock in cache.locks()] == ["demo"]


def test_an_upload_that_ends_early_leaves_nothing_that_counts(bench: Bench) -> None:
    class Interrupted(Exception):  # noqa: N818 - as what interrupts
        pass

    def interrupt(_units: int) -> None:
        raise Interrupted

    with bench.open() as cache, pytest.raises((Interrupted, CacheError)):
        cache.store(WHEELS[2], bench.path(2), interrupt)
    with bench.open() as cache:
        assert cache.has(WHEELS) == frozenset()
        bench.store(cache, 2)
        assert cache.has(WHEELS) == {WHEELS[2].sha256}


def test_locks_keep_their_wheels_and_what_no_lock_names_goes(bench: Bench) -> None:
    first, second, other = (
        lock_of(WHEELS[0], WHEELS[1]),
        lock_of(WHEELS[1], more="second"),
        lock_of(WHEELS[2], name="other"),
    )
    with bench.open() as cache:
        bench.store(cache, 0, 1, 2)
        for lock in (first, other, second):
            cache.store_lock(lock)
            cache.store_lock(lock)
        assert sorted(lock.name for lock in cache.locks()) == ["demo", "demo", "other"]
        nothing = find_cache_garbage(cache, frozenset(), "demo", None)
        assert (nothing.wheels, nothing.locks, nothing.kept_locks) == ((), (), 3)
        everything = find_cache_garbage(cache, frozenset(), "demo", 0)
        assert {wheel.sha256 for wheel in everything.wheels} == {WHEELS[0].sha256, WHEELS[1].sha256}
        assert everything.freed_bytes == WHEELS[0].size + WHEELS[1].size
        kept = find_cache_garbage(cache, frozenset({WHEELS[0].sha256}), "demo", 0)
        assert {wheel.sha256 for wheel in kept.wheels} == {WHEELS[1].sha256}
        cache.delete(kept.wheels, kept.locks)
        assert [lock.name for lock in cache.locks()] == ["other"]
        assert WHEELS[1].sha256 not in cache.has(WHEELS)
        assert WHEELS[2].sha256 in cache.has(WHEELS)


def test_hosts_are_told_addresses_only_where_no_login_is_needed(bench: Bench) -> None:
    with bench.open() as cache:
        bench.store(cache, 0)
        urls = cache.public_urls(WHEELS[:1])
    if bench.kind == "oci-login":
        assert urls == {}
        return
    assert httpx.get(urls[WHEELS[0].sha256]).content == CONTENTS[0]
    assert "s3cr3t-of-jane" not in urls[WHEELS[0].sha256]


@pytest.mark.parametrize("wrong", ["none", "other"])
@pytest.mark.parametrize("server", ["oci-login"], indirect=True)
def test_a_registry_that_wants_another_login_says_so_with_its_name(bench: Bench, wrong: str) -> None:
    (bench.folder / ".docker" / "config.json").unlink()
    if wrong == "other":
        log_in(bench.folder, bench.server.authority, ("jane", "expired"))
    with bench.open() as cache, pytest.raises(CacheError) as caught:
        cache.has(WHEELS)
    assert caught.value.kind == "refused"
    assert caught.value.message == "cache `lab`: it refuses the credentials, or needs some (status 401)"
    assert not any(secret in str(caught.value) for secret in (*SECRETS, "expired\n", "jane"))


@pytest.mark.parametrize("server", list(BUCKETS), indirect=True)
def test_a_bucket_that_is_not_there_or_does_not_answer_is_named_without_its_url(bench: Bench) -> None:
    spec: Any = None
    nowhere = CacheSpec(name="lab", url=f"{bench.kind}://nobodys-wheels/x", endpoint=bench.spec.endpoint)
    with pytest.raises(CacheError) as caught:
        open_cache(nowhere, spec, bench.environ).store(WHEELS[0], bench.path(0), lambda _units: None)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize("server", ["az"], indirect=True)
def test_a_bucket_with_another_key_refuses_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "ZXhwaXJlZA==")
    with bench.open() as cache, pytest.raises(CacheError) as caught:
        cache.has(WHEELS)
    assert caught.value.kind == "refused"
    assert not any(secret in str(caught.value) for secret in (*SECRETS, "ZXhwaXJlZA=="))


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("refuses", "refused", "cache `lab`: it cannot be asked: it refuses the credentials, or needs some"),
        ("busy", "lost", "cache `lab`: it cannot be asked: it cannot be reached, or broke off"),
    ],
)
def test_a_bucket_that_refuses_or_fails_says_so_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, kind: str, message: str
) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "expired"), ("AWS_SECRET_ACCESS_KEY", "s3cr3t-of-jane")):
        monkeypatch.setenv(name, value)
    spec: Any = None
    with FaultyCache({}) as server:
        server.fault = fault
        endpoint = server.url.removesuffix("/wheels")
        cache = open_cache(CacheSpec(name="lab", url="s3://wheels", endpoint=endpoint), spec, {"HOME": str(tmp_path)})
        with pytest.raises(CacheError) as caught:
            cache.has(WHEELS)
    assert (caught.value.kind, caught.value.message) == (kind, message)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        ("Error performing HEAD: HTTP error\n\nDebug source:\n kind: Timeout,", "slow", "it does not answer in time"),
        ("HTTP error\n\nDebug source:\n retry_timeout: 1s, timeout: 2", "lost", "it cannot be reached, or broke off"),
        ("Generic MicrosoftAzure error: Account must be specified", "unusable", "nobody says in which account it is"),
        ("error: ExpiredToken", "refused", "it refuses the credentials, or there are none"),
    ],
)
def test_what_obstore_says_is_told_by_its_kind(said: str, kind: str, reason: str) -> None:
    assert _reason(said)[:2] == (kind, reason)


def test_keys_of_amazons_files_are_those_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
        "[ci]\naws_access_key_id = c\naws_secret_access_key = d\naws_session_token = e\n"
    )
    (tmp_path / ".aws" / "config").write_text("[profile ci]\nregion = eu-central-1\n")
    home = {"HOME": str(tmp_path)}
    assert _aws_profile(home) == {"access_key_id": "a", "secret_access_key": "b"}
    assert _aws_profile({**home, "AWS_PROFILE": "ci"}) == {
        "access_key_id": "c",
        "secret_access_key": "d",
        "session_token": "e",
        "region": "eu-central-1",
    }
    assert _aws_profile({**home, "AWS_ACCESS_KEY_ID": "x"}) == {}
    assert _aws_profile({"HOME": "/nonexistent"}) == {}


def test_nginx_without_uploads_says_what_to_do(tmp_path: Path) -> None:
    with Nginx(tmp_path / "nginx", takes_uploads=False, lists="") as nginx:
        cache = HttpFolder(CacheSpec(name="lab", url=nginx.url), {"HOME": str(tmp_path)})
        path = tmp_path / WHEELS[0].file
        path.write_bytes(CONTENTS[0])
        with pytest.raises(CacheError) as caught:
            cache.store(WHEELS[0], path, lambda _units: None)
        assert caught.value.message == "cache `lab`: it takes no uploads (status 405)"
        assert "copy `wheels/` of a store" in caught.value.hint
        (nginx.root / WHEELS[0].sha256).mkdir()
        with pytest.raises(CacheError) as caught:
            cache.all_wheels()
        cache.close()
    assert caught.value.kind == "refused"


def test_the_wheels_of_a_store_are_a_cache_as_they_lie(tmp_path: Path) -> None:
    wheelhouse = tmp_path / "store" / "wheels"
    (wheelhouse / WHEELS[0].sha256).mkdir(parents=True)
    (wheelhouse / WHEELS[0].sha256 / WHEELS[0].file).write_bytes(CONTENTS[0])
    with Nginx(tmp_path / "nginx", root=wheelhouse, takes_uploads=False) as nginx:
        cache = HttpFolder(CacheSpec(name="lab", url=nginx.url), {"HOME": str(tmp_path)})
        assert cache.has(WHEELS) == {WHEELS[0].sha256}
        assert [wheel.sha256 for wheel in cache.all_wheels()] == [WHEELS[0].sha256]
        cache.close()


def test_the_manifest_in_a_registry_is_an_artifact_whose_layers_are_the_wheels(tmp_path: Path) -> None:
    with DockerRegistry(tmp_path / "registry") as registry:
        spec: Any = None
        cache = open_cache(CacheSpec(name="lab", url=registry.url), spec, {"HOME": str(tmp_path)})
        path = tmp_path / WHEELS[0].file
        path.write_bytes(CONTENTS[0])
        cache.store(WHEELS[0], path, lambda _units: None)
        lock = lock_of(WHEELS[0])
        cache.store_lock(lock)
        cache.close()
        base = f"http://{registry.authority}/v2/envs/demo"
        (tag,) = httpx.get(f"{base}/tags/list").json()["tags"]
        assert tag == f"demo-{lock.env}-{hashlib.sha256(lock.content).hexdigest()[:16]}"
        accepted = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        manifest = httpx.get(f"{base}/manifests/{tag}", headers=accepted).json()
        assert manifest["artifactType"] == "application/vnd.envspec.lock.v1"
        first, second = manifest["layers"]
        assert httpx.get(f"{base}/blobs/{first['digest']}").content == lock.content
        assert second["digest"] == f"sha256:{WHEELS[0].sha256}"
        assert second["annotations"]["org.opencontainers.image.title"] == WHEELS[0].file
