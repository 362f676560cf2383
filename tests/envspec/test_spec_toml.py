from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.spec import (
    CacheSpec,
    CudaSpec,
    HostSpec,
    IndexSpec,
    OverlaySpec,
    PythonSpec,
    Requirement,
    Spec,
    TargetSpec,
    VerifySpec,
    Waiver,
    snapshot_text,
    spec_digest,
)
from envspec.spec_toml import canonical_specifier, parse_spec
from tests.conftest import DATA
from tests.support.strategies import spec_texts, specs

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "ddtree.toml"

GOOD = """\
envspec = 1
name = "ddtree"
snapshot = 2026-05-20T02:00:00+02:00

[python]
version = "3.12"
exact = "3.12.3"

[target]
platform = "linux-x86_64"
glibc = "2.35"
libraries = ["libnuma.so.1", "libibverbs.so.1"]

[cuda]
toolkit = "13.0"
compute = ["9.0", "12.0"]

[packages]
torch = "==2.11.0"
SGLang = { version = ">= 0.5.11, < 0.6", extras = ["Srt_Extra", "all"] }
numpy = "*"
pybase64 = ""

[overrides]
numpy = "==2.3.5"

[overlays.sglang]
series = "./overlays/ddtree/series"

[indexes.pytorch-cu130]
url = "https://download.example/whl/cu130"
packages = ["torchvision", "torch", "nvidia_*"]

[verify]
imports = ["torch", "sglang.srt"]
kernels = ["torch", "sgl_kernel"]

[[waivers]]
check = "file-collision"
package = "FlashInfer-Python"
path = "build_backend.py"
owner = "flashinfer_python"
reason = "a build script that neither package imports"

[[waivers]]
check = "rpath"
package = "torch"
reason = "ours"

[hosts.ct200]
compute = "12.0"
gpus = 8

[hosts.lab]
ssh = "lab-1.example"
store = "/srv/envspec"
"""

MINIMAL = """\
envspec = 1
name = "a"
python.version = "3.10"
target = { platform = "linux-aarch64", glibc = "2.17" }
packages.b = ""
"""


def _problems(text: str) -> dict[str, str]:
    """Place with its line -> message, of every problem of a text."""
    with pytest.raises(EnvspecError) as caught:
        parse_spec(text, input_name=NAME)
    assert caught.value.input_name == NAME
    return {problem.where: problem.message for problem in caught.value.problems}


def _hints(text: str) -> list[str]:
    with pytest.raises(EnvspecError) as caught:
        parse_spec(text, input_name=NAME)
    return [problem.hint for problem in caught.value.problems]


def _changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} is in the text {GOOD.count(old)} times"
    return GOOD.replace(old, new)


def test_a_spec_with_every_key_becomes_its_value() -> None:
    assert parse_spec(GOOD, input_name=NAME) == Spec(
        name="ddtree",
        snapshot=datetime(2026, 5, 20, tzinfo=timezone.utc),
        python=PythonSpec(version="3.12", exact="3.12.3"),
        target=TargetSpec(platform="linux-x86_64", glibc="2.35", libraries=("libibverbs.so.1", "libnuma.so.1")),
        cuda=CudaSpec(toolkit="13.0", compute=("9.0", "12.0")),
        packages=(
            Requirement(name="numpy", specifier=""),
            Requirement(name="pybase64", specifier=""),
            Requirement(name="sglang", specifier="<0.6,>=0.5.11", extras=("all", "srt-extra")),
            Requirement(name="torch", specifier="==2.11.0"),
        ),
        overrides=(Requirement(name="numpy", specifier="==2.3.5"),),
        overlays=(OverlaySpec(package="sglang", series="overlays/ddtree/series"),),
        indexes=(
            IndexSpec(
                name="pytorch-cu130",
                url="https://download.example/whl/cu130",
                packages=("nvidia-*", "torch", "torchvision"),
            ),
        ),
        verify=VerifySpec(imports=("torch", "sglang.srt"), kernels=("torch", "sgl_kernel")),
        waivers=(
            Waiver(
                check="file-collision",
                package="flashinfer-python",
                path="build_backend.py",
                owner="flashinfer-python",
                reason="a build script that neither package imports",
            ),
            Waiver(check="rpath", package="torch", reason="ours"),
        ),
        hosts=(
            HostSpec(name="ct200", ssh="ct200", compute="12.0", gpus=8),
            HostSpec(name="lab", ssh="lab-1.example", store="/srv/envspec"),
        ),
    )


