"""Judgements of the kit, of mappings and search paths, and references that need no torch."""

from __future__ import annotations

import importlib
import math
import random
from typing import TYPE_CHECKING, Any

import pytest

from builder.probes import chips, compiling, kit, mapped, references

if TYPE_CHECKING:
    from pathlib import Path

libraries: Any = importlib.import_module("builder.probes.libraries")
sgl_kernel: Any = importlib.import_module("builder.probes.sgl_kernel")
engine: Any = importlib.import_module("builder.probes.engine")


def probe(**more: Any) -> kit.Probe:
    about = {"id": "trial", "memory_bytes": 1000}
    return kit.probe_of(about, {"seed": 5, "prefix": "/env", "site": "/env/site", "compute": ["9.0"], **more})


@pytest.mark.parametrize(
    ("value", "bound", "wrong"),
    [(1.0, 1.0, False), (1.01, 1.0, True), (float("nan"), 1.0, True), (float("inf"), 1.0, True), (0, 0, False)],
)
def test_a_figure_over_its_bound_is_wrong(value: float, bound: float, *, wrong: bool) -> None:
    found = kit.Found()
    found.at_most("relative_error", value, bound)
    assert bool(found.wrong) == wrong


def test_a_figure_that_is_no_number_is_told_as_text() -> None:
    found = kit.Found()
    found.at_most("relative_error", float("nan"), 1.0)
    assert found.figures == {"relative_error": {"value": "nan", "bound": 1.0}}
    assert found.wrong == ["relative error is nan, the bound 1"]


@pytest.mark.parametrize(
    ("gpu", "value", "of", "wrong"),
    [
        ("NVIDIA H200", 780.0, 989.0, False),
        ("NVIDIA H200", 396.0, 989.0, False),
        ("NVIDIA H200", 395.0, 989.0, True),
        ("NVIDIA H200", float("nan"), 989.0, True),
        ("Some other GPU", 3.0, None, False),
        ("NVIDIA H200 MIG 1g.18gb", 3.0, None, False),
    ],
)
def test_a_known_chip_has_to_do_a_share_of_what_it_can(
    gpu: str, value: float, of: float | None, *, wrong: bool
) -> None:
    found = kit.Found(gpu)
    found.speed("rate", value, "TFLOP/s", "bf16")
    assert found.figures["rate"].get("of") == of
    assert bool(found.wrong) == wrong
    if wrong and value > 0:
        assert found.wrong == [
            "395 TFLOP/s, less than 40% of the 989 that this chip can do: the GPU is throttled, faulty, or busy with something else"
        ]


def test_what_chips_can_do_is_in_proportion() -> None:
    for name, rates in chips.CHIPS.items():
        assert rates["memory"] > 100, name
        assert rates["fp16"] == rates["bf16"], name
        assert 1.9 < rates["bf16"] / rates["tf32"] < 2.1, name
        assert "fp8" not in rates or 1.9 < rates["fp8"] / rates["bf16"] < 2.1, name


def test_seeds_differ_by_use_and_request_and_are_the_same_again() -> None:
    first = probe()
    assert first.number("a") == probe().number("a")
    assert len({first.number("a"), first.number("b"), probe(seed=6).number("a")}) == 3
    assert 0 <= first.number("a") < 1 << 63


def test_paths_count_as_they_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real2").mkdir()
    one = probe(prefix=str(tmp_path / "link"), site="")
    assert one.has(str(tmp_path / "real" / "x.so"))
    assert one.has(str(tmp_path / "real"))
    assert not one.has(str(tmp_path / "real2" / "x.so"))


