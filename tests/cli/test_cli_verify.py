"""Probes gate activation, and receipts: with fake probes, the command line, and real ssh-keygen."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.store import Store
from builder.host_receipts import keep_receipt, seen_receipt
from envspec.receipt import receipt_of
from tests.support.fake_probes import PASSES, repository_with, script, write_probes
from tests.support.projects import Project, copy_tree, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NMS = 'say("roi")\nsay("nms", "fail", "operator torchvision::nms does not exist")\nend()'
CRASH = 'say("one")\nimport ctypes\nctypes.string_at(0)'
PROBES = {
    "good.py": script("good", PASSES),
    "gpu.py": script("gpu", PASSES, gpus=1, per="gpu"),
    "kernels.py": script(
        "kernels", 'say("add-sm90", "compiled", registers={"value": 32})\nend()', gpus=1, compiles=True
    ),
    "switch.py": script("switch", PASSES, modules=["beta"]),
    "engine.py": script("engine", PASSES, set="full"),
    "kit.py": b'"""Shared."""\n',
}
BETA = {"beta/__init__.py": "VALUE = 1\n"}


def spec(project: Project, *kernels: str, imports: tuple[str, ...] = ("beta",)) -> None:
    named = f"imports = {json.dumps(list(imports))}\nkernels = {json.dumps(list(kernels))}"
    cuda = 'toolkit = "13.0"\ncompute = ["9.0", "12.0"]'
    project.write_spec({"beta": "*"}, more=f"[verify]\n{named}\n[cuda]\n{cuda}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tmp_path_factory.mktemp("repository"), PROBES)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("probed") / "project"
    with serve(folder) as project:
        project.environment = {"PYTHONPATH": str(repository)}
        project.wheel("beta", "1.0", BETA)
        spec(project, "good", "gpu", "kernels", "switch")
        project.good("lock")
        project.good("build")
    return folder


@pytest.fixture
def probed(made_once: Path, repository: Path, tmp_path: Path) -> Iterator[Project]:
    """A project whose environment is active, proven by probes that can be exchanged."""
    copy_tree(made_once, tmp_path / "project")
    write_probes(repository, PROBES)
    with serve(tmp_path / "project") as project:
        project.environment = {"PYTHONPATH": str(repository)}
        yield project


def break_probe(repository: Path, body: str, name: str = "switch", **changes: Any) -> None:
    write_probes(repository, {**PROBES, f"{name}.py": script(name, body, **changes)})


def newer(project: Project) -> None:
    """Another environment is locked than the active one."""
    project.wheel("beta", "2.0", {"beta/__init__.py": "VALUE = 2\n"})
    project.good("lock", "--upgrade", "beta")


def receipts(project: Project, kind: str = "build") -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(project.store.glob(f"receipts/*/*Z-{kind}.json"))]


def probes_of(host: dict[str, Any]) -> dict[str, str]:
    return {probe["id"]: probe["result"] for probe in host["probes"]}


# The gate.


def test_build_runs_the_quick_probes_and_says_what_it_skipped(probed: Project) -> None:
    (receipt,) = receipts(probed)
    assert {row["id"]: row["result"] for row in receipt["probes"]} == {
        "imports": "pass",
        "good": "pass",
        "gpu": "skip",
        "kernels": "skip",
        "switch": "pass",
    }
    assert [run["reason"] for run in receipt["runs"] if run["result"] == "skip"] == ["no GPU", "no GPU"]
    assert (receipt["verified"], receipt["set"], receipt["tool"]) == (True, "quick", "envspec 0.1.0")
    assert receipt["host"]["gpus"] == []


def test_a_failing_probe_leaves_the_old_generation_live(
    probed: Project, repository: Path, golden: Callable[[str, str], None]
) -> None:
    before = probed.active()
    newer(probed)
    break_probe(repository, NMS, modules=["beta"])
    ran = probed.run("build")
    assert ran.code == 1
    assert probed.active() == before
    assert len(probed.environments()) == 2
    failed = next(receipt for receipt in receipts(probed) if not receipt["verified"])
    text = ran.stderr.replace(failed["env"], "<env>").replace(str(failed["seed"]), "<seed>")
    golden("verify/failing-build.txt", text)
    # The command that it names repeats just that, in the environment that is not active.
    command = next(line for line in ran.stderr.splitlines() if "to repeat it:" in line).partition("envspec ")[2]
    again = probed.run(*command.split(), "--json")
    assert again.code == 1
    (run,) = again.host()["runs"]
    assert (run["id"], again.host()["env"]) == ("switch", failed["env"])
    assert again.host()["generation"] is None
    # Mended, it becomes active.
    break_probe(repository, PASSES, modules=["beta"])
    probed.good("build")
    assert probed.active() != before


def test_json_of_a_failing_build_has_the_probes(probed: Project, repository: Path) -> None:
    newer(probed)
    break_probe(repository, CRASH, modules=["beta"])
    ran = probed.run("build", "--json")
    error = ran.json()["error"]
    assert probes_of(error)["switch"] == "fail"
    run = next(run for run in error["runs"] if run["id"] == "switch")
    assert run["reason"] == "it ended with SIGSEGV after the case `one`"
    assert "Segmentation fault" in run["stderr"]


def test_probes_are_not_run_where_imports_fail(probed: Project) -> None:
    spec(probed, "good", imports=("absent",))
    probed.good("lock")
    ran = probed.run("build")
    assert ran.code == 1
    assert receipts(probed)[-1]["runs"] == []


def test_no_verify_activates_and_is_shown_until_a_verification_passes(probed: Project, repository: Path) -> None:
    before = probed.active()
    newer(probed)
    break_probe(repository, NMS, modules=["beta"])
    ran = probed.good("build", "--no-verify")
    assert "verified no: built with --no-verify" in ran.stdout
    assert probed.active() != before
    receipt = next(each for each in receipts(probed) if not each["verified"])
    assert (receipt["set"], receipt["probes"], receipt["imports"]) == ("none", [], None)
    assert re.search(r"^verified no: activated at .* with --no-verify$", probed.good("status").stdout, re.MULTILINE)
    assert probed.good("build", "--no-verify", "--json").host()["verified"] is False
    # Without the option it is not enough that it is active.
    assert probed.run("build").code == 1
    assert probed.good("status", "--json").host()["verification"]["failed"] == ["switch"]
    break_probe(repository, PASSES, modules=["beta"])
    probed.good("verify")
    assert probed.good("status", "--json").host()["verification"]["verified"] is True
    assert "as it was" not in probed.good("build").stdout.partition("generation")[0]


def test_a_build_of_what_is_there_runs_no_probe(probed: Project, repository: Path) -> None:
    break_probe(repository, NMS, modules=["beta"])
    ran = probed.run("build", watch=True)
    assert (ran.code, ran.events) == (0, ())
    assert "as it was" in ran.stdout
    assert "switch   pass" in ran.stdout


def test_without_a_gpu_nothing_is_started_to_say_so(probed: Project, repository: Path, tmp_path: Path) -> None:
    ran_here = tmp_path / "ran"
    break_probe(repository, PASSES, name="gpu", before=f"open({str(ran_here)!r}, 'w').close()", gpus=1, per="gpu")
    spec(probed, "gpu", imports=())
    probed.good("lock")
    assert probes_of(probed.good("build", "--json").host()) == {"gpu": "skip"}
    assert not ran_here.exists()


def test_a_probe_that_does_not_exist_is_named_with_the_nearest(probed: Project) -> None:
    spec(probed, "godo")
    probed.good("lock")
    ran = probed.run("build")
    assert ran.code == 2
    assert "[verify] kernels: there is no probe `godo`\n    hint: did you mean `good`?" in ran.stderr


def test_a_module_that_the_lock_lacks_fails_where_the_spec_names_its_probe(probed: Project, repository: Path) -> None:
    break_probe(repository, PASSES, modules=["absent"])
    newer(probed)
    ran = probed.run("build")
    assert ran.code == 1
    assert "switch: the environment has no `absent`" in ran.stderr


# Verify.


def test_verify_compiles_what_it_can_and_says_on_which_ground_each_claim_stands(probed: Project) -> None:
    host = probed.good("verify", "--json").host()
    assert probes_of(host) == {
        "tree": "pass",
        "imports": "pass",
        "good": "pass",
        "gpu": "skip",
        "kernels": "compiled",
        "switch": "pass",
    }
    assert host["claims"]["compiled"] == {"kernels": ["9.0", "12.0"]}
    assert host["claims"]["wheels"]["gpu"] == ["9.0", "12.0"]
    text = probed.good("verify").stdout
    assert "claims   compiled only: kernels (9.0, 12.0)\n" in text
    assert "claims   from the wheels only: good (9.0, 12.0), gpu (9.0, 12.0), switch (9.0, 12.0)\n" in text


def test_full_runs_what_quick_leaves_for_it(probed: Project) -> None:
    assert "engine" not in probes_of(probed.good("verify", "--json").host())
    host = probed.good("verify", "--full", "--json").host()
    assert probes_of(host)["engine"] == "pass"
    assert host["set"] == "full"


def test_one_probe_and_one_case_of_it_with_a_seed(probed: Project, repository: Path) -> None:
    body = 'say(asked["cases"][0], seed={"value": asked["seed"]})\nend()'
    break_probe(repository, body, modules=["beta"])
    host = probed.good("verify", "--probe", "switch:nms", "--seed", "42", "--json").host()
    assert list(probes_of(host)) == ["tree", "switch"]
    (case,) = host["runs"][0]["cases"]
    assert (case["case"], case["figures"]["seed"]["value"]) == ("nms", 42)
    assert probed.good("status", "--json").host()["verification"]["set"] == "quick"


def test_seeds_are_fresh(probed: Project) -> None:
    seeds = {json.loads(Path(probed.good("verify", "--json").host()["receipt"]).read_bytes())["seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_what_has_drifted_is_run_only_if_it_is_asked_for(probed: Project) -> None:
    path = probed.site("beta/__init__.py")
    path.parent.chmod(0o755)
    path.chmod(0o644)
    path.unlink()
    ran = probed.run("verify", "--json")
    assert ran.code == 1
    assert probes_of(ran.host()) == {"tree": "fail"}
    ran = probed.run("verify", "--probe", "switch", "--json")
    assert probes_of(ran.host()) == {"tree": "fail", "switch": "pass"}


def test_verify_says_what_failed_and_how_to_repeat_it(probed: Project, repository: Path) -> None:
    break_probe(repository, 'say("a")\nsay("b", "fail", "error 0.5 exceeds the bound 0.1")\nend()', modules=["beta"])
    ran = probed.run("verify")
    assert ran.code == 1
    assert "switch   fail (b: error 0.5 exceeds the bound 0.1)" in ran.stdout
    assert "to repeat it: envspec verify --probe switch:b --seed " in ran.stderr
    assert "likely cause: a kernel computes something else than its reference" in ran.stderr


# Machines with GPUs, as nvidia-smi tells of them.


def install_gpus(project: Project, *rows: str) -> None:
    program = project.folder / "bin" / "nvidia-smi"
    lines = "\n".join(rows)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)


def test_each_gpu_is_probed_by_itself_and_the_sick_one_is_named(probed: Project, repository: Path) -> None:
    install_gpus(
        probed,
        "0, NVIDIA H200, 9.0, 143771, 580.95.05",
        "1, NVIDIA H200, 9.0, 143771, 580.95.05",
    )
    host = probed.good("verify", "--json").host()
    assert [(run["gpu"], run["result"]) for run in host["runs"] if run["id"] == "gpu"] == [(0, "pass"), (1, "pass")]
    assert host["claims"]["run"]["gpu"] == ["9.0"]
    assert host["claims"]["wheels"]["gpu"] == ["12.0"]
    assert probes_of(host)["kernels"] == "compiled"
    sick = "say('one', 'fail' if os.environ['CUDA_VISIBLE_DEVICES'] == '1' else 'pass', 'relative error is 0.5')\nend()"
    break_probe(repository, sick, name="gpu", gpus=1, per="gpu")
    newer(probed)
    before = probed.active()
    ran = probed.run("build")
    assert ran.code == 1
    assert probed.active() == before
    assert "gpu on GPU 1: one: relative error is 0.5" in ran.stderr
    assert "repeat it on another GPU: if it is right there, this GPU is sick" in ran.stderr


# Venvs that envspec did not build.


@pytest.fixture
def by_hand(probed: Project, tmp_path: Path) -> Path:
    """A venv with beta as its wheel has it, and a package that the lock has not."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    wheel = next(probed.store.glob("wheels/*/beta-1.0-*.whl"))
    shutil.unpack_archive(wheel, site, "zip")
    (site / "gamma-3.0.dist-info").mkdir()
    (site / "gamma-3.0.dist-info" / "RECORD").write_text("")
    return folder


def test_a_venv_of_locked_bytes_is_recognised_and_probed(probed: Project, by_hand: Path) -> None:
    ran = probed.good("verify", "--python", by_hand, "--json")
    host = ran.host()
    assert {(row["package"], row["kind"]) for row in host["packages"]} == {("beta", "locked"), ("gamma", "extra")}
    assert (host["package_counts"]["locked"], host["env"], host["site"]) == (1, None, None)
    assert probes_of(host)["switch"] == "pass"
    text = probed.good("verify", "--python", by_hand / "bin" / "python").stdout
    assert "packages 1 of 1 are bit for bit the locked ones\n  extra         1: gamma\n" in text


def test_an_edited_package_of_a_venv_is_named_and_is_the_likely_cause(
    probed: Project, by_hand: Path, repository: Path
) -> None:
    (path,) = by_hand.glob("lib/python3*/site-packages/beta/__init__.py")
    path.write_text("VALUE = 9\n")
    break_probe(repository, NMS, modules=["beta"])
    ran = probed.run("verify", "--python", by_hand)
    assert ran.code == 1
    assert "  edited        beta: 1 file edited after it was installed: lib/python3" in ran.stdout
    assert "likely cause: beta is not the locked one: 1 file edited" in ran.stderr
    assert f"--python {by_hand}/bin/python --probe switch:nms" in ran.stderr


