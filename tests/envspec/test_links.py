"""What loads in an environment: the world of torch, the roles of objects, and variants."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from envspec.binaries import Label
from envspec.links import extension_suffixes
from tests.support.facts import make_closure, make_facts, make_spec, waiver
from tests.support.torch_stack import (
    CHECK_NEW,
    CHECK_OLD,
    cuda_runtime,
    extension,
    kernel,
    library,
    torch,
    torch_stack,
    wheel,
)

if TYPE_CHECKING:
    from envspec.binaries import Binary
    from envspec.facts import WheelFacts
    from envspec.links import Links

SITE = "lib/python3.12/site-packages/"


def links(*wheels: WheelFacts) -> Links:
    return make_closure(wheels).links


def test_import_of_torch_leaves_its_libraries_loaded() -> None:
    world = links(*torch_stack()).world
    assert {path.removeprefix(SITE) for path in world.paths} == {
        "torch/lib/libtorch_global_deps.so",
        "nvidia/cu13/lib/libcudart.so.13",
        "torch/_C.cpython-312-x86_64-linux-gnu.so",
        "torch/lib/libtorch.so",
        "torch/lib/libc10.so",
    }
    assert [path.removeprefix(SITE) for path in world.global_paths] == [
        "torch/lib/libtorch_global_deps.so",
        "nvidia/cu13/lib/libcudart.so.13",
    ]


def test_without_torch_nothing_is_loaded() -> None:
    assert links(cuda_runtime()).world.paths == frozenset()


def test_extension_without_a_search_path_lives_off_what_torch_loaded() -> None:
    user = kernel(needed=("libtorch.so", "libcudart.so.13", "libnvrtc.so.13"))
    nvrtc = wheel(
        "nvidia-cuda-nvrtc",
        binaries=[library("nvidia/cu13/lib/libnvrtc.so.13", soname="libnvrtc.so.13")],
    )
    assert links(*torch_stack(), nvrtc, user).fatal == {}
    without = links(*torch_stack(), user).fatal["fastkernel"]
    assert [each.soname for each in without.missing] == ["libnvrtc.so.13"]


def test_torch_opens_the_libraries_of_its_own_cuda() -> None:
    both = wheel(
        "nvidia-cublas",
        binaries=[
            library("nvidia/cu14/lib/libcublas.so.14", soname="libcublas.so.14"),
            library("nvidia/cu13/lib/libcublas.so.13", soname="libcublas.so.13"),
        ],
    )
    assert {"libcublas.so.13", "libcublas.so.14"} & links(*torch_stack(), both).world.by_name.keys() == {
        "libcublas.so.13"
    }


def test_library_in_the_folder_of_its_component_is_opened_first() -> None:
    """The wheels of CUDA 12 lie in `nvidia/<component>/lib`, where torch for CUDA 13 looks too, and looks first."""
    world = links(*torch_stack(), cuda_runtime(12, "12.8.90")).world
    assert "libcudart.so.12" in world.by_name


def test_torch_that_finds_no_runtime_opens_it_by_itself() -> None:
    own = torch("2.9.1", cuda="12.8")
    assert links(own, cuda_runtime(12, "12.8.90")).fatal == {}
    assert [each.soname for each in links(own).fatal["torch"].missing] == ["libcudart.so.12"] * 2


@pytest.mark.parametrize(
    ("binary", "role"),
    [
        (extension("p/a.cpython-312-x86_64-linux-gnu.so"), "extension"),
        (extension("p/a.abi3.so"), "extension"),
        (extension("p/a.so"), "extension"),
        (extension("p/a.cpython-310-x86_64-linux-gnu.so"), "dead"),
        (extension("p/a.cpython-312-aarch64-linux-gnu.so"), "dead"),
        (library("p/a.cpython-310-x86_64-linux-gnu.so", needed=["libtorch.so"]), "torch"),
        (library("p/a.so", exports=["PyInit_b"]), "plugin"),
        (library("p/liba.so", needed=["libc10.so"]), "torch"),
        (library("p/liba.so", needed=["libc.so.6"]), "plugin"),
    ],
    ids=str,
)
def test_role_of_an_object(binary: Binary, role: str) -> None:
    assert list(links(wheel("p", binaries=[binary])).roles.values()) == [role]


def test_library_that_another_object_needs_is_judged_through_that_one() -> None:
    user = wheel(
        "p",
        binaries=[
            extension("p/a.so", needed=["libb.so"], runpath="$ORIGIN/lib", exports=["f"]),
            library("p/lib/libb.so", soname="libb.so", undefined=["f"]),
        ],
    )
    found = links(user)
    assert found.roles[f"{SITE}p/lib/libb.so"] == "dependency"
    assert found.fatal == {}


def test_ring_of_libraries_that_only_need_each_other_is_judged_too() -> None:
    ring = [
        library("p/liba.so", needed=["libb.so", "libc10.so"], runpath="$ORIGIN", undefined=[CHECK_OLD]),
        library("p/libb.so", needed=["liba.so"], runpath="$ORIGIN"),
    ]
    found = links(*torch_stack(), wheel("p", binaries=ring))
    assert [each.reference.name for each in found.fatal["p"].unbound] == [CHECK_OLD]


def test_plugin_that_does_not_load_is_optional() -> None:
    found = links(wheel("p", binaries=[library("p/libplug.so", needed=["libfabric.so.1"])]))
    assert (found.fatal, list(found.optional)) == ({}, ["p"])


def test_objects_that_are_damaged_foreign_or_programs_are_left_out() -> None:
    binaries = [
        library("p/a.so", damage="torn"),
        library("p/b.so", machine="aarch64"),
        library("p/c", program=True),
        library("p/d.cubin", machine="cuda", kind="executable"),
        library("p/libQt5Core.so.5", program=True, soname="libQt5Core.so.5"),
    ]
    assert list(links(wheel("p", binaries=binaries)).linker.objects) == [f"{SITE}p/libQt5Core.so.5"]


def test_file_of_two_wheels_is_that_of_the_owner() -> None:
    wheels = [wheel(name, binaries=[library("x.so", needed=[f"lib{name}.so"])]) for name in ("a", "b")]
    spec = make_spec(waivers=[waiver("file-collision", "a", path="x.so", owner="b")])
    assert make_closure(wheels, spec).links.wheel_of[f"{SITE}x.so"].facts.name == "b"


def test_search_path_leads_through_folders_that_have_no_library() -> None:
    user = extension("p/a.so", needed=["libb.so"], runpath="$ORIGIN/data/../lib")
    lib = library("p/lib/libb.so")
    assert links(wheel("p", binaries=[user, lib])).fatal
    with_folder = make_facts("p", binaries=[user, lib], files={"p/data/x.txt": ""})
    assert links(with_folder).fatal == {}


# Variants


def test_variants_that_differ_in_their_cuda_need_one_that_loads() -> None:
    binaries = [
        library(f"p/hook{tag}.so", needed=[f"libcudart.so.{major}"])
        for tag, major in (("", 12), ("_cu12", 12), ("_cu13", 13))
    ]
    found = links(*torch_stack(), wheel("p", binaries=binaries))
    (variants,) = found.variants
    assert [path.removeprefix(SITE) for path in variants.fitting] == ["p/hook_cu13.so"]
    assert (found.fatal, found.optional) == ({}, {})


def test_variants_with_numbers_of_which_none_loads_may_be_helped_by_the_host() -> None:
    binaries = [library(f"p/libcore{number}.so", needed=["libc10.so", f"libavutil.so.{number}"]) for number in (56, 57)]
    found = links(*torch_stack(), wheel("p", binaries=binaries))
    assert [(group.fitting, group.host_can_help) for group in found.variants] == [((), True)]
    assert found.fatal == {}


def test_numbers_excuse_nothing_where_no_object_loads_and_no_host_helps() -> None:
    binaries = [library(f"p/libk_sm{number}.so", needed=["libc10.so"], undefined=[CHECK_OLD]) for number in (90, 100)]
    found = links(*torch_stack(), wheel("p", binaries=binaries))
    assert (found.variants, len(found.fatal["p"].unbound)) == ((), 2)


def test_extensions_are_no_variants_by_their_numbers() -> None:
    binaries = [extension("p/a1.so", undefined=["nowhere"]), extension("p/a2.so")]
    assert [each.reference.name for each in links(wheel("p", binaries=binaries)).fatal["p"].unbound] == ["nowhere"]


def test_tag_of_cuda_makes_variants_of_extensions() -> None:
    binaries = [extension(f"p/cu{major}/a.so", needed=[f"libcudart.so.{major}"]) for major in (12, 13)]
    found = links(*torch_stack(), wheel("p", binaries=binaries))
    assert (len(found.variants), found.fatal) == (1, {})
    assert found.in_variants == {f"{SITE}p/cu12/a.so"}


def test_interfaces_to_torch_are_optional_where_there_is_no_torch() -> None:
    bridges = [
        extension(f"cuda/core/{tag}/_bridge.cpython-312-x86_64-linux-gnu.so", undefined=["aoti_torch_device_type_cpu"])
        for tag in ("cu12", "cu13")
    ]
    core = wheel("cuda-core", binaries=[*bridges, extension("cuda/core/_torch.abi3.so", needed=["libtorch.so"])])
    found = links(core)
    assert (found.variants, found.fatal) == ((), {})
    assert {each.path for each in found.optional["cuda-core"].unbound} == {bridge.path for bridge in bridges}
    assert links(*torch_stack(), core).variants


def test_what_a_variant_that_does_not_load_brings_along_counts_for_nothing() -> None:
    binaries = [
        library("p/k_cu12.so", needed=["libhelp.so", "libcudart.so.12"], runpath="$ORIGIN"),
        library("p/k_cu13.so", needed=["libcudart.so.13"]),
        library("p/libhelp.so", soname="libhelp.so"),
    ]
    found = links(*torch_stack(), wheel("p", binaries=binaries))
    assert found.in_variants == {f"{SITE}p/k_cu12.so", f"{SITE}p/libhelp.so"}


# What wheels provide


@pytest.mark.parametrize(
    ("soname", "of_a_wheel"),
    [
        ("libcudart.so.12", True),
        ("libcublasLt.so.12", True),
        ("libtorch_cuda.so", True),
        ("libhelp.so.2", True),
        ("libjpeg.d246b9ea.so.8", True),
        ("libgfortran-040039e1-0352e75f.so.5.0.0", True),
        ("libnuma.so.1", False),
        ("libfabric.so.1", False),
        ("liba\nb", False),
    ],
)
def test_whose_a_missing_library_is(soname: str, of_a_wheel: bool) -> None:  # noqa: FBT001 - a column of the table
    found = links(wheel("p", binaries=[library("p/libhelp.so.1", soname="libhelp.so.1")]))
    assert found.is_of_a_wheel(soname) is of_a_wheel


def test_private_copies_are_no_version_that_others_could_use() -> None:
    copy = library("p.libs/libcudart.e8e8b82a.so.12", soname="libcudart.so.12")
    found = links(*torch_stack(), wheel("p", binaries=[copy]))
    assert [name for name, _ in found.providers("libcudart.so.11")] == ["libcudart.so.13"]


def test_libraries_of_the_host_are_listed_with_those_that_need_them() -> None:
    spec = make_spec()
    spec = replace(spec, target=replace(spec.target, libraries=("libnuma.so.1",)))
    wheels = [wheel("p", binaries=[extension("p/a.so", needed=["libnuma.so.1", "libc.so.6"])])]
    assert make_closure(wheels, spec).links.host == {
        "libc.so.6": (f"{SITE}p/a.so",),
        "libnuma.so.1": (f"{SITE}p/a.so",),
    }


def test_suffixes_are_those_of_the_interpreter() -> None:
    assert extension_suffixes("3.13", "aarch64") == (".cpython-313-aarch64-linux-gnu.so", ".abi3.so", ".so")


def test_label_of_another_file_is_not_torchs_cuda() -> None:
    odd = wheel(
        "torch",
        labels=[Label("torch/other.py", "cuda", "12.8")],
        binaries=[library("torch/lib/libc10.so", soname="libc10.so", exports=[CHECK_NEW])],
    )
    assert links(odd).fatal == {}