MAPS = """\
7f00-7f01 r-xp 00000000 fe:00 1 /env/site/nvidia/cu13/lib/libcudart.so.13
7f01-7f02 r--p 00000000 fe:00 1 /env/site/nvidia/cu13/lib/libcudart.so.13
7f02-7f03 r-xp 00000000 fe:00 2 /env/site/torch/lib/libtorch_cuda.so
7f03-7f04 r-xp 00000000 fe:00 3 /env/site/torchvision.libs/libcudart.faf08d9a.so.13
7f04-7f05 r-xp 00000000 fe:00 4 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03
7f05-7f06 r-xp 00000000 fe:00 5 /usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.159.03
7f06-7f07 r-xp 00000000 fe:00 6 /usr/lib/x86_64-linux-gnu/libc.so.6
7f07-7f08 rw-p 00000000 00:00 0 [heap]
7f08-7f09 rw-p 00000000 00:00 0
7f09-7f0a r-xp 00000000 fe:00 7 /env/site/tokenizers/tokenizers.abi3.so
7f0a-7f0b r-xp 00000000 fe:00 8 /root-cache/triton/cuda_utils.cpython-312.so
"""
FOREIGN = [
    ("libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so.13.0.96"),
    ("libcublasLt.so.13", "/opt/other/libcublasLt.so.13"),
    ("libcudnn_ops.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9.1.0"),
    ("libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9"),
    ("libc10_cuda.so", "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so"),
    ("libnvrtc.so.13", "/env2/site/nvidia/cu13/lib/libnvrtc.so.13 (deleted)"),
]


def test_mapped_libraries_are_the_environments_or_the_drivers() -> None:
    table = mapped.mapped_libraries(MAPS, ("/env", "/env/site"))
    assert [path.rpartition("/")[2] for path in table.inside] == [
        "libcudart.so.13",
        "libtorch_cuda.so",
        "libcudart.faf08d9a.so.13",
    ]
    assert table.foreign == ()
    assert [path.rpartition("/")[2] for path in table.driver] == [
        "libcuda.so.580.159.03",
        "libnvidia-ptxjitcompiler.so.580.159.03",
    ]
    found = kit.Found()
    kit.judge_mapped(found, probe(), maps=MAPS, order=[])
    assert found.wrong == []


@pytest.mark.parametrize(("soname", "path"), FOREIGN)
def test_a_library_of_cuda_from_elsewhere_is_a_failure(soname: str, path: str) -> None:
    maps = f"{MAPS}7f0b-7f0c r-xp 00000000 fe:00 9 {path}\n"
    found = kit.Found()
    kit.judge_mapped(found, probe(), maps=maps, order=[path.removesuffix(" (deleted)")])
    assert found.figures["foreign_libraries"] == {"value": 1, "bound": 0}
    assert path.removesuffix(" (deleted)") in found.wrong[0]
    assert soname.partition(".")[0] in found.wrong[0]


def test_a_second_copy_behind_the_environments_own_is_told_and_harmless() -> None:
    own, other = "/env/site/nvidia/cu13/lib/libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so.13.0.96"
    maps = f"{MAPS}7f0b-7f0c r-xp 00000000 fe:00 9 {other}\n"
    for order, wrong in (([own, other], False), ([other, own], True), ([other], True)):
        found = kit.Found()
        kit.judge_mapped(found, probe(), maps=maps, order=order)
        assert bool(found.wrong) == wrong
        assert ("shadowed_0" in found.figures) != wrong


def test_the_order_in_which_libraries_were_loaded_is_known() -> None:
    names = [path.rpartition("/")[2] for path in mapped.load_order()]
    assert any(name.startswith("libc.so") for name in names)


def test_a_library_on_the_search_path_before_the_environments_own_is_a_failure(tmp_path: Path) -> None:
    own = tmp_path / "env" / "site" / "nvidia" / "cu13" / "lib"
    other = tmp_path / "other"
    own.mkdir(parents=True)
    other.mkdir()
    (own / "libcudart.so.13").touch()
    asked = probe(prefix=str(tmp_path / "env"), site=str(tmp_path / "env" / "site"))
    for name, path, preload, wrong in (
        ("libcudart.so.13", f"{other}", "", True),
        ("libcudart.so.13", f"{own}:", "", False),
        ("libcudart.so.12", f"{other}", "", False),
        ("libfoo.so", f"{other}:/no/such/folder", "", False),
        ("libfoo.so", "", "/x/libcublasLt.so.13", True),
        ("libfoo.so", "", "/x/libjemalloc.so.2", False),
    ):
        planted = other / name
        planted.touch()
        found = kit.Found()
        libraries.search_path(found, asked, {"LD_LIBRARY_PATH": path, "LD_PRELOAD": preload})
        assert bool(found.wrong) == wrong, (name, path, preload)
        planted.unlink()