def test_other_builds_and_versions_of_a_venv_are_told_apart(probed: Project, by_hand: Path, tmp_path: Path) -> None:
    (site,) = by_hand.glob("lib/python3*/site-packages")
    for version, kind in (("1.0", "other build"), ("0.9", "other version")):
        shutil.rmtree(site / "beta")
        for info in site.glob("beta-*.dist-info"):
            shutil.rmtree(info)
        files = {"beta/__init__.py": "VALUE = 'built elsewhere'\n", "beta/version.py": "cuda: str = '12.8'\n"}
        other = Project(tmp_path / kind, None).wheel("beta", version, files)
        shutil.unpack_archive(other, site, "zip")
        (row,) = [
            row
            for row in probed.good("verify", "--python", by_hand, "--json").host()["packages"]
            if row["package"] == "beta"
        ]
        assert (row["kind"], row["version"], row["cuda"]) == (kind, version, "12.8")


@pytest.mark.parametrize("path", ["absent", "/bin/false", "/dev/null"])
def test_what_is_no_python_is_refused(probed: Project, path: str) -> None:
    ran = probed.run("verify", "--python", path)
    assert ran.code == 2
    assert "does not answer as a Python does" in ran.stderr


def test_a_venv_has_no_host_and_no_environment_of_the_store(probed: Project) -> None:
    assert probed.run("verify", "--python", sys.executable, "--deep").code == 2


