"""The committed series `overlays/ddtree`: its form always, its effect on the real files where a wheelhouse has them."""

from __future__ import annotations

import ast
import hashlib
import os
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.overlay import build_patched_wheel, read_series
from envspec.errors import EnvspecError
from envspec.patch import FileChange, Patch, apply_patches, parse_patch

SERIES = Path(__file__).parents[2] / "overlays/ddtree/series"
ROPE_PATCH = "0001-dflash-read-the-draft-rope-base-from-rope-parameters.patch"
BASE_SHA256 = "0cdf73e8d463df53010c33017c7baa68ce5f2d0bf7d015923d6b37b809ca7c50"
BASE_FILE = "sglang-0.5.11-cp312-cp312-manylinux_2_34_x86_64.whl"
DFLASH = "sglang/srt/models/dflash.py"
UTILS = "sglang/srt/speculative/ddtree_utils.py"
DFLASH_SHA256 = "c7674f2f5983cf6648b3850b9f395b8017f7137153ad06ce7f5305085372f2e9"
DEFAULT_BASE = 1_000_000.0


def v5(**parameters: Any) -> SimpleNamespace:
    """A config as transformers 5 makes it: the dict has two names, and there is no `rope_theta`."""
    return SimpleNamespace(rope_parameters=parameters, rope_scaling=parameters)


V5_DEFAULT = v5(rope_theta=1e4, rope_type="default")
V5_TEN_MILLION = v5(rope_theta=10_000_000, rope_type="default")
V5_YARN = v5(rope_theta=5e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
V4_SCALING = {"type": "linear", "factor": 2.0}
CONFIGS = [
    pytest.param(V5_DEFAULT, 1e4, id="v5, 1e4"),
    pytest.param(V5_TEN_MILLION, 1e7, id="v5, 1e7"),
    pytest.param(V5_YARN, 5e6, id="v5, scaled"),
    pytest.param(v5(rope_type="default"), DEFAULT_BASE, id="v5 without a base"),
    pytest.param(v5(rope_type="default", rope_theta=None), DEFAULT_BASE, id="v5 with an empty base"),
    pytest.param(SimpleNamespace(rope_parameters={}, rope_theta=3e6), 3e6, id="v5 that kept the old attribute"),
    pytest.param(SimpleNamespace(rope_parameters=None, rope_theta=3e6, rope_scaling=None), 3e6, id="both names"),
    pytest.param(SimpleNamespace(rope_theta=1e4, rope_scaling=None), 1e4, id="v4"),
    pytest.param(SimpleNamespace(rope_theta=1e7, rope_scaling=V4_SCALING), 1e7, id="v4, scaled"),
    pytest.param(SimpleNamespace(), DEFAULT_BASE, id="neither"),
]


def rope_change() -> FileChange:
    content = (SERIES.parent / ROPE_PATCH).read_bytes()
    (change,) = parse_patch(content, input_name=ROPE_PATCH).files
    return change


def statements_of_hunk(lines: tuple[bytes, ...]) -> str:
    """The statements of one side of the patch's hunk, from the first about `rope_` to the one that reads `rope_scaling`."""
    text = [line.decode() for line in lines]
    start = next(index for index, line in enumerate(text) if "rope_" in line)
    end = next(index for index, line in enumerate(text) if line.strip().startswith("rope_scaling ="))
    return textwrap.dedent("".join(text[start : end + 1]))


def rope_given_by_hunk(lines: tuple[bytes, ...], config: SimpleNamespace) -> tuple[Any, Any]:
    names: dict[str, Any] = {"config": config}
    exec(statements_of_hunk(lines), names)  # noqa: S102 - our own patch
    return names["rope_theta"], names["rope_scaling"]


@pytest.mark.parametrize("name", [patch.name for patch in read_series(SERIES).patches])
def test_patch_of_the_series_says_what_it_is_for_and_when_it_goes(name: str) -> None:
    content = (SERIES.parent / name).read_bytes()
    header = content[: content.index(b"diff --git ")].decode()
    for field in ("Purpose:", "How it shows:", "Found:", "Drop when:", "Base:"):
        assert f"\n{field}" in header, f"{name} has no `{field}` in its header"
    assert f"`{name}`" in (SERIES.parent / "README.md").read_text(encoding="utf-8")
    for change in parse_patch(content, input_name=name).files:
        assert change.path.startswith("sglang/srt/")


def test_series_lists_every_patch_of_its_folder() -> None:
    listed = [patch.name for patch in read_series(SERIES).patches]
    assert sorted(listed) == sorted(path.name for path in SERIES.parent.glob("*.patch"))
    assert listed == sorted(listed)


def patches_of(path: str) -> list[Patch]:
    """What the series does to a file, patch by patch."""
    parts = []
    for listed in read_series(SERIES).patches:
        patch = parse_patch((SERIES.parent / listed.name).read_bytes(), input_name=listed.name)
        files = tuple(change for change in patch.files if change.path == path)
        if files:
            parts.append(Patch(name=patch.name, files=files))
    return parts


def test_series_without_one_of_its_patches_or_in_another_order_does_not_fit() -> None:
    """On the file that the series adds, so that no base wheel is needed: each patch stands on those before it."""
    parts = patches_of(UTILS)
    assert len(parts) >= 5
    base_wheel: dict[str, bytes | None] = {}  # has no such file
    apply_patches(parts, base_wheel.get, input_name="ddtree")
    changed = [parts[:at] + parts[at + 1 :] for at in range(len(parts) - 1)]
    changed += [[*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]] for at in range(len(parts) - 1)]
    for series in changed:
        with pytest.raises(EnvspecError) as refused:
            apply_patches(series, base_wheel.get, input_name="ddtree")
        assert any(UTILS in str(problem) for problem in refused.value.problems)