def test_the_least_spec_has_no_optional_value() -> None:
    spec = parse_spec(MINIMAL, input_name=NAME)
    assert spec == Spec(
        name="a",
        snapshot=None,
        python=PythonSpec(version="3.10"),
        target=TargetSpec(platform="linux-aarch64", glibc="2.17"),
        cuda=None,
        packages=(Requirement(name="b", specifier=""),),
    )


def test_the_problems_of_a_whole_spec_are_the_golden_ones(golden: Callable[[str, str], None]) -> None:
    text = (DATA / "spec" / "many-problems.toml").read_text()
    with pytest.raises(EnvspecError) as caught:
        parse_spec(text, input_name="many-problems.toml")
    golden("spec/many-problems.txt", f"error: {caught.value}\n")


NOT_A_NAME = "expected a name of lower-case letters, digits, `.`, `_` and `-` that begins with a letter or digit, got"
NOT_A_PATH = "expected a relative path with `/`, without `..`, got"
NOT_A_MINOR = "expected a minor version of Python from `3.10` on, such as `3.12`, got"
NOT_A_STORE = "expected an absolute path such as `/opt/envspec`, got"
NOT_A_HOST = "expected a `Host` of ssh_config such as `gpu-1`, got"
NOT_A_VERSION = "a URL or path is not a version: a lock names each wheel by index, version and sha256, so that any mirror can serve it"
SECRETIVE = "carries credentials, or a query that may hold some, and a spec is read by everybody"
NOT_A_URL = "expected a URL with http, https or file"
NOT_A_PATTERN = "expected the name of a package, or a pattern such as `nvidia-*`, got"
NO_PATH = "says whose file stays, but `path` does not say which file"
URL = "https://download.example/whl/cu130"
SERIES = '"./overlays/ddtree/series"'
CASES = [
    # what is changed, into what, where the problem is, what it says
    ("envspec = 1\n", "", "envspec (line 1)", "is missing: a spec begins with `envspec = 1`"),
    ("envspec = 1\n", "envspec = true\n", "envspec (line 1)", "expected the integer 1, got a boolean"),
    ('name = "ddtree"', 'name = "DD tree"', "name (line 2)", f"{NOT_A_NAME} `DD tree`"),
    ('name = "ddtree"', 'name = ""', "name (line 2)", f"{NOT_A_NAME} an empty string"),
    ('name = "ddtree"', 'name = "-a"', "name (line 2)", f"{NOT_A_NAME} `-a`"),
    ('name = "ddtree"', 'name = ".a"', "name (line 2)", f"{NOT_A_NAME} `.a`"),
    ('version = "3.12"', 'version = "3.9"', "python.version (line 6)", f"{NOT_A_MINOR} `3.9`"),
    ('version = "3.12"', 'version = "3.12.3"', "python.version (line 6)", f"{NOT_A_MINOR} `3.12.3`"),
    ('version = "3.12"', 'version = "4.10"', "python.version (line 6)", f"{NOT_A_MINOR} `4.10`"),
    ('version = "3.12"', "version = 3.10", "python.version (line 6)", f"{NOT_A_MINOR} a float"),
    ('exact = "3.12.3"', 'exact = "3.1.2"', "python.exact (line 7)", "expected a full version of Python such as `3.12.3`, got `3.1.2`"),
    ('exact = "3.12.3"', 'exact = "3.13.1"', "python.exact (line 7)", "`3.13.1` is not a Python 3.12, which `version` asks for"),
    ("linux-x86_64", "win_amd64", "target.platform (line 10)", "expected `linux-x86_64` or `linux-aarch64`, got `win_amd64`"),
    ('glibc = "2.35"\n', "", "target.glibc (line 9)", "is missing; expected a version of glibc such as `2.35`"),
    ('"libnuma.so.1"', '"libnuma"', "target.libraries[0] (line 12)", "expected a soname such as `libnuma.so.1`, got `libnuma`"),
    ('"libnuma.so.1"', '"/lib/a.so"', "target.libraries[0] (line 12)", "expected a soname such as `libnuma.so.1`, got `/lib/a.so`"),
    ('toolkit = "13.0"', 'toolkit = "13"', "cuda.toolkit (line 15)", "expected a CUDA version such as `13.0`, got `13`"),
    ('"9.0", "12.0"]', '"9.0", "sm_120"]', "cuda.compute[1] (line 16)", "expected a compute capability such as `9.0`, got `sm_120`"),
    ('"9.0", "12.0"]', '"9.0", "9.0"]', "cuda.compute[1] (line 16)", "`9.0` is listed twice, first as item 0"),
    ('numpy = "*"', "numpy = 2", "packages.numpy (line 21)", "expected a specifier or a table, got an integer"),
    ('numpy = "*"', 'numpy = "1.2"', "packages.numpy (line 21)", "expected a PEP 440 specifier, got `1.2`"),
    ('numpy = "*"', 'numpy = "^1.2"', "packages.numpy (line 21)", "expected a PEP 440 specifier, got `^1.2`"),
    ('numpy = "*"', 'numpy = "==1; os_name==\'nt\'"', "packages.numpy (line 21)", "expected a PEP 440 specifier, got `==1; os_name=='nt'`"),
    ('numpy = "*"', 'numpy = "===1"', "packages.numpy (line 21)", "`===` compares text and not versions, got `===1`"),
    ('numpy = "*"', 'numpy = "@ https://u:hunter2@h/a.whl"', "packages.numpy (line 21)", NOT_A_VERSION),
    ('numpy = "*"', 'numpy = "./numpy.whl"', "packages.numpy (line 21)", NOT_A_VERSION),
    ('numpy = "*"', 'numpy = { url = "https://u:hunter2@h/a.whl" }', "packages.numpy.url (line 21)", NOT_A_VERSION),
    ('numpy = "*"', 'numpy = { version = "==1", path = "a" }', "packages.numpy.path (line 21)", NOT_A_VERSION),
    ('numpy = "*"', 'numpy = { version = "1" }', "packages.numpy.version (line 21)", "expected a PEP 440 specifier, got `1`"),
    ('numpy = "*"', 'numpy = { extras = "a" }', "packages.numpy.extras (line 21)", "expected an array, got a string"),
    ('numpy = "*"', 'numpy = { extras = ["a b"] }', "packages.numpy.extras[0] (line 21)", "expected the name of a package, got `a b`"),
    ('numpy = "*"', '"num py" = "*"', 'packages."num py" (line 21)', "expected the name of a package, got `num py`"),
    ('numpy = "*"', 'sgLang = "*"', "packages.sgLang (line 21)", "is the same package as `SGLang`"),
    ('numpy = "*"', "numpy.version = 1", "packages.numpy.version (line 21)", "expected a string, got an integer"),
    ('numpy = "==2.3.5"', 'numpy = "2"', "overrides.numpy (line 25)", "expected a PEP 440 specifier, got `2`"),
    (SERIES, '"/etc/series"', "overlays.sglang.series (line 28)", f"{NOT_A_PATH} `/etc/series`"),
    (SERIES, '"a/../../series"', "overlays.sglang.series (line 28)", f"{NOT_A_PATH} `a/../../series`"),
    (SERIES, '"a\\\\b"', "overlays.sglang.series (line 28)", f"{NOT_A_PATH} `a\\b`"),
    (SERIES, '"a\\u0000b"', "overlays.sglang.series (line 28)", f"{NOT_A_PATH} `a\\x00b`"),
    ("series = ", "serie = ", "overlays.sglang.serie (line 28)", "unknown key"),
    ("[indexes.pytorch-cu130]", "[indexes.Torch]", "indexes.Torch (line 30)", f"{NOT_A_NAME} `Torch`"),
    (
        "[indexes.pytorch-cu130]",
        "[indexes.default]",
        "indexes.default (line 30)",
        "the name `default` is reserved for the index that uv is configured with",
    ),
    (URL, "https://someone:hunter2@host/simple", "indexes.pytorch-cu130.url (line 31)", SECRETIVE),
    (URL, "https://hunter2@host/simple", "indexes.pytorch-cu130.url (line 31)", SECRETIVE),
    (URL, "https://host/simple?token=hunter2", "indexes.pytorch-cu130.url (line 31)", SECRETIVE),
    (URL, "ftp://host/simple", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "https:///simple", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "https://[::1/simple", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "https://host:x/simple", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "https://ho st/simple", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "wheels", "indexes.pytorch-cu130.url (line 31)", NOT_A_URL),
    (URL, "", "indexes.pytorch-cu130.url (line 31)", "expected the URL of an index, got an empty string"),
    ('"torch", "nvidia_*"', '"Torch", "torch"', "indexes.pytorch-cu130.packages (line 32)", "`torch` is named twice"),
    ('"torch", "nvidia_*"', '"*"', "indexes.pytorch-cu130.packages[1] (line 32)", f"{NOT_A_PATTERN} `*`"),
    (
        "[verify]",
        '[indexes.b]\nurl = "file:///srv/simple"\npackages = ["nvidia-nccl-cu13"]\n[verify]',
        "indexes.b.packages (line 36)",
        "`nvidia-nccl-cu13` comes from the index `pytorch-cu130` already",
    ),
    (
        "[verify]",
        '[indexes.b]\nurl = "file:///srv/simple"\npackages = ["nvidia-c*"]\n[verify]',
        "indexes.b.packages[0] (line 36)",
        f"{NOT_A_PATTERN} `nvidia-c*`",
    ),
    (
        "[verify]",
        '[indexes.b]\nurl = "file:///srv/simple"\npackages = ["nvidia-cu-*"]\n[verify]',
        "indexes.b.packages (line 36)",
        "`nvidia-cu-*` comes from the index `pytorch-cu130` already",
    ),
    ('name = "ddtree"', f'name = "{"a" * 101}"', "name (line 2)", f"{NOT_A_NAME} `{'a' * 80}…`"),
    ('"sglang.srt"', '"sglang-srt"', "verify.imports[1] (line 35)", "expected a module such as `torch.cuda`, got `sglang-srt`"),
    ('"sglang.srt"', '"sglang.import"', "verify.imports[1] (line 35)", "`sglang.import` cannot be imported: `import` is a keyword of Python"),
    ('"sgl_kernel"', '"../a"', "verify.kernels[1] (line 36)", "expected a word of lower-case letters, digits, `-` and `_`, got `../a`"),
    ('reason = "ours"\n', "", "waivers[1].reason (line 45)", "is missing; expected the reason why the finding may be"),
    ('reason = "ours"', 'reason = " "', "waivers[1].reason (line 48)", "expected the reason why the finding may be, got ` `"),
    ('reason = "ours"', 'reason = "ours"\nowner = "a"', "waivers[1].owner (line 49)", NO_PATH),
    (
        'reason = "ours"',
        'reason = "ours"\nowner = "a"\npath = "build_backend.py"',
        "waivers[1].owner (line 49)",
        "`a` cannot own `build_backend.py`, which `flashinfer-python` owns already",
    ),
    ('check = "rpath"', 'checks = "rpath"', "waivers[1].checks (line 46)", "unknown key"),
    ("[hosts.ct200]", "[hosts.'-oProxyCommand=x']", 'hosts."-oProxyCommand=x" (line 50)', "expected the name of a host, got `-oProxyCommand=x`"),
    ('"lab-1.example"', '"-oProxyCommand=x"', "hosts.lab.ssh (line 55)", f"{NOT_A_HOST} `-oProxyCommand=x`"),
    ('"lab-1.example"', '"root@lab"', "hosts.lab.ssh (line 55)", f"{NOT_A_HOST} `root@lab`"),
    ('compute = "12.0"', 'compute = "8.0"', "hosts.ct200.compute (line 51)", "`8.0` is not in cuda.compute (9.0, 12.0)"),
    ("gpus = 8", "gpus = -1", "hosts.ct200.gpus (line 52)", "expected an integer from 0 to 2**63 - 1, got `-1`"),
    ("gpus = 8", "gpus = 8.0", "hosts.ct200.gpus (line 52)", "expected an integer, got a float"),
    ('"/srv/envspec"', '"envspec"', "hosts.lab.store (line 56)", f"{NOT_A_STORE} `envspec`"),
    ('"/srv/envspec"', '"/srv/../etc"', "hosts.lab.store (line 56)", f"{NOT_A_STORE} `/srv/../etc`"),
    ('"/srv/envspec"', '"/"', "hosts.lab.store (line 56)", f"{NOT_A_STORE} `/`"),
    ("[hosts.lab]", "[hosts]\nlab = 1\n[hosts.b]", "hosts.lab (line 55)", "expected a table, got an integer"),
    ("[packages]", "[package]", "packages (line 1)", "is missing; expected a table"),
    ("[verify]", "[verfiy]", "verfiy (line 34)", "unknown key"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "message"), CASES)
