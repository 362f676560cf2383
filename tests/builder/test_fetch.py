from __future__ import annotations

import _thread
import fcntl
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import download
from builder.credentials import NO_CREDENTIALS, Credentials, read_credentials
from builder.fetch import WantedWheel, fetch_wheels
from builder.progress import SilentReporter
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from tests.support.local_index import Fault, LocalIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.progress import Advance

FILE = "demo-1.0-py3-none-any.whl"
CONTENT = random.Random(1).randbytes(20_000)  # noqa: S311 - only bytes of no pattern, the same each time


def publish(folder: Path, file: str = FILE, content: bytes = CONTENT) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(content)


def wheel_of(index: LocalIndex, file: str = FILE, content: bytes = CONTENT, **changed: Any) -> WantedWheel:
    fields = {"file": file, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return WantedWheel(**{**fields, "url": index.file_url(file), **changed})


class CountingReporter(SilentReporter):
    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self.begun = threading.Event()  # what is fetched was judged to be missing

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Advance]:
        assert (label, unit) == ("fetching", "bytes")
        self.total = total
        self.begun.set()
        lock = threading.Lock()

        def advance(units: int) -> None:
            assert units > 0
            with lock:
                self.done += units

        yield advance


class Store:
    """A wheelhouse that the tests fetch into, and what a fetch told."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.arrived: list[tuple[WantedWheel, Path]] = []
        self.pauses: list[float] = []
        self.reporter = CountingReporter()

    def fetch(self, *wanted: WantedWheel, credentials: Credentials = NO_CREDENTIALS, **options: Any) -> None:
        chosen: dict[str, Any] = {
            "on_arrived": lambda wheel, path: self.arrived.append((wheel, path)),
            "pause": self.pauses.append,
        }
        fetch_wheels(
            wanted,
            wheels_dir=self.wheels,
            credentials=credentials,
            reporter=self.reporter,
            **{**chosen, **options},
        )

    def place(self, wheel: WantedWheel) -> Path:
        return self.wheels / wheel.sha256 / wheel.file

    def partial(self, wheel: WantedWheel) -> Path:
        return self.wheels / ".partial" / wheel.sha256

    def put_partial(self, wheel: WantedWheel, content: bytes) -> None:
        self.partial(wheel).parent.mkdir(parents=True)
        self.partial(wheel).write_bytes(content)

    def holds(self, wheel: WantedWheel, content: bytes = CONTENT) -> bool:
        return self.place(wheel).read_bytes() == content and not self.partial(wheel).exists()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LocalIndex]:
    publish(tmp_path / "files")
    with LocalIndex(tmp_path / "files") as running:
        yield running


def ranges(index: LocalIndex) -> list[str]:
    return [request.range for request in index.requests]


def fail(store: Store, *wanted: WantedWheel, **options: Any) -> EnvspecError:
    with pytest.raises(EnvspecError) as caught:
        store.fetch(*wanted, **options)
    assert "127.0.0.1" not in str(caught.value)
    assert "://" not in str(caught.value)
    return caught.value


# Where wheels are put


def test_a_wheel_is_put_in_its_place_read_only_and_told_of(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert store.holds(wheel)
    assert store.place(wheel).stat().st_mode & 0o777 == 0o444
    assert store.arrived == [(wheel, store.place(wheel))]
    assert (store.reporter.total, store.reporter.done) == (20_000, 20_000)


def no_client() -> httpx.Client:
    raise AssertionError("a client was made")


def test_nothing_is_connected_for_wheels_that_are_there(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.fetch(wheel)
    index.requests.clear()
    store.fetch(wheel, client_factory=no_client)
    assert index.requests == []
    assert store.arrived == [(wheel, store.place(wheel))] * 2


def test_httpx_is_not_imported_for_wheels_that_are_there(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.fetch(wheel)
    code = f"""
