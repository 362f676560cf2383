"""Small venvs, each with one thing that is wrong: which cause comes first, and what the whole answer looks like.

The answers are in `tests/data/diagnosis`, as text and as JSON; `pytest --accept` rewrites them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from envspec.binaries import Label
from envspec.diagnosis.diagnose import diagnose
from envspec.diagnosis.offers import Offer
from envspec.diagnosis.text import render
from envspec.observed import PathEntry
from tests.support.facts import make_binary
from tests.support.observations import (
    LATER_NS,
    LIBRARIES,
    PREFIX,
    SITE,
    distribution,
    failed_run,
    file,
    make_observation,
    of_facts,
    raised,
)
from tests.support.torch_stack import CHECK_NEW, CHECK_OLD, cuda_runtime, extension, kernel, library, torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envspec.diagnosis.values import Diagnosis
    from envspec.observed import Observation, ObservedDistribution
    from envspec.traced import Traced


@dataclass(frozen=True)
class Case:
    """A venv, perhaps a run in it, and what has to come first."""

    name: str
    observation: Observation
    first: str
    """`check package`; empty if there is to be no cause of severity `error`."""

    traced: Traced | None = None
    explains: str = ""
    """Of the first cause, if it counts."""

    offers: dict[str, str] = field(default_factory=dict)
    """Package -> the version that the index has of it."""

    second: str = ""
    not_causes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def diagnose(self) -> Diagnosis:
        return diagnose(self.observation, self.traced, index=Table(self.offers))


class Table:
    """An index that has one version of some packages."""

    def __init__(self, offers: dict[str, str]) -> None:
        self._offers = offers

    def best(self, name: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> Offer | None:
        version = self._offers.get(name)
        return None if version is None else Offer(version=version, proof=f"asked for {' and '.join(requirements)}")


def stack(*more: ObservedDistribution) -> tuple[ObservedDistribution, ...]:
    """torch 2.11.0 for CUDA 13.0 with its runtime, and more."""
    return (of_facts(torch(), modules=("torch",)), of_facts(cuda_runtime(), modules=("nvidia",)), *more)


def old_stack(*more: ObservedDistribution) -> tuple[ObservedDistribution, ...]:
    """torch 2.9.1 for CUDA 12.8 with its runtime, and more."""
    old = torch("2.9.1", cuda="12.8", exports=(CHECK_OLD,))
    return (of_facts(old, modules=("torch",)), of_facts(cuda_runtime(12, "12.8.90"), modules=("nvidia",)), *more)


def vision(
    version: str = "0.26.0", *, major: int = 13, label: str = "cu130", of: str = "2.11.0"
) -> ObservedDistribution:
    needed = ("libc10.so", "libtorch.so", f"libcudart.so.{major}")
    return distribution(
        "torchvision",
        version,
        requires=[f"torch=={of}"],
        binaries=[library("torchvision/_C.so", needed=needed, undefined=[CHECK_OLD if major == 12 else CHECK_NEW])],
        labels=[Label("torchvision/version.py", "__version__", f"{version}+{label}")],
        more=[
            file("torchvision/version.py", version),
            file("torchvision/extension.py"),
            file("torchvision/_meta_registrations.py"),
        ],
    )


OLD_VISION = vision("0.24.1", major=12, label="cu128", of="2.9.1")
EDITS = [
    file(f"sgl/{name}.py", "new", recorded="old", mtime_ns=LATER_NS)
    for name in ("graph", "layers", "sampler", "tree", "walk")
]
SGL = distribution(
    "sgl",
    "0.5.11",
    requires=["torch==2.11.0", "torchvision", "pybase64"],
    more=[*EDITS, file("sgl/utils.py"), file("sgl/images.py")],
)
PYBASE64 = distribution("pybase64", "1.4.3")

NO_CUDART = raised(
    "OSError",
    "libcudart.so.12: cannot open shared object file: No such file or directory",
    "torchvision/extension.py",
    importing=["sgl", "torchvision"],
)
NO_NMS = raised(
    "RuntimeError",
    "operator torchvision::nms does not exist",
    "sgl/images.py",
    "torchvision/_meta_registrations.py",
    "torch/library.py",
    importing=["sgl", "torchvision"],
)
NO_PYBASE64 = raised(
    "ModuleNotFoundError", "No module named 'pybase64'", "sgl/utils.py", name="pybase64", importing=["sgl", "sgl.utils"]
)
GUESS = raised(
    "ImportError", "cannot load images: is pybase64 missing?", "sgl/utils.py", importing=["sgl", "sgl.utils"]
)


def _plain(*distributions: ObservedDistribution, **more: object) -> Observation:
    return make_observation(*distributions, **more)  # type: ignore[arg-type]


CASES = (
    Case("empty-venv", make_observation(), ""),
    Case("whole-stack", make_observation(*stack(vision(), SGL, PYBASE64)), "", remarks=("sgl/graph.py",)),
    Case(
        "origin-without-a-run",
        make_observation(*stack(OLD_VISION, SGL, PYBASE64)),
        "cuda-major-mismatch torchvision",
        offers={"torchvision": "0.26.0"},
        remarks=("5 files that were changed",),
    ),
    Case(
        "origin-one",
        make_observation(*stack(OLD_VISION, SGL, PYBASE64)),
        "cuda-major-mismatch torchvision",
        traced=failed_run("sgl", NO_NMS, swallowed=[NO_CUDART]),
        explains="failure",
        offers={"torchvision": "0.26.0"},
        not_causes=("pybase64", "sgl", "torch"),
        remarks=("5 files that were changed",),
    ),
    Case(
        "origin-one-with-a-wrong-guess",
        make_observation(*stack(OLD_VISION, SGL, PYBASE64)),
        "cuda-major-mismatch torchvision",
        traced=failed_run("sgl", GUESS, swallowed=[NO_CUDART, NO_NMS]),
        explains="failure",
        not_causes=("pybase64",),
    ),
    Case(
        "origin-two-fails-at-torchvision",
        make_observation(*stack(OLD_VISION, SGL)),
        "cuda-major-mismatch torchvision",
        traced=failed_run("sgl", NO_NMS, swallowed=[NO_CUDART]),
        explains="failure",
        second="requires-dist pybase64",
        offers={"pybase64": "1.4.3"},
    ),
    Case(
        "origin-two-fails-at-pybase64",
        make_observation(*stack(OLD_VISION, SGL)),
        "requires-dist pybase64",
        traced=failed_run("sgl", NO_PYBASE64, swallowed=[NO_CUDART, NO_NMS]),
        explains="failure",
        second="cuda-major-mismatch torchvision",
        offers={"pybase64": "1.4.3"},
    ),
    Case(
        "torch-copied-over-an-older-one",
        make_observation(
            *old_stack(OLD_VISION)[1:],
            distribution(
                "torch",
                "2.9.1",
                facts=replace(
                    torch().binaries,
                    labels=(*torch().binaries.labels, Label("torch/version.py", "__version__", "2.11.0+cu130")),
                ),
                more=[file("torch/version.py", "new", recorded="old", mtime_ns=LATER_NS)],
                modules=("torch",),
            ),
            strays=[file("nvidia/cu13/lib/libcudart.so.13", recorded=None)],
            stray_binaries=cuda_runtime().binaries.binaries,
        ),
        "version-inside torch",
    ),
    Case(
        "kernels-for-another-cuda",
        make_observation(
            *old_stack(
                of_facts(
                    kernel("sglang-kernel", "0.4.2", needed=["libc10.so", "libcudart.so.13"], undefined=[CHECK_NEW])
                )
            )
        ),
        "cuda-major-mismatch sglang-kernel",
    ),
    Case(
        "torch-of-another-abi",
        make_observation(*stack(of_facts(kernel("fastkernel", "1.0", undefined=["_ZN5torch7Library4_defEv"])))),
        "torch-abi-mismatch fastkernel",
        traced=failed_run(
            "fastkernel",
            raised(
                "ImportError",
                f"{PREFIX}/{SITE}/fastkernel/ops.abi3.so: undefined symbol: _ZN5torch7Library4_defEv",
                "fastkernel/__init__.py",
            ),
        ),
        explains="failure",
    ),
    Case(
        "library-of-the-system",
        make_observation(*stack(of_facts(kernel("sglang-kernel", "0.4.2", needed=["libc10.so", "libnuma.so.1"])))),
        "host-library sglang-kernel",
        traced=failed_run(
            "sgl_kernel",
            raised(
                "ImportError",
                "could not load any common_ops: libnuma.so.1: cannot open shared object file",
                "sglang_kernel/__init__.py",
            ),
        ),
        explains="failure",
    ),
    Case(
        "edited-file-that-raises",
        make_observation(SGL, PYBASE64, *stack(vision())),
        "edited-file sgl",
        traced=failed_run("sgl", raised("NameError", "name 'walk' is not defined", "sgl/__init__.py", "sgl/walk.py")),
        explains="failure",
    ),
    Case(
        "edited-library",
        _plain(
            distribution(
                "fast",
                binaries=[extension("fast/_C.abi3.so")],
                more=[file("fast/_C.abi3.so", "new", recorded="old", mtime_ns=LATER_NS)],
            )
        ),
        "",
    ),
    Case(
        "missing-file",
        _plain(distribution("plain", more=[file("plain/core.py", kind="missing")])),
        "missing-file plain",
        traced=failed_run(
            "plain",
            raised("ModuleNotFoundError", "No module named 'plain.core'", "plain/__init__.py", name="plain.core"),
        ),
        explains="failure",
    ),
    Case("missing-tests-only", _plain(distribution("plain", more=[file("plain/tests/test_a.py", kind="missing")])), ""),
    Case(
        "lost-package",
        _plain(distribution("pybase64", "1.4.3", files=[file("pybase64/__init__.py", kind="missing")])),
        "lost-package pybase64",
        traced=failed_run("pybase64", raised("ModuleNotFoundError", "No module named 'pybase64'", name="pybase64")),
        explains="failure",
        offers={"pybase64": "1.4.3"},
    ),
    Case(
        "text-in-place-of-a-library",
        _plain(
            distribution("links", binaries=[extension("links/_a.abi3.so")], more=[file("links/libx.so", "libx.so.1")]),
            texts={f"{SITE}/links/libx.so": "libx.so.1"},
        ),
        "not-a-library links",
        traced=failed_run(
            "links", raised("OSError", f"{PREFIX}/{SITE}/links/libx.so: file too short", "links/__init__.py")
        ),
        explains="failure",
    ),
    Case(
        "foreign-machine",
        make_observation(*stack(distribution("k", binaries=[extension("k/ops.abi3.so", machine="aarch64")]))),
        "foreign-machine k",
    ),
    Case(
        "wrong-record",
        _plain(
            distribution(
                "wrong",
                more=[file("wrong/a.py", "x", recorded="y"), file("wrong/b.py", mtime_ns=1_700_000_000_500_000_000)],
            )
        ),
        "",
    ),
    Case(
        "poisoned-by-an-edit-in-place",
        _plain(distribution("shared", more=[file("shared/a.py", "new", recorded="old", mtime_ns=LATER_NS, links=3)])),
        "",
    ),
    Case(
        "two-packages-for-one-folder",
        _plain(
            distribution(
                "opencv-python",
                "4.12",
                files=[file("cv2/__init__.py", "a", recorded="a"), file("cv2/version.py", "b", recorded="a")],
            ),
            distribution(
                "opencv-python-headless",
                "4.12",
                files=[file("cv2/__init__.py", "a", recorded="b"), file("cv2/version.py", "b", recorded="b")],
            ),
        ),
        "owned-twice opencv-python-headless",
    ),
    Case(
        "one-generic-file-of-two",
        _plain(
            distribution("flashinfer-python", files=[file("build_backend.py", "a", recorded="a")]),
            distribution("torch-c-dlpack-ext", files=[file("build_backend.py", "a", recorded="b")]),
        ),
        "",
    ),
    Case(
        "two-versions",
        _plain(
            distribution("torchvision", "0.24.1", files=[file("torchvision/__init__.py", "a", recorded="b")]),
            distribution("torchvision", "0.26.0", files=[file("torchvision/__init__.py", "a", recorded="a")]),
        ),
        "two-versions torchvision",
    ),
    Case("local-version-in-the-folder", _plain(distribution("kernels", "1.0", folder_version="1.0+cu130")), ""),
    Case(
        "release-in-the-folder",
        _plain(distribution("kernels", "1.0", folder_version="2.0")),
        "metadata-version kernels",
    ),
    Case(
        "hand-copied-module",
        _plain(
            distribution("sgl", requires=["sglang-kernel"]),
            strays=[
                file("sgl_kernel/__init__.py", recorded=None),
                file("sgl_kernel/ops.abi3.so", recorded=None, size=4096),
            ],
            stray_binaries=[extension("sgl_kernel/ops.abi3.so")],
        ),
        "",
    ),
    Case("start-up-hook-of-nobody", _plain(stray_hooks={"zz.pth": ["import os; os.environ['A'] = '1'"]}), ""),
    Case(
        "start-up-hook-that-fetches",
        _plain(stray_hooks={"zz.pth": ["import urllib.request as u; exec(u.urlopen('x').read())"]}),
        "stray-code",
    ),
    Case(
        "start-up-hook-of-setuptools",
        _plain(
            distribution(
                "setuptools",
                hooks={
                    "distutils-precedence.pth": [
                        (
                            "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
                            "enabled and __import__('_distutils_hack').add_shim();"
                        )
                    ]
                },
                more=[file("_distutils_hack/__init__.py")],
            )
        ),
        "",
    ),
    Case(
        "sitecustomize",
        _plain(distribution("hooked", hooks={"sitecustomize.py": ["the module sitecustomize"]})),
        "startup-hook hooked",
    ),
    Case(
        "a-wheel-over-pyvenv",
        _plain(
            distribution("dd", more=[file("pyvenv.cfg", kind="link"), file("bin/activate", kind="link")]),
            python={"problems": ("`pyvenv.cfg` has no `home`",)},
        ),
        "reserved-path dd",
    ),
    Case(
        "interpreter-gone",
        _plain(distribution("plain"), python={"executable": "", "link": "/opt/python/bin/python3.12"}),
        "interpreter-gone",
    ),
    Case(
        "interpreter-of-another-minor",
        _plain(distribution("plain"), python={"executable": "/usr/bin/python3.13", "version": "3.13.1"}),
        "interpreter-minor",
    ),
    Case(
        "moved",
        _plain(
            distribution("served"),
            texts={
                "bin/activate": "VIRTUAL_ENV='/srv/old'",
                "bin/serve": "#!/srv/old/bin/python3\n",
                "pyvenv.cfg": "home = /usr/bin\ncommand = /usr/bin/python3 -m venv /srv/old\n",
            },
        ),
        "moved-venv",
    ),
    Case(
        "not-moved",
        _plain(
            distribution("served"),
            texts={"bin/activate": f"VIRTUAL_ENV={PREFIX}", "bin/serve": f"#!{PREFIX}/bin/python\n"},
        ),
        "",
    ),
    Case(
        "python-path-over-the-standard-library",
        _plain(
            distribution("plain"),
            path=[PathEntry(path="/jobs", source="PYTHONPATH", exists=True, inside=False, modules=("plain", "random"))],
        ),
        "shadowed-module",
    ),
    Case(
        "script-beside-a-module-of-its-own-name",
        _plain(distribution("torch", "2.11.0")),
        "shadowed-module torch",
        traced=failed_run(
            "/jobs/torch.py",
            raised("AttributeError", "partially initialized module 'torch' has no attribute 'zeros'", "/jobs/torch.py"),
            modules=(("torch", "/jobs/torch.py"),),
        ),
        explains="failure",
    ),
    Case("python-home", _plain(distribution("plain"), environ={"PYTHONHOME": "/opt/python"}), "python-home"),
    Case(
        "library-path",
        make_observation(
            *stack(),
            environ={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
            libraries={**LIBRARIES, "libcudart.so.13": "/usr/local/cuda/lib64/libcudart.so.13"},
        ),
        "",
    ),
    Case(
        "library-path-in-a-run",
        make_observation(
            *stack(of_facts(kernel(needed=["libc10.so", "libcudart.so.13"]))),
            environ={"LD_LIBRARY_PATH": "/decoy"},
            libraries={**LIBRARIES, "libcudart.so.13": "/decoy/libcudart.so.13"},
        ),
        "library-path nvidia-cuda-runtime",
        traced=failed_run(
            "fastkernel",
            raised("ImportError", "/decoy/libcudart.so.13: undefined symbol: cudaMalloc", "fastkernel/__init__.py"),
        ),
        explains="failure",
    ),
    Case("driver-too-old", make_observation(*stack(), host={"driver": "570.86.10"}), "driver-too-old torch"),
    Case(
        "lock-step",
        _plain(distribution("flashinfer-python", "0.6.13"), distribution("flashinfer-cubin", "0.6.12")),
        "lock-step flashinfer-python",
        offers={"flashinfer-cubin": "0.6.13"},
    ),
    Case(
        "drift-of-what-envspec-built",
        _plain(
            distribution("sgl", more=EDITS),
            locked={"env": "abc", "name": "ddtree", "site": "0", "store": "/opt/envspec"},
        ),
        "drift sgl",
    ),
    Case(
        "mismatch-in-what-envspec-built",
        make_observation(
            *stack(OLD_VISION, SGL, PYBASE64),
            locked={"env": "abc", "name": "ddtree", "site": "0", "store": "/opt/envspec"},
        ),
        "cuda-major-mismatch torchvision",
        traced=failed_run("sgl", NO_NMS, swallowed=[NO_CUDART]),
        explains="failure",
        remarks=("is not what envspec built",),
    ),
    Case(
        "name-that-is-not-there",
        _plain(distribution("transformers", "5.6.0", requires=["kernels"]), distribution("kernels", "0.17.2")),
        "name-missing kernels",
        traced=failed_run(
            "transformers",
            raised(
                "ImportError",
                "cannot import name 'LayerRepository' from 'kernels' (x)",
                "transformers/__init__.py",
                importing=["transformers"],
            ),
        ),
        explains="failure",
    ),
    Case(
        "module-that-no-requirement-names",
        _plain(distribution("sgl", "0.5.11")),
        "module-missing pyyaml",
        traced=failed_run(
            "sgl",
            raised("ModuleNotFoundError", "No module named 'yaml'", "sgl/__init__.py", name="yaml", importing=["sgl"]),
        ),
        explains="failure",
        offers={"pyyaml": "6.0.3"},
    ),
    Case(
        "files-of-another-release-copied-over",
        make_observation(
            *stack(
                replace(
                    OLD_VISION,
                    version="0.26.0",
                    folder=f"{SITE}/torchvision-0.26.0.dist-info",
                    folder_version="0.26.0",
                    requires_dist=("torch==2.11.0",),
                    files=tuple(
                        each._replace(recorded="0" * 64, mtime_ns=LATER_NS) if "/torchvision/" in each.path else each
                        for each in OLD_VISION.files
                    ),
                )
            )
        ),
        "cuda-major-mismatch torchvision",
        offers={"torchvision": "0.26.0"},
    ),
    Case(
        "checkout-that-is-gone",
        make_observation(
            distribution(
                "ourcode", direct_url="editable file:///srv/ourcode", files=[file("__editable__.ourcode.pth")]
            ),
            path=[PathEntry(path="/srv/ourcode", source="pth __editable__.ourcode.pth", exists=False, inside=False)],
        ),
        "path-gone ourcode",
        traced=failed_run("ourcode", raised("ModuleNotFoundError", "No module named 'ourcode'", name="ourcode")),
        explains="failure",
    ),
    Case(
        "left-of-an-interrupted-installation",
        make_observation(distribution("~orch", "2.9.1")),
        "",
        remarks=("interrupted installation",),
    ),
    Case(
        "bytecode-that-was-cut-off",
        make_observation(distribution("plain")),
        "bad-bytecode plain",
        traced=failed_run("plain", raised("EOFError", "marshal data too short", importing=["plain"])),
        explains="failure",
    ),
    Case(
        "metadata-that-is-not-there",
        make_observation(distribution("sgl")),
        "module-missing kernels-data",
        traced=failed_run(
            "sgl",
            raised(
                "importlib.metadata.PackageNotFoundError",
                "No package metadata was found for kernels-data",
                "sgl/__init__.py",
            ),
        ),
        explains="failure",
    ),
    Case(
        "no-code-for-the-gpu-that-is-used",
        make_observation(
            *stack(
                distribution(
                    "sglang-kernel",
                    binaries=[
                        library(
                            "sgl_kernel/ops.abi3.so", needed=["libtorch.so"], gpu={"sm_120": 3}, exports=["PyInit_ops"]
                        )
                    ],
                )
            ),
            host={"gpus": [{"name": "NVIDIA H200", "compute": "9.0"}]},
        ),
        "gpu-code-missing sglang-kernel",
        traced=failed_run(
            "/jobs/app.py",
            raised(
                "RuntimeError", "CUDA error: no kernel image is available for execution on the device", "/jobs/app.py"
            ),
        ),
        explains="failure",
    ),
    Case(
        "requirement-that-the-system-has",
        make_observation(
            distribution("sgl", requires=["pyyaml"]),
            python={"system_site_packages": True},
            path=[
                PathEntry(
                    path="/usr/lib/python3/dist-packages", source="system", exists=True, inside=False, modules=("yaml",)
                )
            ],
        ),
        "",
    ),
    Case(
        "links-out-of-the-venv",
        make_observation(
            distribution(
                "linked",
                "",
                folder_version="1.0",
                files=[file("linked/__init__.py", kind="link"), file("linked-1.0.dist-info/METADATA", kind="link")],
                problems=("METADATA is missing",),
            )
        ),
        "",
        remarks=("which are not followed",),
    ),
    Case(
        "fault-of-the-program",
        make_observation(*stack(vision(), PYBASE64)),
        "run-failed",
        traced=failed_run("/jobs/app.py", raised("ValueError", "unknown backend `fa9`", "/jobs/app.py")),
        explains="",
    ),
    Case(
        "crash",
        make_observation(*stack(of_facts(kernel()))),
        "run-failed fastkernel",
        traced=failed_run(
            "fastkernel",
            ending="crash",
            detail="SIGSEGV",
            messages=[
                "Fatal Python error: Segmentation fault",
                f'  File "{PREFIX}/{SITE}/fastkernel/__init__.py", line 3 in <module>',
            ],
        ),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_cause_is_the_right_one(case: Case) -> None:
    diagnosis = case.diagnose()
    found = [
        f"{cause.check} {''.join(cause.packages[:1])}".strip()
        for cause in diagnosis.causes
        if cause.severity == "error"
    ]
    if case.first:
        assert found[:1] == [case.first]
        assert not diagnosis.healthy
    else:
        assert found == []
        assert diagnosis.healthy
    if case.explains:
        assert diagnosis.causes[0].explains == case.explains
    if case.second:
        assert found[1:2] == [case.second]
    assert set(case.not_causes) <= {each.package for each in diagnosis.not_causes}
    for text in case.remarks:
        assert any(text in remark for remark in diagnosis.remarks)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answer_is_as_reviewed(case: Case, golden: Callable[[str, str], None]) -> None:
    diagnosis = case.diagnose()
    golden(f"diagnosis/{case.name}.txt", "\n".join(render(diagnosis)) + "\n")
    record = {
        "causes": [cause.to_json(rank) for rank, cause in enumerate(diagnosis.causes, 1)],
        "not_causes": [each.to_json() for each in diagnosis.not_causes],
        "remarks": list(diagnosis.remarks),
    }
    golden(f"diagnosis/{case.name}.json", json.dumps(record, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fix_speaks_of_the_venv_and_not_of_a_spec(case: Case) -> None:
    for cause in case.diagnose().causes:
        assert cause.fix is not None
        assert not any(
            word in cause.fix.line() for word in ("waive", "[target]", "[packages]", "[cuda]", "the spec", "lock the")
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_whole_is_to_be_installed(case: Case) -> None:
    diagnosis = case.diagnose()
    whole = {each.package for each in diagnosis.not_causes}
    for cause in diagnosis.causes:
        command = cause.fix.command if cause.fix else ""
        words = {word.partition("==")[0] for word in command.split()}
        assert not whole & words
        if case.observation.locked:
            assert "pip install" not in command


def test_test_binary_has_the_site_of_the_observation() -> None:
    assert make_binary("a/b.so").path == f"{SITE}/a/b.so"
