"""Kinds of faults that a recipe cannot make everywhere, and what must not be taken for one: judged over observations that are written here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from envspec.binaries import Label
from envspec.diagnosis.diagnose import diagnose
from envspec.diagnosis.offers import Offer
from envspec.observed import PathEntry
from envspec.traced import Frame
from tests.support.facts import waiver
from tests.support.observations import PREFIX, SITE, distribution, failed_run, file, make_observation, of_facts, raised
from tests.support.torch_stack import cuda_runtime, library, torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnosis.values import Diagnosis


def said(diagnosis: Diagnosis) -> list[str]:
    """Check, severity and first package of each cause."""
    return [f"{each.check} {each.severity} {' '.join(each.packages[:1])}".strip() for each in diagnosis.causes]


class Asked:
    """An index that has one version of everything."""

    def best(self, name: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> Offer | None:
        return Offer(version="9.9", proof=f"asked for {' and '.join(requirements)}")


CLOSED = distribution(
    "closed", more=[file("closed/core.py", kind="unreadable"), file("closed/notes.txt", kind="unreadable")]
)


def test_code_that_this_user_may_not_read_is_a_cause_without_a_run() -> None:
    found = diagnose(make_observation(CLOSED)).causes[0]
    assert (found.check, found.severity, found.packages) == ("unreadable-file", "error", ("closed",))
    assert "2 files of closed 1.0 cannot be read by this user: `closed/core.py` and `closed/notes.txt`" in found.message
    assert found.fix is not None
    assert found.fix.command.startswith("chmod -R a+rX ")


def test_refused_file_of_a_run_is_the_one_that_cannot_be_read() -> None:
    path = f"{PREFIX}/{SITE}/closed/core.py"
    run = failed_run(
        "closed", raised("PermissionError", f"[Errno 13] Permission denied: '{path}'", "closed/__init__.py", path=path)
    )
    found = diagnose(make_observation(CLOSED), run).causes[0]
    assert (found.check, found.explains) == ("unreadable-file", "failure")


@pytest.mark.parametrize(
    ("value", "gpus", "seen"),
    [
        ("", 8, "no GPU"),
        ("-1", 8, "no GPU"),
        ("8", 8, "no GPU"),
        ("0,1,9", 8, "2 GPUs"),
        ("0", 1, None),
        ("0,1", 2, None),
        ("GPU-8f2b", 2, None),
    ],
)
def test_devices_that_a_variable_hides_are_counted(value: str, gpus: int, seen: str | None) -> None:
    host = {"gpus": [{"name": "NVIDIA H100", "compute": "9.0"}] * gpus}
    observation = make_observation(distribution("app"), host=host, environ={"CUDA_VISIBLE_DEVICES": value})
    run = failed_run("app", raised("RuntimeError", "No CUDA GPUs are available", "app/__init__.py"))
    first = diagnose(observation, run).causes[0]
    assert (first.check == "devices-hidden") == (seen is not None)
    assert seen is None or f": {seen} " in first.message
    assert diagnose(observation).healthy


def test_hidden_device_is_no_cause_of_another_failure() -> None:
    observation = make_observation(
        distribution("app"), host={"gpus": [{"name": "x", "compute": "9.0"}]}, environ={"CUDA_VISIBLE_DEVICES": "7"}
    )
    assert said(diagnose(observation, failed_run("app", raised("ValueError", "no such model", "app/__init__.py")))) == [
        "run-failed error app"
    ]


OLD_RUNTIME = (
    "Detected incompatible Protobuf Gencode/Runtime versions when loading wire.proto: gencode 6.31.1 runtime 5.29.5."
)
OLD_CODE = (
    "Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, your generated code is out of date"
)


@pytest.mark.parametrize(("message", "first"), [(OLD_RUNTIME, "protobuf"), (OLD_CODE, "tracewire")])
def test_generated_code_that_protobuf_does_not_read_is_named_with_its_owner(message: str, first: str) -> None:
    protobuf = distribution(
        "protobuf", "5.29.5", files=[file("google/protobuf/runtime_version.py")], modules=["google"]
    )
    user = distribution("tracewire", "1.36", more=[file("tracewire/wire_pb2.py")], requires=["protobuf"])
    frames = ("tracewire/__init__.py", "tracewire/wire_pb2.py", "google/protobuf/runtime_version.py")
    run = failed_run("tracewire", raised("google.protobuf.runtime_version.VersionError", message, *frames))
    found = diagnose(make_observation(protobuf, user), run, index=Asked()).causes
    assert [(each.check, each.packages[0]) for each in found] == [("generated-code", first)]
    assert found[0].fix is not None
    assert "anew over" not in found[0].fix.text


def _refused(message: str, kind: str = "AttributeError") -> Diagnosis:
    numpy = distribution("numpy", "2.3.5")
    user = distribution("oldsci", "0.3", requires=["numpy"])
    at = [
        Frame(f"{PREFIX}/{SITE}/oldsci/__init__.py", 2, "<module>", "oldsci"),
        Frame(f"{PREFIX}/{SITE}/numpy/__init__.py", 400, "__getattr__", "numpy"),
    ]
    one = replace(raised(kind, message), frames=tuple(at))
    return diagnose(make_observation(numpy, user), failed_run("oldsci", one), index=Asked())


def test_name_that_a_package_refuses_by_itself_is_missing_there() -> None:
    found = _refused("`np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.").causes
    assert [(each.check, each.packages) for each in found] == [("name-missing", ("numpy", "oldsci"))]
    assert found[0].message == "oldsci 0.3 takes `np.float_` from numpy 2.3.5, which no longer has it"
    assert found[0].fix is not None
    assert found[0].fix.command == ""


def test_wrong_call_comes_of_a_requirement_that_is_not_met() -> None:
    web = distribution("websy", "0.28")
    user = distribution("chatty", "1.50", requires=["websy<0.28"])
    call = raised("TypeError", "Client.__init__() got an unexpected keyword argument 'proxies'", "chatty/__init__.py")
    found = diagnose(make_observation(web, user), failed_run("chatty", call)).causes
    assert [each.check for each in found] == ["requires-dist"]
    assert found[0].explains == "failure"
    alone = diagnose(make_observation(web, replace(user, requires_dist=("websy",))), failed_run("chatty", call)).causes
    assert [(each.check, each.packages) for each in alone] == [("name-missing", ("chatty",))]
    assert "it requires websy 0.28" in alone[0].evidence


def test_leftover_of_an_upgrade_that_went_on_is_a_remark() -> None:
    old = replace(distribution("toolkit", "1.4"), folder=f"{SITE}/~oolkit-1.4.dist-info", files=())
    found = diagnose(
        make_observation(old, distribution("toolkit", "2.1"), distribution("user", requires=["toolkit>=2"]))
    )
    assert found.causes == ()
    assert found.remarks == ("`~oolkit-1.4.dist-info` is left of an interrupted installation",)


def test_leftover_of_a_package_that_others_miss_is_the_cause_with_all_that_follows() -> None:
    old = replace(distribution("toolkit", "1.4"), folder=f"{SITE}/~oolkit-1.4.dist-info")
    user = distribution("user", requires=["toolkit>=2"])
    found = diagnose(make_observation(old, user)).causes
    assert [(each.check, each.severity, each.packages[0]) for each in found] == [("leftover", "error", "toolkit")]
    assert any("toolkit has 1 file in the venv and no metadata" in line for line in found[0].follows)


def _elsewhere(version: str, source: str = "system") -> PathEntry:
    return PathEntry(
        path="/usr/lib/python3/dist-packages", source=source, exists=True, inside=False, modules=("toolkit",),
        distributions=(("toolkit", version),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "found"), [("2.1", []), ("1.4", ["requires-dist error toolkit"]), ("unreadable!", [])]
)
def test_requirement_that_another_folder_meets_is_met(version: str, found: list[str]) -> None:
    user = distribution("user", requires=["toolkit>=2"])
    assert said(diagnose(make_observation(user, path=[_elsewhere(version)]))) == found


def test_egg_of_the_old_way_meets_a_requirement() -> None:
    egg = PathEntry(
        path=f"{PREFIX}/{SITE}/toolkit-2.1-py3.12.egg", source="pth easy-install.pth", exists=True, inside=True
    )
    user = distribution("user", requires=["toolkit>=2"])
    assert said(diagnose(make_observation(user, path=[egg]))) == []


@pytest.mark.parametrize(
    ("label", "asked", "met"),
    [("2.11.0+cu130", "torch==2.11.0+cu130", True), ("2.11.0+cu128", "torch==2.11.0+cu130", False)],
)
def test_label_that_only_the_files_have_meets_a_pin_on_it(label: str, asked: str, met: bool) -> None:  # noqa: FBT001 - a row
    built = distribution(
        "torch",
        "2.11.0",
        labels=[Label("torch/version.py", "__version__", label)],
        more=[file("torch/version.py", label)],
    )
    user = distribution("pinned", requires=[asked])
    assert ("requires-dist error pinned" not in said(diagnose(make_observation(built, user)))) == met


def test_three_edits_of_four_files_are_no_other_release_as_long_as_nothing_is_missing() -> None:
    edits = [file(f"own/part{number}.py", "new", recorded="old") for number in range(3)]
    assert diagnose(make_observation(distribution("own", more=edits))).healthy
    gone = [*edits, file("own/gone.py", kind="missing")]
    found = diagnose(make_observation(distribution("own", more=gone))).causes
    assert [(each.check, each.packages) for each in found] == [("version-inside", ("own",))]


def test_torch_without_cuda_explains_what_kernels_miss() -> None:
    cpu = of_facts(torch(exports=()), modules=("torch",))
    labels = (Label("torch/version.py", "__version__", "2.11.0+cpu"),)
    cpu = replace(cpu, binaries=replace(cpu.binaries, labels=labels, binaries=tuple(
        replace(each, needed=tuple(name for name in each.needed if "cudart" not in name)) for each in cpu.binaries.binaries)))  # fmt: skip
    kernel = distribution(
        "sgl-kernel", "0.3.21", modules=["sgl_kernel"],
        binaries=[library("sgl_kernel/common_ops.abi3.so", needed=("libc10_cuda.so", "libtorch.so"))],
    )  # fmt: skip
    found = diagnose(make_observation(cpu, kernel), index=Asked()).causes
    assert [(each.check, each.packages) for each in found] == [("cpu-build", ("torch", "sgl-kernel"))]
    assert found[0].fix is not None
    assert "--torch-backend auto" in found[0].fix.command


def test_torchcodec_without_cuda_is_as_it_is_published() -> None:
    codec = distribution("torchcodec", "0.11.1", labels=[Label("torchcodec/version.py", "__version__", "0.11.1+cpu")])
    stack = (of_facts(torch(), modules=("torch",)), of_facts(cuda_runtime(), modules=("nvidia",)))
    assert said(diagnose(make_observation(*stack, codec))) == []


def test_project_is_not_named_by_the_name_of_a_module_alone() -> None:
    lost = raised("ModuleNotFoundError", "No module named 'helpers'", "app/__init__.py", name="helpers")
    alone = diagnose(make_observation(distribution("app")), failed_run("app", lost), index=Asked()).causes[0]
    assert alone.fix is not None
    assert alone.fix.command == ""
    asked = distribution("app", requires=['helpers; extra == "all"'], provides_extra=("all",))
    told = diagnose(make_observation(asked), failed_run("app", lost), index=Asked()).causes[0]
    assert told.fix is not None
    assert told.fix.command.endswith(" helpers==9.9")


def test_copied_module_of_nobody_is_not_said_to_be_a_project() -> None:
    found = diagnose(
        make_observation(strays=[file("helpers/__init__.py", recorded=None), file("helpers/a.py", recorded=None)])
    )
    assert found.remarks == ("`helpers` (2 files) belongs to no package; whose it is, no metadata says",)


def test_package_of_another_venv_of_the_same_name_is_not_taken_for_this_ones() -> None:
    other = f"/srv/old/{PREFIX.rpartition('/')[2]}/{SITE}"
    entry = PathEntry(
        path=other,
        source="pth base.pth",
        exists=True,
        inside=False,
        modules=("toolkit",),
        distributions=(("toolkit", "1.4"),),
    )
    run = failed_run(
        "toolkit", raised("ValueError", "no such table", f"{other}/toolkit/__init__.py", importing=["toolkit"])
    )
    found = diagnose(make_observation(distribution("user"), path=[entry]), run).causes[0]
    assert (found.check, found.packages, found.explains) == ("outside-package", ("toolkit",), "failure")
    assert f"took it from `{other}`, which `base.pth` adds" in found.message


def test_what_the_lock_waives_is_no_cause() -> None:
    needy = distribution("user", requires=["tensor-table>=2"])
    locked = {"env": "a" * 32, "site": "b" * 64, "name": "served", "store": "/opt/envspec"}
    observation = make_observation(needy, locked=locked)
    assert said(diagnose(observation)) == ["requires-dist error tensor-table"]
    assert diagnose(observation, waivers=[waiver("requires-dist", "user")]).causes == ()


@pytest.mark.parametrize(
    ("kind", "message", "check"),
    [
        ("OSError", "[Errno 28] No space left on device: '/var/cache/x'", "machine-limit"),
        (
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB",
            "machine-limit",
        ),
        ("MemoryError", "", "machine-limit"),
        (
            "ImportError",
            f"{PREFIX}/{SITE}/app.libs/libgomp-1a.so.1.0.0: cannot allocate memory in static TLS block",
            "static-tls",
        ),
        (
            "ImportError",
            f"{PREFIX}/{SITE}/app/_c.so: failed to map segment from shared object: Operation not permitted",
            "noexec",
        ),
        ("OSError", "/var/u/.cache/torch_extensions/py312_cu128/f/f.so: undefined symbol: _ZN3c10", "stale-cache"),
        ("RuntimeError", "Failed to find C compiler. Please specify via CC environment variable", "compiler-absent"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'gcc'", "compiler-absent"),
        (
            "CalledProcessError",
            "main.c:4:10: fatal error: Python.h: No such file or directory\ncompilation terminated.",
            "compiler-absent",
        ),
        (
            "RuntimeError",
            "Error 803: system has unsupported display driver / cuda driver combination",
            "driver-mismatch",
        ),
        ("OSError", "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "cuda-home"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/opt/models/config.json'", "run-failed"),
        ("ValueError", "no such attention backend", "run-failed"),
    ],
)
def test_what_a_machine_refuses_is_told_by_its_own_words(kind: str, message: str, check: str) -> None:
    run = failed_run("app", raised(kind, message, "app/__init__.py"))
    found = diagnose(make_observation(distribution("app")), run).causes
    assert [each.check for each in found] == [check]
    assert found[0].explains == ("failure" if check != "run-failed" else "nothing yet")
    assert found[0].fix is not None
    assert "anew" not in found[0].fix.text or check == "stale-cache"


def test_driver_that_was_replaced_is_a_cause_without_a_run() -> None:
    note = "nvidia-smi ended with rc 18: Failed to initialize NVML: Driver/library version mismatch"
    observation = replace(make_observation(distribution("app")), notes=(note,))
    assert said(diagnose(observation)) == ["driver-mismatch error"]


def test_bytecode_beside_a_source_that_was_deleted_is_the_module() -> None:
    slim = distribution("slim", files=[file("slim/__init__.py", kind="missing"), file("slim/core.py", kind="missing")])
    strays = [file("slim/__init__.pyc", recorded=None), file("slim/core.pyc", recorded=None)]
    assert diagnose(make_observation(slim, strays=strays)).healthy
    assert not diagnose(make_observation(slim, strays=strays[:1])).healthy


def test_installation_that_did_not_end_has_no_record() -> None:
    half = distribution("toolkit", "2.1", files=[], modules=["toolkit"], problems=("RECORD is missing",))
    lost = raised("ModuleNotFoundError", "No module named 'toolkit.core'", "toolkit/__init__.py", name="toolkit.core")
    user = distribution("worker", requires=["toolkit>=2"])
    run = failed_run("worker", replace(lost, frames=(*raised("x", "", "worker/__init__.py").frames, *lost.frames)))
    observation = make_observation(half, user, strays=[file("toolkit/__init__.py", recorded=None)])
    found = diagnose(observation, run, index=Asked()).causes[0]
    assert (found.check, found.packages[0]) == ("module-missing", "toolkit")
    assert any("the installation may not have ended" in line for line in found.evidence)
    assert found.fix is not None
    assert "--reinstall" in found.fix.command


def test_pth_that_python_cannot_process_explains_the_module_that_it_would_have_brought() -> None:
    ours = distribution("ours", files=[file("ours.pth")], modules=["ours"], direct_url="editable file:///srv/ours")
    lost = raised("ModuleNotFoundError", "No module named 'ours'", name="ours")
    run = failed_run("ours", lost, messages=[f"Error processing line 1 of {PREFIX}/{SITE}/ours.pth:"])
    found = diagnose(make_observation(ours), run).causes
    assert any(each.check == "startup-hook" and "`ours.pth` cannot be processed" in each.message for each in found)


def test_module_of_the_standard_library_that_nobody_of_the_venv_asks_for_is_told_beside_other_causes() -> None:
    lost = raised("ModuleNotFoundError", "No module named 'distutils'", name="distutils")
    found = diagnose(
        make_observation(distribution("torchvision", requires=["torch==2.9.1"])), failed_run("", lost)
    ).causes
    assert {each.check for each in found} == {"module-missing", "requires-dist"}
    assert found[0].fix is not None
    assert found[0].fix.text.startswith("use code that does without `distutils`")