def test_a_wrong_value_is_reported_with_its_path_and_line(old: str, new: str, where: str, message: str) -> None:
    text = _changed(old, new)
    assert _problems(text).get(where) == message
    with pytest.raises(EnvspecError) as caught:
        parse_spec(text, input_name=NAME)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (
            "2026-05-20T00:00:00",
            "got a date-time without an offset",
            "write `snapshot = 2026-05-20T00:00:00Z`, without quotes",
        ),
        (
            "2026-05-20 01:30:00.5",
            "got a date-time without an offset",
            "write `snapshot = 2026-05-20T01:30:00.500000Z`, without quotes",
        ),
        ("2026-05-20", "got a date", "write `snapshot = 2026-05-20T00:00:00Z`, without quotes"),
        ('"2026-05-20T00:00:00Z"', "got a string", "write `snapshot = 2026-05-20T00:00:00Z`, without quotes"),
        ("20260520", "got an integer", "write `snapshot = 2026-05-20T00:00:00Z`, without quotes"),
    ],
)
def test_a_snapshot_without_offset_is_refused_with_the_right_form(value: str, message: str, hint: str) -> None:
    text = _changed("2026-05-20T02:00:00+02:00", value)
    assert _problems(text) == {"snapshot (line 3)": f"expected a date-time with an offset, {message}"}
    assert _hints(text) == [hint]


