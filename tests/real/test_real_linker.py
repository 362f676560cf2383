"""The real dynamic linker as the judge of `envspec.linker`, on the real stack.

`ENVSPEC_REAL_STORE=/some/folder uv run pytest -m real tests/real` runs these after the environment of that store is built. Beside the store, in
`<store>-judged` (or ENVSPEC_REAL_WORK), lie the mismatched wheels and the facts of what was measured here; what is there is used again.

- ENVSPEC_JUDGE_LARGE=1: the wheels of kernels too, 1.3 GB.
- ENVSPEC_JUDGE_OUT=file: the table as JSON.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tomllib

from benchmarks.machine import describe_machine
from builder.agent.driver_stub import BuiltStub, build_stub, driver_symbols, find_compiler
from builder.measure import measure_wheel, read_facts, write_facts
from envspec.checks import Closure, ClosureWheel
from envspec.lock_toml import parse_lock
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envspec.facts import WheelFacts
    from envspec.linker import Opened

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
WORK = Path(os.environ.get("ENVSPEC_REAL_WORK") or f"{STORE}-judged")
OUT = os.environ.get("ENVSPEC_JUDGE_OUT", "")
LARGE = os.environ.get("ENVSPEC_JUDGE_LARGE") == "1"
LOCK = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
SPEC = parse_spec((ROOT / "ddtree.toml").read_text(encoding="utf-8"), input_name="ddtree.toml")
SITE = f"lib/python{SPEC.python.version}/site-packages/"

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


@dataclass(frozen=True)
class Mismatch:
    """A wheel that takes the place of another one beside torch 2.11.0."""

    requirement: str
    sha256: str
    in_place_of: str = ""
    """Empty if nothing makes way for it, or a release of the same package does."""

    large: bool = False

    def __str__(self) -> str:
        return self.requirement

    @property
    def name(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def slot(self) -> str:
        return self.in_place_of or self.name


MISMATCHES = (
    Mismatch("torchvision==0.21.0", "b578bcad8a4083b40d34f689b19ca9f7c63e511758d806510ea03c29ac568f7b"),
    Mismatch("torchvision==0.24.1", "66a98471fc18cad9064123106d810a75f57f0838eee20edc56233fd8484b0cc7"),
    Mismatch("torchvision==0.25.0", "f25aa9e380865b11ea6e9d99d84df86b9cc959f1a007cd966fc6f1ab2ed0e248"),
    Mismatch("torchvision==0.27.0", "7a9966a088d06b4cf6c610e03be62de469efa6f2cd2e7c7eed8e925ed6af59ac"),
    Mismatch("torchvision==0.28.0", "028a3d481b37d785605620d7cdad897064c5a55bae2aa1f2658766333e291940"),
    Mismatch("torchaudio==2.9.1", "4533fdafba73d7bcfcb5f1225b2cc8974a290ed0fe54c44638d6f440e91b8999"),
    Mismatch("torchaudio==2.10.0", "0e77b2956448d63790a99beed0b74ac8b8cd3a94dcdd9ad01974411078f46278"),
    Mismatch("torchao==0.16.0", "2d6293a0c57c9dd505efb025a7189459d154965fbed000efd638cf299f9362dd"),
    Mismatch("torchcodec==0.10.0", "6e43184d83ccced965b31cad5bb6200c779646fee2ec153a6d784b4def40c91b"),
    Mismatch("xformers==0.0.35", "ccc73c7db9890224ab05f5fb60e2034f9e6c8672a10be0cf00e95cbbae3eda7c"),
    Mismatch("sglang-kernel==0.4.0", "859eb83c312b327d1998ba05b7cfb759d438192117fded43d475ef9f32f284d8", large=True),
    Mismatch("sglang-kernel==0.4.10", "043cbe4a10e7887ea1b25599b729ff1ce115a0d5217b2c177aff9f9ae5327724", large=True),
    Mismatch(
        "sgl-kernel==0.3.21",
        "57dfb3a2a3cd759f499c32e2bad5f6489b7c58f7f9a84ee00c53ec92d303aaab",
        in_place_of="sglang-kernel",
        large=True,
    ),
)
TAKEN = tuple(each for each in MISMATCHES if LARGE or not each.large)


def download(wanted: Mismatch) -> Path:
    """The wheel, from where uv finds it, if it is not there already."""
    folder = WORK / "wheels" / wanted.sha256
    there = sorted(folder.glob("*.whl"))
    if there:
        return there[0]
    uv = shutil.which("uv")
    assert uv is not None, "uv is not installed"
    options = ["--quiet", "--no-deps", "--no-header", "--only-binary", ":all:", "--format", "pylock.toml"]
    target = ["--python-platform", "x86_64-manylinux_2_35", "--python-version", SPEC.python.version]
    answer = subprocess.run(
        [uv, "pip", "compile", *options, *target, "-"],
        input=wanted.requirement,
        capture_output=True,
        text=True,
        check=True,
        cwd=WORK,
    )
    listed = tomllib.loads(answer.stdout)["packages"][0]["wheels"]
    url = next(wheel["url"] for wheel in listed if wheel["hashes"]["sha256"] == wanted.sha256)
    folder.mkdir(parents=True, exist_ok=True)
    partial, digest = folder / "partial", hashlib.sha256()
    with httpx.stream("GET", url, follow_redirects=True, timeout=60) as response, partial.open("wb") as file:
        response.raise_for_status()
        for chunk in response.iter_bytes():
            digest.update(chunk)
            file.write(chunk)
    assert digest.hexdigest() == wanted.sha256
    return partial.rename(folder / url.rpartition("/")[2])


def facts_of(wheel: Path, sha256: str) -> WheelFacts:
    """The facts of a wheel: those of the store, or measured here."""
    for folder in (Path(STORE) / "facts", WORK / "facts"):
        known = read_facts(folder, sha256, SPEC.python.version)
        if known is not None:
            return known
    facts = measure_wheel(wheel, filename=wheel.name, sha256=sha256, python=SPEC.python.version)
    (WORK / "facts").mkdir(parents=True, exist_ok=True)
    write_facts(WORK / "facts", facts)
    return facts


@pytest.fixture(scope="module")
def environment() -> Path:
    """The built environment of the committed lock."""
    built = sorted((Path(STORE) / "envs").glob(f"{LOCK.env}-*"))
    if not built:
        command = [sys.executable, "-m", "envspec", "build", "--store", STORE]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.fspath(ROOT)}, check=True)
        built = sorted((Path(STORE) / "envs").glob(f"{LOCK.env}-*"))
    return built[0]


@pytest.fixture(scope="module")
def closure() -> Closure:
    """The wheels of the committed lock."""
    wheels = [
        facts_of(Path(STORE) / "wheels" / package.sha256 / package.file, package.sha256) for package in LOCK.packages
    ]
    return Closure(spec=SPEC, wheels=tuple(ClosureWheel(facts=facts) for facts in wheels), accepted_tags=())


@dataclass(frozen=True)
class Tree:
    """An environment in which one wheel was exchanged."""

    mismatch: Mismatch
    site: Path
    closure: Closure
    objects: tuple[str, ...]
    """Paths of the objects of the wheel, in the environment."""


@pytest.fixture(scope="module")
def trees(environment: Path, closure: Closure, tmp_path_factory: pytest.TempPathFactory) -> dict[Mismatch, Tree]:
    """The environments with one wheel exchanged: all else is linked."""
    WORK.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as threads:
        wheels = dict(zip(TAKEN, threads.map(download, TAKEN), strict=True))
    made = {}
    for mismatch, wheel in wheels.items():
        facts = facts_of(wheel, mismatch.sha256)
        gone = [each for each in closure.wheels if each.facts.name == mismatch.slot]
        exchanged = replace(
            closure,
            wheels=(*(each for each in closure.wheels if each not in gone), ClosureWheel(facts=facts)),
        )
        of_either = {
            file.path.removeprefix(SITE).partition("/")[0]
            for each in (facts, *(wheel.facts for wheel in gone))
            for file in each.files
            if file.path.startswith(SITE)
        }
        site = tmp_path_factory.mktemp("tree") / SITE
        site.mkdir(parents=True)
        for entry in (environment / SITE).iterdir():
            if entry.name not in of_either:
                (site / entry.name).symlink_to(entry)
        objects = tuple(
            path for path, owner in exchanged.links.wheel_of.items() if owner.facts.sha256 == mismatch.sha256
        )
        with zipfile.ZipFile(wheel) as archive:
            for path in objects:
                archive.extract(path.removeprefix(SITE), site)
        made[mismatch] = Tree(mismatch, site, exchanged, objects)
    return made


@dataclass(frozen=True)
class Judge:
    """The real linker, in a process that has imported torch with a stub of the driver."""

    ask: Callable[[dict[str, Any]], dict[str, Any]]
    host: frozenset[str]
    """What this machine offers of all that is needed by name."""


@pytest.fixture(scope="module")
def judge(
    environment: Path, closure: Closure, trees: dict[Mismatch, Tree], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Judge]:
    """Started once: importing torch takes seconds."""
    objects = closure.links.linker.objects
    files = [environment / path for path in objects]
    files += [tree.site / path.removeprefix(SITE) for tree in trees.values() for path in tree.objects]
    stub = build_stub(
        tmp_path_factory.mktemp("stub"), driver_symbols(files), find_compiler(os.environ), environ=dict(os.environ)
    )
    assert isinstance(stub, BuiltStub), stub
    sonames = {name for each in objects.values() for name in each.needed}
    sonames |= {name for tree in trees.values() for path in tree.objects for name in binary(tree, path).needed}
    with subprocess.Popen(
        [environment / "bin/python", "-I", ROOT / "tests/support/dlopen_judge.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": os.fspath(stub.folder)},
    ) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            said: dict[str, Any] = json.loads(answers.readline())
            return said

        first = ask({"sonames": sorted(sonames), "before": ["torch"]})
        assert first["imports"] == {"torch": ""}
        yield Judge(ask, frozenset(first["host"]))
        requests.close()


def binary(tree: Tree, path: str) -> Any:
    return tree.closure.links.linker.objects[path]


ROWS: list[dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def table(environment: Path) -> Iterator[None]:
    """Prints the table when all are judged, and writes it if asked to."""
    yield
    for row in ROWS:
        sys.stderr.write(
            f"\n{row['set']:24} {row['objects']:4} objects: {row['both_load']:4} load, {row['both_fail']:3} fail, "
            f"{len(row['disagreements'])} disagreements"
        )
    uv = shutil.which("uv")
    if OUT and uv:
        machine = describe_machine(
            WORK,
            envspec=Path(sys.executable).parent / "envspec",
            python=environment / "bin/python",
            uv=Path(uv),
            nix_hash=None,
        )
        record = {
            "version": 1,
            "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
            "what": "dlopen(RTLD_NOW) after `import torch`, with a stub of the driver, beside the prediction of envspec.linker",
            "machine": machine,
            "environment": LOCK.env,
            "sets": ROWS,
        }
        Path(OUT).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def judged(name: str, judge: Judge, closure: Closure, paths: Sequence[str], place: Callable[[str], str]) -> list[str]:
    """Ask the linker about objects, note the row, and return what it sees otherwise."""
    libraries = tuple(sorted({*closure.spec.target.libraries, *judge.host}))
    spec = replace(closure.spec, target=replace(closure.spec.target, libraries=libraries))
    links = replace(closure, spec=spec).links
    errors = judge.ask({"paths": [place(path) for path in paths]})["errors"]
    counts: Counter[tuple[bool, bool]] = Counter()
    wrong = []
    for path in paths:
        opened, error = links.linker.open(path, links.world), errors[place(path)]
        counts[opened.loads, not error] += 1
        if opened.loads != (not error) or (error and not names_the_cause(opened, error)):
            wrong.append(f"{links.shown(path)}: predicted {predicted(opened)}; said `{error}`")
    ROWS.append(
        {
            "set": name,
            "objects": len(paths),
            "both_load": counts[True, True],
            "both_fail": counts[False, False],
            "disagreements": wrong,
        }
    )
    return wrong


def predicted(opened: Opened) -> list[str]:
    """What the object lacks, by prediction; `loads` if nothing."""
    return [
        *(each.soname for each in opened.missing),
        *(each.reference.name for each in opened.unbound),
        *(each.version for each in opened.versions),
    ] or ["loads"]


def names_the_cause(opened: Opened, error: str) -> bool:
    """Whether the library, symbol or version at which the linker gave up is among the predicted ones."""
    return any(name in error for name in predicted(opened))


def test_every_object_of_the_lock_agrees(environment: Path, closure: Closure, judge: Judge) -> None:
    wrong = judged(
        "ddtree.lock", judge, closure, sorted(closure.links.linker.objects), lambda path: os.fspath(environment / path)
    )
    assert wrong == []


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=str)
def test_every_object_of_a_mismatched_wheel_agrees(
    mismatch: Mismatch, trees: dict[Mismatch, Tree], judge: Judge
) -> None:
    if mismatch not in trees:
        pytest.skip("a wheel of several 100 MB: ENVSPEC_JUDGE_LARGE=1 takes it")
    tree = trees[mismatch]
    wrong = judged(
        str(mismatch), judge, tree.closure, tree.objects, lambda path: os.fspath(tree.site / path.removeprefix(SITE))
    )
    assert tree.objects
    assert wrong == []