# Receipts.


def make_key(folder: Path) -> Path:
    path = folder / "id_ed25519"
    command = ["/usr/bin/env", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)


def allow(project: Project, key: Path, who: str = "ada@example.org") -> Path:
    signers = project.spec_folder / "receipts" / "allowed_signers"
    signers.parent.mkdir(exist_ok=True)
    signers.write_text(f"{who} {key.with_suffix('.pub').read_text()}")
    return signers


def saved(project: Project) -> Path:
    (path,) = project.spec_folder.glob("receipts/*/*.json")
    return path


def test_a_signed_receipt_is_good_and_names_its_signer(probed: Project, key: Path) -> None:
    allow(probed, key)
    ran = probed.good("verify", "--save", "--sign", key)
    assert ran.stdout.count(", signed") == 1
    text = probed.good("receipts", "verify").stdout
    assert "signed by ada@example.org (ED25519 SHA256:" in text
    assert text.splitlines()[1].endswith("passed  of the lock")
    (record,) = probed.good("receipts", "verify", saved(probed), "--json").json()["receipts"]
    assert (record["good"], record["of_lock"], record["signature"]["signer"]) == (True, True, "ada@example.org")
    # The store has the same bytes, and a signature of its own.
    assert (probed.store / "receipts" / record["env"] / saved(probed).name.replace("-vm", "")).name
    assert len(list(probed.store.glob("receipts/*/*-verify.json.sig"))) == 1
    assert "a signature lies beside it" in probed.good("receipts", "show", saved(probed)).stdout