def test_a_snapshot_before_all_of_utc_is_refused() -> None:
    assert list(_problems(_changed("2026-05-20T02:00:00+02:00", "0001-01-01T00:00:00+14:00"))) == ["snapshot (line 3)"]


def test_credentials_in_a_url_are_refused_with_the_place_where_they_belong() -> None:
    hint = "set UV_INDEX_PYTORCH_CU130_USERNAME and UV_INDEX_PYTORCH_CU130_PASSWORD where `envspec` runs, or use netrc"
    assert _hints(_changed(URL, "https://a:b@host/")) == [hint]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/simple", "https://[::1]:8/a", "file:///srv/simple", "https://host"]
)
def test_index_urls_may_be_http_https_and_file(url: str) -> None:
    assert parse_spec(_changed(URL, url), input_name=NAME).indexes[0].url == url


@pytest.mark.parametrize(
    ("one", "other"), [("nvidia-cu13", "nvidia-*"), ("nvidia-cu13-*", "nvidia-*"), ("a", "A"), ("a-*", "a-b")]
)
def test_no_package_may_come_from_two_indexes(one: str, other: str) -> None:
    indexes = "".join(
        f'[indexes.{name}]\nurl = "https://host/"\npackages = ["{found}"]\n'
        for name, found in (("x", one), ("y", other))
    )
    assert list(_problems(MINIMAL + indexes)) == ["indexes.y.packages (line 11)"]


