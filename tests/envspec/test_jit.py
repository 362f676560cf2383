"""What compilers need of a host; the public report C34."""

from __future__ import annotations

import pytest

from envspec.jit import JIT_NEEDS, JIT_PACKAGES, HostTools, JitDemand, jit_findings
from envspec.spec_toml import parse_spec

ALL = HostTools(
    c_compiler="/usr/bin/cc", cxx_compiler="/usr/bin/c++", python_headers="/usr/include/python3.12", nvcc="13.0"
)
NONE = HostTools()
STACK = frozenset({"torch", "triton", "flashinfer-python"})


def demand(*named: str, packages: frozenset[str] = STACK) -> JitDemand:
    return JitDemand(named=named, packages=packages, python="3.12", cuda="13.0")


def found(tools: HostTools, wanted: JitDemand) -> list[tuple[str, str]]:
    return [(finding.severity, finding.message) for finding in jit_findings("a", tools, wanted)]


def test_a_host_with_everything_has_no_finding() -> None:
    assert found(ALL, demand("triton", "flashinfer", "inductor")) == []


def test_c34_a_bare_host_is_refused_for_the_compilers_that_the_spec_names() -> None:
    assert found(NONE, demand("triton", "flashinfer")) == [
        ("error", "host a has no C compiler and no Python.h, which triton needs when a kernel is first used"),
        ("error", "host a has no C++ compiler and no nvcc, which flashinfer needs when a kernel is first used"),
    ]


def test_compilers_that_are_locked_and_not_named_give_warnings() -> None:
    assert [severity for severity, _ in found(NONE, demand())] == ["warning", "warning"]


def test_compilers_whose_package_is_not_locked_need_nothing() -> None:
    assert found(NONE, demand("triton", packages=frozenset({"numpy"}))) == []


def test_an_nvcc_of_another_cuda_is_none() -> None:
    tools = HostTools(c_compiler="cc", cxx_compiler="c++", python_headers="/usr/include", nvcc="12.8")
    [(severity, message)] = found(tools, demand("flashinfer"))
    assert severity == "error"
    assert message == "host a has nvcc of CUDA 12.8, not 13, which flashinfer needs when a kernel is first used"


def test_a_locked_nvcc_stands_for_that_of_the_host() -> None:
    tools = HostTools(c_compiler="cc", cxx_compiler="c++", python_headers="/usr/include")
    assert found(tools, demand("flashinfer", packages=STACK | {"nvidia-cuda-nvcc"})) == []


@pytest.mark.parametrize("compiler", JIT_NEEDS)
def test_each_finding_says_how_to_mend_it(compiler: str) -> None:
    wanted = demand(compiler, packages=frozenset({JIT_PACKAGES[compiler]}))
    [finding] = [each for each in jit_findings("a", NONE, wanted) if each.severity == "error"]
    assert len(finding.hint.split("; ")) == len(JIT_NEEDS[compiler])
    assert "{" not in finding.hint


@pytest.mark.parametrize("compiler", JIT_NEEDS)
def test_a_spec_may_name_every_compiler(compiler: str) -> None:
    text = f"""envspec = 1
name = "a"
[python]
version = "3.12"
[target]
platform = "linux-x86_64"
glibc = "2.35"
jit = ["{compiler}"]
[packages]
torch = "==2.11.0"
"""
    assert parse_spec(text, input_name="a.toml").target.jit == (compiler,)