import sys
from pathlib import Path
from builder.credentials import NO_CREDENTIALS
from builder.fetch import WantedWheel, fetch_wheels
from builder.progress import SilentReporter
wheel = WantedWheel(file={wheel.file!r}, sha256={wheel.sha256!r}, size={wheel.size!r}, url="")
fetch_wheels([wheel], wheels_dir=Path({str(store.wheels)!r}), credentials=NO_CREDENTIALS, reporter=SilentReporter())
assert "httpx" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wheel_of_another_size_is_fetched_again(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.place(wheel).parent.mkdir(parents=True)
    store.place(wheel).write_bytes(CONTENT[:-1])
    store.fetch(wheel)
    assert store.holds(wheel)


def test_a_wheel_whose_size_nobody_knows_is_fetched_and_found_again(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index, size=None)
    store.fetch(wheel)
    store.fetch(wheel, client_factory=no_client)
    assert store.holds(wheel)


def test_the_biggest_wheel_comes_first(store: Store, index: LocalIndex) -> None:
    contents = {f"w{size}-1-py3-none-any.whl": bytes(size) for size in (10, 3000, 200, 1)}
    for file, content in contents.items():
        publish(index.folder, file, content)
    store.fetch(*(wheel_of(index, file, content) for file, content in contents.items()), connections=1)
    asked = [path.rpartition("/")[2].partition("-")[0] for path in index.paths_requested()]
    assert asked == ["w3000", "w200", "w10", "w1"]


def test_wheels_are_handed_over_one_at_a_time(store: Store, index: LocalIndex) -> None:
    contents = {f"w{number}-1-py3-none-any.whl": bytes([number]) * 1000 for number in range(20)}
    for file, content in contents.items():
        publish(index.folder, file, content)
    busy = threading.Lock()
    names = []

    def arrived(wheel: WantedWheel, path: Path) -> None:
        assert busy.acquire(blocking=False)
        assert path.read_bytes() == contents[wheel.file]
        names.append(wheel.file)
        busy.release()

    store.fetch(*(wheel_of(index, file, content) for file, content in contents.items()), on_arrived=arrived)
    assert sorted(names) == sorted(contents)


def test_a_wheel_that_is_wanted_twice_is_fetched_once(store: Store, index: LocalIndex) -> None:
    store.fetch(wheel_of(index), wheel_of(index))
    assert len(index.paths_requested()) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"file": "../x-1.0-py3-none-any.whl"},
        {"file": ".."},
        {"file": ""},
        {"file": "/etc/passwd"},
        {"file": "x\n.whl"},
        {"file": f"{'x' * 300}.whl"},
        {"sha256": "../x"},
        {"sha256": "A" * 64},
        {"sha256": "a" * 63},
    ],
)
def test_what_is_no_name_of_a_wheel_is_refused(store: Store, index: LocalIndex, changed: dict[str, Any]) -> None:
    error = fail(store, wheel_of(index, **changed))
    assert error.message == "what is to be fetched has no valid file name or sha256"
    assert index.requests == []
    assert not store.wheels.exists()


# Going on where it stopped