@pytest.mark.parametrize(
    ("one", "other"), [("nvidia", "nvidia-*"), ("nvidia-*", "nvidia"), ("a-*", "b-*"), ("a", "b"), ("ab", "a-*")]
)
def test_packages_that_no_two_indexes_share_are_fine(one: str, other: str) -> None:
    indexes = "".join(
        f'[indexes.{name}]\nurl = "https://host/"\npackages = ["{found}"]\n'
        for name, found in (("x", one), ("y", other))
    )
    assert len(parse_spec(MINIMAL + indexes, input_name=NAME).indexes) == 2


def test_one_index_may_name_a_package_and_a_pattern_that_covers_it() -> None:
    spec = parse_spec(_changed('"nvidia_*"', '"nvidia_*", "nvidia-nccl"'), input_name=NAME)
    assert spec.indexes[0].packages == ("nvidia-*", "nvidia-nccl", "torch", "torchvision")


def test_the_text_of_a_snapshot_is_in_utc_and_empty_if_there_is_none() -> None:
    moment = datetime(2026, 5, 20, 2, 30, tzinfo=timezone(timedelta(hours=2)))
    assert [snapshot_text(moment), snapshot_text(None)] == ["2026-05-20T00:30:00Z", ""]


def test_an_unknown_key_names_the_nearest_known_one_or_all() -> None:
    assert _hints(_changed("libraries = ", "librairies = ")) == ["did you mean `libraries`?"]
    assert _hints(_changed("exact = ", "zzz = ")) == ["known keys: archive, archive-sha256, exact, version"]