def become(path: Path, *steps: str) -> None:
    """Something else in the place of a receipt."""
    kept = path.with_suffix(".kept")
    path.rename(kept)
    for step in steps:
        if step == "folder":
            path.mkdir()
        elif step == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(step or kept)


TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"13.0", b"13.1").replace(b'"pass"', b'"skip"', 1)),
        "",
    ),
    "a figure": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"value": 500.0', b'"value": 900.0', 1)),
        "bad signature",
    ),
    "another time": (
        lambda path: path.write_bytes(re.sub(rb'"time": "\d{4}', b'"time": "2031', path.read_bytes())),
        "bad signature",
    ),
    "no signature": (lambda path: path.with_name(f"{path.name}.sig").unlink(), "not signed"),
    "an empty signature": (lambda path: path.with_name(f"{path.name}.sig").write_bytes(b""), "bad signature"),
    "a damaged signature": (
        lambda path: path.with_name(f"{path.name}.sig").write_text("-----BEGIN SSH SIGNATURE-----\nAAAA\n"),
        "bad signature",
    ),
    "spaces": (lambda path: path.write_bytes(path.read_bytes() + b" "), "is refused as a receipt"),
    "nothing": (lambda path: path.write_bytes(b""), "is refused as a receipt"),
    "a link": (lambda path: become(path, ""), "cannot be read"),
    "a link to a device": (lambda path: become(path, "/dev/zero"), "cannot be read"),
    "a folder": (lambda path: become(path, "folder"), "cannot be read"),
    "a pipe": (lambda path: become(path, "pipe"), "is no ordinary file"),
}