def test_a_tree_of_eagle_has_the_parents_that_its_numbers_say() -> None:
    chance = random.Random(3)
    for _ in range(50):
        parent_list, taken, parents = sgl_kernel.eagle_tree(chance, 4, 5, 32)
        assert len(parent_list) == 4 * 4 + 1
        assert taken == sorted(set(taken))
        assert len(parents) == 32
        assert parents[0] == -1
        assert all(0 <= parent < row for row, parent in enumerate(parents) if row)
        assert max(references.depths(parents)) <= 5


def test_links_and_walks_agree_on_random_trees() -> None:
    chance = random.Random(4)
    longest = 0
    for _ in range(200):
        parents = references.random_parents(chance.randrange(1, 60), chance)
        tokens, decisions = references.tokens_and_decisions(parents, chance)
        child, sibling = references.links(parents)
        path, row = [0], 0
        while True:
            at = child[row]
            while at >= 0 and tokens[at] != decisions[row]:
                at = sibling[at]
            if at < 0:
                break
            path.append(at)
            row = at
        assert path == references.walk(tokens, parents, decisions)
        seen = references.ancestors(parents)
        assert [sum(each) - 1 for each in seen] == references.depths(parents)
        longest = max(longest, len(path))
    assert longest > 5


def test_suppression_keeps_the_best_of_boxes_that_overlap() -> None:
    boxes = [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0], [20.0, 20.0, 30.0, 30.0], [5.0, 0.0, 15.0, 10.0]]
    kept, nearest = references.boxes_kept(boxes, [0.5, 0.9, 0.1, 0.7], 0.4)
    assert kept == [1, 3, 2]
    assert nearest == pytest.approx(abs(45 / 145 - 0.4))


def test_the_best_prefixes_of_two_positions() -> None:
    # Of 0.6 0.4 and 0.9 0.1: 0.6, 0.54, 0.4 are the three best.
    scores = [[math.log(0.6), math.log(0.4)], [math.log(0.9), math.log(0.1)]]
    assert references.best_prefixes(scores, 3) == pytest.approx(1.54)


def test_ptxas_output_is_read() -> None:
    said = (
        "ptxas info    : Compiling entry function 'dot' for 'sm_90a'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 116 registers, used 1 barriers, 8 bytes cumulative stack size\n"
    )
    assert compiling.registers_and_spills(said) == (116, 12)
    assert compiling.registers_and_spills("") == (0, 0)


@pytest.mark.parametrize(
    ("compute", "arch", "target"),
    [("8.6", 86, "sm_86"), ("9.0", 90, "sm_90a"), ("10.3", 103, "sm_103a"), ("12.0", 120, "sm_120a")],
)
def test_compute_capabilities_are_named_as_ptxas_does(compute: str, arch: int, target: str) -> None:
    assert compiling.arch_of(compute) == arch
    assert compiling.target_name(compute) == target


def test_the_margin_of_a_token_is_its_distance_from_the_best() -> None:
    read = [[[[-0.1, 7, None], [-2.6, 8, None]], [[-0.5, 3, None], [-0.9, 4, None]]]]
    assert engine.worst_margin([[7, 3]], read) == 0.0
    assert engine.worst_margin([[7, 4]], read) == pytest.approx(0.4)
    assert engine.worst_margin([[8, 3]], read) == pytest.approx(2.5)
    assert engine.worst_margin([[9, 3]], read) == pytest.approx(3.5)