def test_a_bare_version_is_refused_with_the_specifier_that_is_meant() -> None:
    assert _hints(_changed('torch = "==2.11.0"', 'torch = "2.11.0"')) == ["write `==2.11.0`"]
    assert _hints(_changed('torch = "==2.11.0"', 'torch = "=>2"')) == [
        "write a PEP 440 specifier such as `==2.11.0` or `>=2,<3`; `*` takes any version"
    ]


def test_a_host_with_compute_needs_a_cuda_section() -> None:
    text = f'{MINIMAL}hosts.a = {{ compute = "9.0" }}\n'
    assert _problems(text) == {"hosts.a.compute (line 6)": "has `9.0`, but the spec has no [cuda]"}


def test_packages_may_not_be_empty() -> None:
    assert _problems(MINIMAL.replace('packages.b = ""', "packages = {}")) == {"packages (line 5)": "names no package"}


def test_an_overlay_may_be_on_a_package_that_only_others_ask_for() -> None:
    spec = parse_spec(f'{MINIMAL}overlays.c.series = "s"\n', input_name=NAME)
    assert spec.overlays == (OverlaySpec(package="c", series="s"),)


def test_missing_sections_do_not_also_report_what_they_would_hold() -> None:
    assert _problems("envspec = 1\n") == {
        "name (line 1)": "is missing; expected a name of lower-case letters, digits, `.`, `_` and `-` that begins with a letter or digit",
        "python (line 1)": "is missing; expected a table",
        "target (line 1)": "is missing; expected a table",
        "packages (line 1)": "is missing; expected a table",
    }