@pytest.fixture(scope="module")
def signed_once(made_once: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a signed receipt, to be copied."""
    folder = tmp_path_factory.mktemp("signed")
    copy_tree(made_once, folder / "project")
    write_probes(repository, PROBES)
    project = Project(folder / "project", None)
    project.environment = {"PYTHONPATH": str(repository)}
    key = make_key(folder)
    allow(project, key)
    project.good("verify", "--save", "--sign", key)
    return project


@pytest.mark.parametrize("how", TAMPERING)
def test_a_tampered_receipt_is_refused(signed_once: Project, tmp_path: Path, how: str) -> None:
    tamper, why = TAMPERING[how]
    shutil.copytree(saved(signed_once).parent, tmp_path / "receipts")
    (path,) = (tmp_path / "receipts").glob("*.json")
    tamper(path)
    ran = signed_once.run("receipts", "verify", path)
    assert ran.code == 1, ran.text
    assert why in ran.text


def test_a_signature_by_somebody_else_or_for_something_else_is_none(probed: Project, key: Path, tmp_path: Path) -> None:
    allow(probed, key)
    probed.good("verify", "--save", "--sign", key)
    path = saved(probed)
    signature = path.with_name(f"{path.name}.sig")
    command = ["/usr/bin/env", "ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "file", str(path)]
    signature.unlink()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    ran = probed.run("receipts", "verify")
    assert ran.code == 1
    assert "bad signature" in ran.stdout
    stranger = tmp_path / "stranger"
    make = ["/usr/bin/env", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)]
    subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
    shutil.rmtree(path.parent)
    probed.good("verify", "--save", "--sign", stranger)
    ran = probed.run("receipts", "verify")
    assert ran.code == 1
    assert "is not among the signers" in ran.stdout


def test_a_key_that_cannot_sign_is_named(probed: Project, tmp_path: Path) -> None:
    ran = probed.run("verify", "--sign", tmp_path / "absent")
    assert (ran.code, "there is no key at" in ran.stderr) == (2, True)
    bad = tmp_path / "bad"
    bad.write_text("no key\n")
    ran = probed.run("verify", "--sign", bad)
    assert (ran.code, "cannot sign" in ran.stderr) == (2, True)


def test_receipts_need_a_list_of_signers_where_one_is_signed(probed: Project, key: Path) -> None:
    probed.good("verify", "--save", "--sign", key)
    ran = probed.run("receipts", "verify")
    assert ran.code == 1
    assert "there is no list of signers at" in ran.stderr


def test_receipts_are_listed_and_shown(probed: Project, golden: Callable[[str, str], None]) -> None:
    probed.good("verify", "--save")
    lines = probed.good("receipts", "list").stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["build", "verify", "verify"]
    assert len(probed.good("receipts", "list", "--json").json()["receipts"]) == 3
    text = probed.good("receipts", "show", saved(probed)).stdout
    shown = re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>", text)
    shown = re.sub(r"^(env|site|host)( +)\S.*$", r"\1\2<\1>", shown, flags=re.MULTILINE)
    shown = re.sub(r" in [0-9.]+ s$", " in <seconds> s", shown, flags=re.MULTILINE)
    golden("verify/receipt.txt", shown)
    value = probed.good("receipts", "show", saved(probed), "--json").json()
    assert value["receipt"]["kind"] == "verify"


def test_figures_of_two_hosts_stand_side_by_side(
    probed: Project, repository: Path, golden: Callable[[str, str], None]
) -> None:
    for host, speed in (("ct200", 500.0), ("ct129", 250.0)):
        break_probe(repository, PASSES.replace("500.0", str(speed)), name="good")
        path = Path(probed.good("verify", "--json").host()["receipt"])
        receipt = receipt_of(json.loads(path.read_bytes()), name="x")
        seen = seen_receipt(receipt, host=host, time=receipt.time, generation=1, path="/opt/envspec")
        assert keep_receipt(Store(probed.store), seen) is not None
    ran = probed.good("verify", "--compare", "ct200", "ct129")
    table = [line for line in ran.stdout.splitlines() if not line.startswith("ct")]
    golden("verify/compare.txt", "\n".join(table) + "\n")
    figures = probed.good("verify", "--compare", "ct200", "ct129", "--json").json()["figures"]
    speed = next(each for each in figures if each["probe"] == "good" and each["figure"] == "speed")
    assert speed["values"] == [500.0, 250.0]
    ran = probed.run("verify", "--compare", "ct200", "ct1")
    assert ran.code == 2
    assert "there is no receipt of `ct1` with figures of probes" in ran.stderr