@pytest.mark.parametrize(("config", "base"), CONFIGS)
def test_draft_rope_has_the_base_of_its_config(config: SimpleNamespace, base: float) -> None:
    (hunk,) = rope_change().hunks
    theta, scaling = rope_given_by_hunk(hunk.new, config)
    assert (theta, type(theta)) == (base, float)
    assert scaling is getattr(config, "rope_scaling", None)


@pytest.mark.parametrize("config", [V5_DEFAULT, V5_TEN_MILLION, V5_YARN])
def test_unpatched_draft_rope_ignores_the_base_of_a_v5_config(config: SimpleNamespace) -> None:
    (hunk,) = rope_change().hunks
    assert rope_given_by_hunk(hunk.old, config) == (DEFAULT_BASE, config.rope_scaling)


# --- on the real files ----------------------------------------------------------------------------------------------


@pytest.fixture
def real_base() -> Path:
    wheelhouse = os.environ.get("ENVSPEC_TEST_WHEELHOUSE")
    if not wheelhouse:
        pytest.skip("ENVSPEC_TEST_WHEELHOUSE does not name a folder of <sha256>/<file>")
    base = Path(wheelhouse) / BASE_SHA256 / BASE_FILE
    if not base.is_file():
        pytest.skip(f"the wheelhouse has no {BASE_FILE}")
    assert hashlib.sha256(base.read_bytes()).hexdigest() == BASE_SHA256
    return base


def rope_given_by_module(source: bytes, config: SimpleNamespace) -> dict[str, Any]:
    """What `DFlashAttention.__init__` hands to `get_rope`, without torch: its statements about the rope, run by themselves."""
    tree = ast.parse(source)
    (attention,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DFlashAttention")
    (init,) = (n for n in attention.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    about_rope = [index for index, statement in enumerate(init.body) if "rope_" in ast.unparse(statement)]
    body = init.body[about_rope[0] : about_rope[-1] + 1]
    assert "get_rope(" in ast.unparse(body[-1])
    given: dict[str, Any] = {}
    names = {
        "config": config,
        "head_dim": 64,
        "self": SimpleNamespace(),
        "get_rope": lambda head_size, **options: given.update(options, head_size=head_size),
    }
    exec(compile(ast.Module(body=body, type_ignores=[]), DFLASH, "exec"), names)  # noqa: S102 - a wheel with a known digest
    return given


@pytest.mark.real
def test_series_applies_to_the_real_wheel(real_base: Path, tmp_path: Path) -> None:
    one, two = (build_patched_wheel(real_base, read_series(SERIES), destination_dir=tmp_path / name) for name in "ab")
    assert one.sha256 == two.sha256
    assert one.version.startswith("0.5.11+ddtree.")
    before = {file.path: file.before for file in one.files}
    assert before[DFLASH] == DFLASH_SHA256
    with zipfile.ZipFile(one.path) as archive, zipfile.ZipFile(real_base) as base:
        assert archive.testzip() is None
        kept = {name for name in base.namelist() if not name.endswith("/") and ".dist-info/" not in name}
        assert kept - before.keys() == {n for n in archive.namelist() if ".dist-info/" not in n} - before.keys()
        assert all(archive.read(name) == base.read(name) for name in kept - before.keys())
        for path in before:
            if path.endswith(".py") and path in archive.namelist():
                compile(archive.read(path), path, "exec")


@pytest.mark.real
@pytest.mark.parametrize(("config", "base"), CONFIGS)
def test_real_draft_hands_the_base_of_its_config_to_get_rope(
    real_base: Path, tmp_path: Path, config: SimpleNamespace, base: float
) -> None:
    wheel = build_patched_wheel(real_base, read_series(SERIES), destination_dir=tmp_path)
    with zipfile.ZipFile(real_base) as unpatched, zipfile.ZipFile(wheel.path) as patched:
        old, new = (rope_given_by_module(archive.read(DFLASH), config) for archive in (unpatched, patched))
    assert new["base"] == base
    assert new["rope_scaling"] is getattr(config, "rope_scaling", None)
    assert {**new, "base": 0} == {**old, "base": 0}
    if not hasattr(config, "rope_theta"):
        assert old["base"] == DEFAULT_BASE