def test_another_format_is_named_with_the_one_that_is_supported() -> None:
    with pytest.raises(EnvspecError, match="the spec has format 2, this envspec supports 1") as caught:
        parse_spec("envspec = 2\nnew = true\n", input_name=NAME)
    assert caught.value.problems == ()


def test_a_syntax_error_has_line_and_column() -> None:
    with pytest.raises(EnvspecError) as caught:
        parse_spec(_changed('glibc = "2.35"', "glibc == 2"), input_name=NAME)
    assert caught.value.message.startswith("the spec is not valid TOML at line 11, column 8: ")


def test_a_syntax_error_at_the_end_has_line_and_column() -> None:
    with pytest.raises(EnvspecError) as caught:
        parse_spec("envspec = 1\nname = [\n\n", input_name=NAME)
    assert caught.value.message.startswith("the spec is not valid TOML at line 2, column 9: ")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_merge_conflict_markers_are_recognised(end: str) -> None:
    conflict = '<<<<<<< HEAD\ntorch = "==2.11.0"\n||||||| base\n=======\ntorch = "==2.12.1"\n>>>>>>> bump\n'
    with pytest.raises(EnvspecError) as caught:
        parse_spec(_changed('torch = "==2.11.0"\n', conflict).replace("\n", end), input_name=NAME)
    assert caught.value.message == "the spec has merge-conflict markers, the first on line 19"
    assert caught.value.hint == "resolve the conflict by hand, then run `envspec lock`"


def test_conflict_markers_in_a_string_are_no_conflict() -> None:
    text = _changed('reason = "ours"', 'reason = """\n<<<<<<< HEAD\n=======\n>>>>>>> b\n"""')
    assert parse_spec(text, input_name=NAME).waivers[1].reason.startswith("<<<<<<< HEAD")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" * ", ""),
        ("== 2.11.0", "==2.11.0"),
        (">=2,<3", "<3,>=2"),
        ("==2.11.0+CU130", "==2.11.0+cu130"),
        ("==1.0.ALPHA1", "==1.0a1"),
        ("== 1.2.*", "==1.2.*"),
        ("~=1.4", "~=1.4"),
        (">=1,>=1", ">=1"),
        ("==v1.0", "==1.0"),
    ],
)
def test_specifiers_have_one_form(text: str, canonical: str) -> None:
    assert canonical_specifier(text) == canonical
    assert canonical_specifier(canonical) == canonical


@given(st.data())
def test_the_spec_and_its_digest_do_not_depend_on_how_it_is_written(data: st.DataObject) -> None:
    spec = data.draw(specs())
    again = parse_spec(data.draw(spec_texts(spec)), input_name=NAME)
    assert again == spec
    assert spec_digest(again) == spec_digest(spec)


@given(specs(), specs())
def test_specs_that_decide_differently_have_different_digests(spec: Spec, other: Spec) -> None:
    def decisive(spec: Spec) -> Spec:
        return replace(
            spec, hosts=(), verify=VerifySpec(), indexes=tuple(replace(index, url="") for index in spec.indexes)
        )

    assert (spec_digest(spec) == spec_digest(other)) == (decisive(spec) == decisive(other))


DECISIVE_CHANGES: list[dict[str, Any]] = [
    {"name": "b"},
    {"snapshot": None},
    {"snapshot": datetime(2026, 5, 20, 0, 0, 1, tzinfo=timezone.utc)},
    {"python": PythonSpec(version="3.12")},
    {"cuda": None},
    {"packages": ()},
    {"overrides": ()},
    {"overlays": ()},
    {"indexes": ()},
    {"waivers": ()},
]


@pytest.mark.parametrize("change", DECISIVE_CHANGES)
def test_a_change_that_can_decide_something_moves_the_digest(change: dict[str, Any]) -> None:
    spec = parse_spec(GOOD, input_name=NAME)
    assert spec_digest(replace(spec, **change)) != spec_digest(spec)