def test_a_cut_connection_is_gone_on_with(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("cut", times=1, after=7000)
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert ranges(index) == ["", "bytes=7000-"]
    assert store.holds(wheel)
    assert store.pauses == [0.5]
    assert store.reporter.done == 20_000


def test_a_server_without_ranges_is_asked_for_the_whole(store: Store, index: LocalIndex) -> None:
    index.ranges = False
    index.faults[FILE] = Fault("cut", times=1, after=7000)
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert ranges(index) == ["", "bytes=7000-"]  # the second answer is the whole all the same
    assert store.holds(wheel)
    assert store.reporter.done == 20_000


@pytest.mark.parametrize("fault", [Fault("wrong-range", times=1), Fault("status", times=1, status=416)])
def test_a_server_that_gives_another_range_is_asked_for_the_whole(
    store: Store, index: LocalIndex, fault: Fault
) -> None:
    index.faults[FILE] = fault
    wheel = wheel_of(index)
    store.put_partial(wheel, CONTENT[:500])
    store.fetch(wheel)
    assert ranges(index) == ["bytes=500-", ""]
    assert store.holds(wheel)


def test_progress_resets_the_count_of_tries(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("cut", after=1000)
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert store.holds(wheel)
    assert len(index.requests) == 20
    assert set(store.pauses) == {0.5}


def test_a_fetch_without_progress_is_given_up_and_what_there_is_is_kept(store: Store, index: LocalIndex) -> None:
    index.ranges = False
    index.faults[FILE] = Fault("cut", after=7000)
    wheel = wheel_of(index)
    error = fail(store, wheel)
    assert error.message == (
        f"`{FILE}` cannot be fetched: the connection ended early; gave up after 7 tries without a new byte"
    )
    assert error.exit_code == COULD_NOT_LOOK
    assert store.pauses == [0.5, 0.5, 1, 2, 4, 8, 16]
    assert store.partial(wheel).read_bytes() == CONTENT[:7000]
    assert not store.place(wheel).exists()
    index.ranges = True
    index.faults.clear()
    store.fetch(wheel)
    assert ranges(index)[-1] == "bytes=7000-"
    assert store.holds(wheel)


def test_a_whole_partial_file_needs_no_network(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.put_partial(wheel, CONTENT)
    store.fetch(wheel, client_factory=no_client)
    assert store.holds(wheel)


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (b"wrong", ["bytes=5-", ""]),
        (bytes(20_000), [""]),
        (CONTENT + b"more", [""]),
        (b"", [""]),
    ],
)
def test_a_wrong_partial_file_is_thrown_away(store: Store, index: LocalIndex, content: bytes, asked: list[str]) -> None:
    wheel = wheel_of(index)
    store.put_partial(wheel, content)
    store.fetch(wheel)
    assert ranges(index) == asked
    assert store.holds(wheel)


@settings(max_examples=25, deadline=None)
@given(
    there=st.one_of(st.binary(max_size=300), st.integers(0, 300).map(lambda size: CONTENT[:size])),
    cuts=st.one_of(st.none(), st.tuples(st.integers(0, 300), st.integers(1, 3))),
    with_ranges=st.booleans(),
    size_known=st.booleans(),
)
def test_whatever_there_is_and_wherever_it_is_cut_the_wheel_comes_out_right(
    there: bytes,
    cuts: tuple[int, int] | None,
    with_ranges: bool,  # noqa: FBT001
    size_known: bool,  # noqa: FBT001
) -> None:
    content = CONTENT[:300]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish(folder / "files", content=content)
        store = Store(folder)
        with LocalIndex(folder / "files", ranges=with_ranges) as index:
            if cuts:
                index.faults[FILE] = Fault("cut", after=cuts[0], times=cuts[1])
            wheel = wheel_of(index, content=content, size=300 if size_known else None)
            store.put_partial(wheel, there)
            store.fetch(wheel)
            assert store.holds(wheel, content)


# Wrong bytes


def test_wrong_bytes_are_fetched_once_more(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("corrupt", times=1)
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert ranges(index) == ["", ""]
    assert store.holds(wheel)


def test_wrong_bytes_twice_are_an_error_with_both_digests(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("corrupt")
    wheel = wheel_of(index)
    error = fail(store, wheel)
    got = hashlib.sha256(bytes([CONTENT[0] ^ 0xFF]) + CONTENT[1:]).hexdigest()
    assert error.message == f"`{FILE}` has not the bytes that are wanted [hash-mismatch]"
    assert error.detail.splitlines() == [f"wanted: sha256 {wheel.sha256}", f"got:    sha256 {got}"]
    assert error.exit_code == FOUND_WRONG
    assert len(index.requests) == 2
    assert not store.place(wheel).exists()
    assert store.arrived == []


def test_a_file_of_another_size_is_not_even_received(store: Store, index: LocalIndex) -> None:
    error = fail(store, wheel_of(index, size=19_999))
    assert error.detail.endswith("got:    20,000 bytes instead of 19,999")


@pytest.mark.parametrize("size", [20_000, None])
def test_an_endless_body_is_cut_off(
    store: Store, index: LocalIndex, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 50_000)
    index.faults[FILE] = Fault("endless")
    wheel = wheel_of(index, size=size)
    error = fail(store, wheel)
    assert error.detail.endswith(f"got:    more than {size or 50_000:,} bytes")
    assert store.partial(wheel).stat().st_size == 0


def test_a_stated_length_beyond_all_wheels_is_refused(
    store: Store, index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 19_999)
    error = fail(store, wheel_of(index, size=None))
    assert error.detail.endswith("got:    20,000 bytes, more than is taken without a size in the index")


def test_a_compressed_body_is_refused(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("encoded")
    error = fail(store, wheel_of(index))
    assert "compresses it although it was told not to" in error.message


# Servers that are busy, refuse, or lead elsewhere


def test_a_busy_server_is_asked_again(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("status", times=3, status=503)
    wheel = wheel_of(index)
    store.fetch(wheel)
    assert store.holds(wheel)
    assert store.pauses == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "100000"}, 60.0),
        ({"Retry-After": "soon"}, 0.5),
        ({"Retry-After": "Mon, 30 Nov 2099 03:00:00 GMT"}, 60.0),
        ({"Retry-After": "Mon, 30 Nov 1998 03:00:00 GMT"}, 0.0),
    ],
)
def test_the_pause_that_a_server_asks_for_is_kept_up_to_a_bound(
    store: Store, index: LocalIndex, headers: dict[str, str], pause_s: float
) -> None:
    index.faults[FILE] = Fault("status", times=1, status=429, headers=headers)
    store.fetch(wheel_of(index))
    assert store.pauses == [pause_s]


@pytest.mark.parametrize(
    ("status", "message", "exit_code"),
    [
        (401, "the server refuses the credentials, or needs some (status 401)", COULD_NOT_LOOK),
        (403, "the server refuses the credentials, or needs some (status 403)", COULD_NOT_LOOK),
        (404, "the index names it, but the server does not have it (status 404)", FOUND_WRONG),
        (410, "the index names it, but the server does not have it (status 410)", FOUND_WRONG),
        (400, "the server answers with status 400", COULD_NOT_LOOK),
        (204, "the server answers with status 204", COULD_NOT_LOOK),
        (206, "gave up after 7 tries", COULD_NOT_LOOK),
        (500, "the server answers with status 500; gave up after 7 tries", COULD_NOT_LOOK),
    ],
)
def test_a_server_that_does_not_give_the_wheel_is_an_error(
    store: Store, index: LocalIndex, status: int, message: str, exit_code: int
) -> None:
    index.faults[FILE] = Fault("status", status=status)
    error = fail(store, wheel_of(index))
    assert message in error.message
    assert error.exit_code == exit_code


def test_a_server_that_is_not_there_is_an_error(store: Store, tmp_path: Path) -> None:
    publish(tmp_path / "files")
    with LocalIndex(tmp_path / "files") as gone:
        wheel = wheel_of(gone)
    error = fail(store, wheel)
    assert error.message == f"`{FILE}` cannot be fetched: Connection refused; gave up after 7 tries without a new byte"


@contextmanager
def guarded_index(folder: Path) -> Iterator[tuple[LocalIndex, Credentials]]:
    with LocalIndex(folder, credentials=("user", "s@cret")) as index:
        environ = {"UV_DEFAULT_INDEX": index.url_with_credentials, "UV_NO_CONFIG": "1", "HOME": str(folder)}
        yield index, read_credentials(environ)


def test_credentials_are_sent_to_their_index(store: Store, index: LocalIndex) -> None:
    with guarded_index(index.folder) as (guarded, credentials):
        wheel = wheel_of(guarded)
        store.fetch(wheel, credentials=credentials)
        assert store.holds(wheel)
        assert [request.authorization for request in guarded.requests] == ["user"]


def test_credentials_are_not_sent_to_another_port(store: Store, index: LocalIndex) -> None:
    with guarded_index(index.folder) as (_, credentials):
        store.fetch(wheel_of(index), credentials=credentials)
    assert [request.authorization for request in index.requests] == [""]


def test_credentials_stay_at_home_when_a_redirect_leads_elsewhere(store: Store, index: LocalIndex) -> None:
    with guarded_index(index.folder) as (guarded, credentials):
        guarded.faults[FILE] = Fault("redirect", times=1, target=index.file_url(FILE))
        wheel = wheel_of(guarded)
        store.fetch(wheel, credentials=credentials)
        assert store.holds(wheel)
    assert [request.authorization for request in guarded.requests] == ["user"]
    assert [request.authorization for request in index.requests] == [""]


def test_credentials_are_not_sent_after_a_redirect_elsewhere_and_back(store: Store, index: LocalIndex) -> None:
    with guarded_index(index.folder) as (guarded, credentials):
        index.faults[FILE] = Fault("redirect", target=guarded.file_url(FILE))
        error = fail(store, wheel_of(index), credentials=credentials)
    assert "(status 401)" in error.message
    assert [request.authorization for request in guarded.requests] == [""]


def test_a_redirect_within_the_origin_keeps_the_credentials(store: Store, index: LocalIndex) -> None:
    with guarded_index(index.folder) as (guarded, credentials):
        guarded.faults[FILE] = Fault("redirect", times=2, target=f"/simple/demo/{FILE}")
        wheel = wheel_of(guarded)
        store.fetch(wheel, credentials=credentials)
        assert store.holds(wheel)
        assert [request.status for request in guarded.requests] == [302, 302, 200]


@pytest.mark.parametrize(
    "target", [f"/simple/demo/{FILE}", "file:///etc/hostname", "ftp://127.0.0.1/x", "http://[broken"]
)
def test_a_redirect_in_circles_or_to_no_http_server_is_an_error(store: Store, index: LocalIndex, target: str) -> None:
    index.faults[FILE] = Fault("redirect", target=target)
    assert "redirects in circles" in fail(store, wheel_of(index)).message


@pytest.mark.parametrize("url", ["", "gopher://host/x.whl", "http://", "no url"])
def test_a_url_that_is_none_is_an_error(store: Store, index: LocalIndex, url: str) -> None:
    assert "neither on an HTTP server nor in a folder" in fail(store, wheel_of(index, url=url)).message


# Local indexes


def test_a_wheel_of_a_folder_is_copied_and_checked(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index, url=(index.folder / FILE).as_uri())
    store.put_partial(wheel, CONTENT[:100])
    store.fetch(wheel, client_factory=no_client)
    assert store.holds(wheel)
    assert not store.place(wheel).samefile(index.folder / FILE)


def test_a_wheel_of_a_folder_with_other_bytes_is_an_error(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index, url=(index.folder / FILE).as_uri(), sha256="0" * 64)
    assert "[hash-mismatch]" in fail(store, wheel).message


def test_what_is_no_file_in_a_folder_is_an_error(store: Store, index: LocalIndex) -> None:
    os.mkfifo(index.folder / "pipe")
    for name, reason in [
        ("gone", "cannot be read: No such file or directory"),
        ("pipe", "is not a regular file"),
        (".", "is not a regular file"),
        ("%00", "cannot be read: its path is not valid"),
    ]:
        assert reason in fail(store, wheel_of(index, url=f"{index.folder.as_uri()}/{name}")).message


# The disk


def test_too_small_a_disk_is_an_error_before_anything_is_fetched(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    store.put_partial(wheel, CONTENT[:500])
    error = fail(store, wheel, free_bytes=lambda _: 19_499)
    assert error.message == "the wheels need 19,500 more bytes in the store, its disk has 19,499 free"
    assert index.requests == []
    store.fetch(wheel, free_bytes=lambda _: 19_500)
    assert store.holds(wheel)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond a size, as if the disk were full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_is_an_error_and_what_there_is_is_kept(store: Store, index: LocalIndex) -> None:
    content = CONTENT * 150
    publish(index.folder, content=content)
    wheel = wheel_of(index, content=content)
    with largest_file(2_000_000):
        error = fail(store, wheel)
    assert error.message.startswith("the disk of the store is full: 1,000,000 more bytes are needed for one wheel, ")
    assert store.partial(wheel).read_bytes() == content[:2_000_000]
    store.fetch(wheel)
    assert ranges(index) == ["", "bytes=2000000-"]
    assert store.holds(wheel, content)


def test_a_store_that_cannot_be_written_is_an_error(store: Store, index: LocalIndex) -> None:
    store.wheels.write_text("a file where the folder belongs")
    assert fail(store, wheel_of(index)).message == f"`{FILE}` cannot be written into the store: Not a directory"


def test_a_link_in_the_place_of_a_partial_file_is_not_followed(store: Store, index: LocalIndex, tmp_path: Path) -> None:
    wheel = wheel_of(index)
    store.partial(wheel).parent.mkdir(parents=True)
    store.partial(wheel).symlink_to(tmp_path / "elsewhere")
    assert "cannot be written into the store" in fail(store, wheel).message
    assert not (tmp_path / "elsewhere").exists()


# Several at once


@contextmanager
def lock_held_by_another(path: Path) -> Iterator[Callable[[], None]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def test_a_wheel_that_another_process_fetches_is_waited_for_and_found(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    with lock_held_by_another(store.partial(wheel)) as unlock:
        thread = threading.Thread(target=store.fetch, args=(wheel,))
        thread.start()
        assert store.reporter.begun.wait(60)
        store.partial(wheel).write_bytes(CONTENT)
        store.place(wheel).parent.mkdir()
        store.partial(wheel).rename(store.place(wheel))
        unlock()
        thread.join()
    assert index.requests == []
    assert store.holds(wheel)
    assert store.arrived == [(wheel, store.place(wheel))]
    assert store.reporter.done == 20_000


def test_a_wheel_that_another_process_gave_up_is_gone_on_with(store: Store, index: LocalIndex) -> None:
    wheel = wheel_of(index)
    with lock_held_by_another(store.partial(wheel)) as unlock:
        thread = threading.Thread(target=store.fetch, args=(wheel,))
        thread.start()
        store.partial(wheel).write_bytes(CONTENT[:900])
        unlock()
        thread.join()
    assert ranges(index) == ["bytes=900-"]
    assert store.holds(wheel)


def test_many_fetches_of_one_wheel_at_once_ask_for_it_once(tmp_path: Path, index: LocalIndex) -> None:
    stores = [Store(tmp_path) for _ in range(6)]
    threads = [threading.Thread(target=store.fetch, args=(wheel_of(index),)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index.paths_requested()) == 1
    assert all(len(store.arrived) == 1 for store in stores)


def test_the_first_error_stops_the_others_and_keeps_what_they_have(store: Store, index: LocalIndex) -> None:
    publish(index.folder, "gone-1-py3-none-any.whl", b"gone")
    index.faults[FILE] = Fault("cut", after=7000)
    index.ranges = False
    wheel, gone = wheel_of(index), wheel_of(index, "gone-1-py3-none-any.whl", b"gone")
    index.faults["gone-1-py3-none-any.whl"] = Fault("status", status=404)
    two_asked = threading.Event()

    def pause(_: float) -> None:  # the wheel that broke off waits for its next try until the other one is asked for
        assert two_asked.wait(30)

    class Client(httpx.Client):
        asked = 0

        def send(self, *args: Any, **options: Any) -> httpx.Response:
            self.asked += 1
            if self.asked == 2:
                two_asked.set()
            return super().send(*args, **options)

    error = fail(store, wheel, gone, pause=pause, client_factory=Client)
    assert "gone-1" in error.message
    assert store.partial(wheel).read_bytes() == CONTENT[:7000]
    assert store.arrived == []


def test_what_the_callback_raises_ends_the_fetch(store: Store, index: LocalIndex) -> None:
    def arrived(_wheel: WantedWheel, _path: Path) -> None:
        raise OSError("of the caller")

    with pytest.raises(OSError, match="of the caller"):
        store.fetch(wheel_of(index), on_arrived=arrived)


def test_an_interrupt_ends_the_fetch_and_keeps_what_there_is(store: Store, index: LocalIndex) -> None:
    index.faults[FILE] = Fault("cut", after=7000)
    index.ranges = False
    wheel = wheel_of(index)
    with pytest.raises(KeyboardInterrupt):
        store.fetch(wheel, pause=lambda _: _thread.interrupt_main())
    assert store.partial(wheel).read_bytes() == CONTENT[:7000]
    assert not store.place(wheel).exists()


def test_the_url_of_a_wheel_is_not_in_its_representation(index: LocalIndex) -> None:
    assert "http" not in repr(wheel_of(index))


def test_the_client_that_a_test_gives_is_closed(store: Store, index: LocalIndex) -> None:
    client = httpx.Client()
    store.fetch(wheel_of(index), client_factory=lambda: client)
    assert client.is_closed
