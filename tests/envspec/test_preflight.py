"""A host beside a lock and a spec: what keeps a build from beginning, and what is only said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from envspec.jit import HostTools
from envspec.lock import Lock, LockedNeeds, LockedPackage
from envspec.preflight import Gpu, HostFacts, Load, host_libraries, least_driver, preflight
from envspec.spec import HostSpec

LOCK = Lock(
    spec_sha256="0" * 64,
    env="a" * 32,
    site="0" * 64,
    name="demo",
    snapshot="",
    python="3.12",
    python_exact="",
    platform="linux-x86_64",
    glibc="2.35",
    libraries=("libnuma.so.1",),
    cuda_toolkit="13.0",
    cuda_compute=("9.0", "12.0"),
    packages=(),
)
HOST = HostSpec(name="ct200", ssh="ct200", compute="12.0", gpus=2)
ANSWER: dict[str, Any] = {
    "hostname": "ct200",
    "user": "root",
    "system": "Ubuntu 24.04.1 LTS",
    "kernel": "6.8.0",
    "machine": "x86_64",
    "glibc": "2.39",
    "time_s": 1000.0,
    "agent_python": {"path": "/usr/bin/python3.12", "version": "3.12.3"},
    "interpreter": {"version": "3.12.3", "path": "/usr/bin/python3.12"},
    "rejected_pythons": [],
    "driver": "580.65.06",
    "gpus": [{"name": "RTX PRO 6000", "compute": "12.0", "memory_mib": 97887}] * 2,
    "tools": {"c_compiler": "/usr/bin/cc", "cxx_compiler": "", "python_headers": "/usr/include/python3.12", "nvcc": ""},
    "libraries": {"libnuma.so.1": "/lib/x86_64-linux-gnu/libnuma.so.1"},
    "store": {
        "path": "/opt/envspec",
        "problem": "",
        "writable": True,
        "filesystem": "ext4",
        "links": "hardlink",
        "free_bytes": 100 * 10**9,
        "free_inodes": 10**7,
        "inodes": 10**8,
    },
    "notes": [],
}
FACTS = HostFacts.from_json(ANSWER)
LOAD = Load(wheels=179, bytes=3_700_000_000)


def found(
    facts: HostFacts = FACTS, *, host: HostSpec = HOST, lock: Lock = LOCK, load: Load = LOAD
) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in preflight(host, lock, facts, load, now_s=1000.0)]


def changed(**changes: Any) -> HostFacts:
    return dataclasses.replace(FACTS, **changes)


def test_host_that_is_as_declared_has_no_finding() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("facts", "check", "severity"),
    [
        (changed(machine="aarch64"), "host-machine", "error"),
        (changed(glibc="2.31"), "host-glibc", "error"),
        (changed(glibc=""), "host-glibc", "error"),
        (changed(libraries=(("libnuma.so.1", ""),)), "host-libraries", "error"),
        (changed(python="", python_path=""), "host-python", "error"),
        (changed(gpus=FACTS.gpus[:1]), "host-gpus", "error"),
        (changed(gpus=(Gpu(name="H200", compute="9.0", memory_mib=0),) * 2), "host-compute", "error"),
        (changed(driver="570.86.10"), "host-driver", "error"),
        (changed(driver=""), "host-driver", "error"),
        (changed(writable=False), "host-store", "error"),
        (changed(store_problem="the store has format 9"), "host-store", "error"),
        (changed(free_bytes=10 * 10**9), "host-disk", "error"),
        (changed(free_inodes=1000), "host-inodes", "error"),
        (changed(links="copy"), "host-links", "warning"),
        (changed(time_s=1000.0 + 86400), "host-clock", "warning"),
        (changed(time_s=1000.0 - 86400), "host-clock", "warning"),
    ],
)
def test_each_mismatch_is_one_finding(facts: HostFacts, check: str, severity: str) -> None:
    assert found(facts) == [(check, severity)]
    (finding,) = preflight(HOST, LOCK, facts, LOAD, now_s=1000.0)
    assert finding.subject == "ct200"
    assert finding.hint


def test_clock_says_by_how_much_it_is_wrong() -> None:
    (finding,) = preflight(HOST, LOCK, changed(time_s=1000.0 - 86400), LOAD, now_s=1000.0)
    assert "1.0 days behind" in finding.message


def test_host_without_a_driver_that_declares_no_gpus_is_only_warned_of() -> None:
    host = HostSpec(name="build", ssh="build")
    assert found(changed(driver="", gpus=()), host=host) == [("host-driver", "warning")]


def test_gpu_that_the_lock_does_not_cover_is_an_error_though_nothing_is_declared() -> None:
    host = HostSpec(name="old", ssh="old")
    assert found(changed(gpus=(Gpu(name="A100", compute="8.0", memory_mib=0),)), host=host) == [
        ("host-compute", "error")
    ]


def test_driver_is_judged_by_what_the_binaries_need_where_the_lock_knows() -> None:
    lock = dataclasses.replace(LOCK, needs=LockedNeeds(driver="575.10", libraries=("libfoo.so.1",)))
    assert least_driver(lock) == "575.10"
    assert host_libraries(lock) == ("libfoo.so.1", "libnuma.so.1")
    assert found(changed(driver="570.10"), lock=lock) == [("host-driver", "error")]
    assert found(changed(driver="576.10"), lock=lock) == []


def test_declared_driver_is_compared_with_the_one_found() -> None:
    host = dataclasses.replace(HOST, driver="590")
    assert found(host=host) == [("host-driver", "error")]


def test_host_that_lacks_nothing_needs_no_room() -> None:
    assert found(changed(free_bytes=0, free_inodes=0), load=Load(wheels=0, bytes=0)) == []


def test_errors_come_first() -> None:
    facts = changed(time_s=0.0 - 10**6, links="copy", glibc="2.31")
    assert [severity for _, severity in found(facts)] == ["error", "warning", "warning"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver", "580; rm -rf /"),
        ("glibc", "x"),
        ("time_s", "soon"),
        ("gpus", [{}]),
        ("store", None),
        ("interpreter", 5),
    ],
)
def test_answer_that_is_none_is_refused(key: str, value: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        HostFacts.from_json({**ANSWER, key: value})


def test_c34_a_host_without_a_compiler_is_refused_for_what_the_spec_compiles() -> None:
    package = LockedPackage(
        name="triton", version="3.6.0", index="default", file="triton-3.6.0-cp312-cp312-linux_x86_64.whl", size=1,
        sha256="0" * 64, tree="0" * 64,
    )  # fmt: skip
    lock = dataclasses.replace(LOCK, packages=(package,))
    bare = dataclasses.replace(FACTS, tools=HostTools())
    checks = {
        jit: [(each.check, each.severity) for each in preflight(HOST, lock, bare, LOAD, now_s=1000.0, jit=jit)]
        for jit in ((), ("triton",))
    }
    assert ("jit-tools", "warning") in checks[()]
    assert ("jit-tools", "error") in checks["triton",]
    assert not any(
        each.check == "jit-tools" for each in preflight(HOST, lock, FACTS, LOAD, now_s=1000.0, jit=("triton",))
    )