def test_what_no_lock_depends_on_does_not_move_the_digest() -> None:
    spec = parse_spec(GOOD, input_name=NAME)
    mirrored = tuple(replace(index, url="https://mirror.example/") for index in spec.indexes)
    zoned = spec.snapshot.astimezone(timezone(timedelta(hours=-7))) if spec.snapshot else None
    assert spec_digest(replace(spec, hosts=(), verify=VerifySpec(), indexes=mirrored, snapshot=zoned)) == spec_digest(
        spec
    )


def test_the_digest_is_that_of_the_fields_that_have_a_value() -> None:
    value = b'{"name":"a","packages":[{"name":"b"}],"python":{"version":"3.10"},"target":{"glibc":"2.17","platform":"linux-aarch64"}}'
    record = b"envspec\0spec 1\0" + b"4:spec" + str(len(value)).encode() + b":" + value
    assert spec_digest(parse_spec(MINIMAL, input_name=NAME)) == hashlib.sha256(record).hexdigest()


def test_the_digest_of_a_spec_does_not_move_between_versions() -> None:
    digest = "50fb234833e2dcb7d82635a2e65a2a4097635fbd98ecc2b870538ca223d4eea7"
    assert spec_digest(parse_spec(GOOD, input_name=NAME)) == digest


def _parse_or_refuse(text: str) -> None:
    try:
        spec = parse_spec(text, input_name=NAME)
    except EnvspecError as error:
        assert str(error)  # noqa: PT017 - that it can be shown is part of the promise
    else:
        assert len(spec_digest(spec)) == 64


@given(st.data())
def test_a_spec_with_changed_bytes_is_a_spec_or_refused(data: st.DataObject) -> None:
    raw = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(len(raw), start + data.draw(st.sampled_from([1, 3, 100])))))
        raw[start:end] = data.draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"\n", b'"', b"[", b"]]", b"{", b"= 1\n", b"\\u0000", b"#", b"0"]),
            )
        )
    _parse_or_refuse(raw.decode(errors=data.draw(st.sampled_from(["replace", "surrogateescape"]))))


OF_INVENTORIES = {(HostSpec, "user"), (HostSpec, "port"), (HostSpec, "key")}
"""What a spec leaves to ssh_config and inventories say."""

REFERENCE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")


def test_the_example_of_the_reference_is_a_spec_with_every_section() -> None:
    text = REFERENCE.partition("```toml\n")[2].partition("```")[0]
    spec = parse_spec(text, input_name="docs/spec.md")
    assert all(getattr(spec, field.name) for field in dataclasses.fields(spec))


@pytest.mark.parametrize(
    ("heading", "shape", "named_by_the_heading"),
    [
        ("[python]", PythonSpec, ""),
        ("[target]", TargetSpec, ""),
        ("[cuda]", CudaSpec, ""),
        ("[overlays.<package>]", OverlaySpec, "package"),
        ("[indexes.<name>]", IndexSpec, "name"),
        ("[verify]", VerifySpec, ""),
        ("[[waivers]]", Waiver, ""),
        ("[hosts.<name>]", HostSpec, "name"),
        ("[[caches]]", CacheSpec, ""),
    ],
)
def test_the_reference_has_every_key_and_no_other(heading: str, shape: type[Any], named_by_the_heading: str) -> None:
    section = REFERENCE.partition(f"## `{heading}`\n")[2].partition("\n## ")[0]
    keys = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(keys) == sorted(
        field.name.replace("_", "-")
        for field in dataclasses.fields(shape)
        if field.name != named_by_the_heading and (shape, field.name) not in OF_INVENTORIES
    )


def test_importing_the_parser_loads_nothing_slow() -> None:
    slow = ("packaging", "tomlkit", "hashlib", "json", "difflib", "urllib")
    code = f"import sys, envspec.spec_toml; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
