"""An observation -> the closure that checks judge: wheels made of what lies on disk, for the machine that was looked at.

    closure = closure_of(observation)
    run_checks_of_a_venv(closure)        # those that make sense for it

What a package says of itself is taken from its metadata; where its own `version.py` was put there by somebody else, that is the truer one.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from envspec.binaries import BinaryFacts, Label
from envspec.checks import Closure, ClosureWheel
from envspec.checks.ownership import is_reserved
from envspec.diagnosis.hooks import is_benign
from envspec.diagnosis.modules import projects_of
from envspec.facts import Anomaly, InstalledFile, WheelFacts
from envspec.forms import normalise_name
from envspec.layout import DROPPED_METADATA, split_wheel_name
from envspec.spec import CudaSpec, HostSpec, PythonSpec, Spec, TargetSpec
from envspec.tags import OLDEST_GLIBC_MINOR, target_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.binaries import Binary
    from envspec.observed import Observation, ObservedDistribution, ObservedFile
    from envspec.spec import Waiver

LEFT_OUT = {
    "absolute-runpath": "which folders of a build machine exist here is not seen; what is loaded from outside is `library-path`'s",
    "archive-damaged": "there is no archive any more",
    "bundled-cuda": "it is the package's way, and breaks nothing",
    "cuda-toolkit-mismatch": "no spec says which CUDA is wanted: it is torch's",
    "data-outside": "it breaks nothing",
    "duplicate-member": "there is no archive any more",
    "file-collision": "one file is left on disk, and RECORD says whose it should be: `owned-twice`",
    "generic-top-level": "it breaks nothing by itself; what hides another module is `shadowed-module`",
    "gpu-code-jit": "it is slow and not wrong",
    "gpu-code-partial": "it is the rule, and breaks nothing",
    "hash-changed": "there is no earlier lock",
    "local-version-mismatch": "the name of the wheel is not known; that of its folder is `metadata-version`'s",
    "optional-plugin": "nobody loads it unless it is wanted",
    "path-escape": "there is no archive any more",
    "record-ghost": "it cannot be told from a file that was deleted: `missing-file`",
    "record-path": "paths are read as they are meant",
    "script-collision": "as `file-collision`",
    "shipped-bytecode": "it is not looked at",
    "symlink-member": "what a link became on disk is `not-a-library`'s",
    "tag-understates": "what counts is this machine, not what a tag promises to others",
    "unrecorded-file": "whose file it is, is asked by `stray-code` and `stray-module`",
    "version-mismatch": "the name of the wheel is not known; that of its folder is `metadata-version`'s",
    "yanked": "the index is not asked about every package",
}
"""Checks of locks that say nothing of an installed venv, with the reason."""

NEWEST_GLIBC = "2.99"
"""Of a machine that does not say which it has: nothing is too new for it."""

MUST_RUN = ("sgl-kernel", "sglang-kernel", "torch", "torchaudio", "torchvision", "vllm", "xformers")
"""Packages that are of no use on a GPU that they have no code for."""

_UNPACKING_NS = 2 * 10**9
"""A file may be so much older or newer than those that came with it: it is the time of unpacking, which several threads do."""

_LONGEST_UNPACKING_NS = 300 * 10**9

_LEAST_TIMES = 2
"""Files that came with another one, to know when that was."""

_VERSION_FILES = ("version.py", "_version.py")
_UNFIT = re.compile(r"[^\w.+!]", re.ASCII)
_MINOR = re.compile(r"3\.[0-9]{1,3}", re.ASCII)
_FULL = re.compile(r"3\.[0-9]{1,3}\.[0-9]{1,3}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", re.ASCII)
_GLIBC = re.compile(r"2\.[0-9]{1,3}", re.ASCII)
_COMPUTE = re.compile(r"[0-9]{1,2}\.[0-9]", re.ASCII)
_CUDA = re.compile(r"[0-9]{2}\.[0-9]{1,2}", re.ASCII)
_MACHINES = {platform.partition("-")[2]: platform for platform in OLDEST_GLIBC_MINOR}


def closure_of(observation: Observation, waivers: Sequence[Waiver] = ()) -> Closure:
    """The closure of a venv.

    Args:
        observation: Of the venv.
        waivers: Of its lock, if that is known.
    """
    chosen = choose_distributions(observation)
    loose = _loose(observation, chosen)
    minor = observation.python.minor if _MINOR.fullmatch(observation.python.minor) else "3.12"
    hosted = observation.python.version
    wheels = [_wheel(each, loose.get(each.name, BinaryFacts()), minor) for each in chosen]
    wheels += [
        _stray_wheel(name, facts, minor)
        for name, facts in sorted(loose.items())
        if name not in {e.name for e in chosen}
    ]
    platform = _platform(observation, wheels)
    glibc = str(observation.host.get("glibc") or "")
    glibc = glibc if _GLIBC.fullmatch(glibc) else NEWEST_GLIBC
    spec = Spec(
        name="venv",
        snapshot=None,
        python=PythonSpec(
            version=minor, exact=hosted if _FULL.fullmatch(hosted) and hosted.startswith(f"{minor}.") else ""
        ),
        target=TargetSpec(platform=platform, glibc=glibc),
        cuda=_cuda(observation, wheels),
        packages=(),
        hosts=_hosts(observation),
        waivers=tuple(waivers),
    )
    return Closure(
        spec=spec,
        wheels=tuple(wheels),
        accepted_tags=tuple(map(str, target_tags(python=minor, platform=platform, glibc=glibc))),
        place="the venv",
        offered=frozenset(observation.libraries) if observation.libraries else None,
    )


def in_order(observation: Observation) -> Observation:
    """The same observation with everything sorted, as it promises to be, so that no answer depends on who observed."""
    return replace(
        observation,
        distributions=tuple(
            each if (files := _sorted(each.files)) is each.files else replace(each, files=files)
            for each in sorted(observation.distributions, key=lambda each: (each.name, each.folder))
        ),
        strays=_sorted(observation.strays),
        stray_hooks=tuple(sorted(observation.stray_hooks, key=lambda hook: hook.path)),
    )


def _sorted(files: tuple[ObservedFile, ...]) -> tuple[ObservedFile, ...]:
    paths = [file.path for file in files]
    return files if paths == sorted(paths) else tuple(sorted(files, key=lambda file: file.path))


def choose_distributions(observation: Observation) -> tuple[ObservedDistribution, ...]:
    """Of each project one distribution: of several that whose files are on disk, by their bytes and then by their number."""
    by_name: dict[str, list[ObservedDistribution]] = defaultdict(list)
    for each in observation.distributions:
        if each.name:
            by_name[each.name].append(each)
    return tuple(max(found, key=_presence) if len(found) > 1 else found[0] for _, found in sorted(by_name.items()))


def inner_version(distribution: ObservedDistribution) -> Label | None:
    """What a package's own `version.py` says that it is; None if it says nothing."""
    return stated_version(distribution.binaries.labels, distribution.top_level)


def stated_version(labels: Iterable[Label], modules: Iterable[str]) -> Label | None:
    """The version that a `version.py` right in one of some packages states; None if there is none."""
    tops = set(modules)
    found = [
        label
        for label in labels
        if label.path.count("/") == 1
        and label.path.partition("/")[0] in tops
        and label.path.partition("/")[2] in _VERSION_FILES
        and label.key in ("__version__", "version")
        and parsed_version(label.value) is not None
    ]
    return min(found, key=lambda label: (label.key != "__version__", label.path), default=None)


def parsed_version(text: str) -> Version | None:
    """A version; None if it is none."""
    try:
        return Version(text)
    except (InvalidVersion, ValueError):
        return None


def same_release(one: str, other: str) -> bool:
    """Whether two versions are the same but for their local parts; true where one cannot be read."""
    first, second = parsed_version(one), parsed_version(other)
    return first is None or second is None or first.public == second.public


def is_foreign_version(distribution: ObservedDistribution, label: Label, site: str) -> bool:
    """Whether a `version.py` of another release was put in the place of a package's own, or its metadata over that of another."""
    if same_release(label.value, distribution.version):
        return False
    telling = {f"{site}/{label.path}", f"{distribution.folder}/METADATA"}
    rows = {file.path: file for file in distribution.files if file.path in telling}
    version_file = rows.get(f"{site}/{label.path}")
    return version_file is None or any(file.is_edited for file in rows.values())


def true_version(distribution: ObservedDistribution, site: str) -> str:
    """The version of what lies on disk."""
    label = inner_version(distribution)
    if label is not None and (not distribution.version or is_foreign_version(distribution, label, site)):
        version = parsed_version(label.value)
        return version.public if version else label.value
    return distribution.version or distribution.folder_version


def home_of(path: str, folders: Mapping[str, str], site: str) -> str:
    """The package in whose folder a file lies that no RECORD names; empty for one at the root of site-packages, or elsewhere.

    Args:
        path: Relative to the prefix.
        folders: Folder -> the package that has files in it.
        site: Site-packages.
    """
    folder = path.rpartition("/")[0]
    while folder and folder != site:
        if folder in folders:
            return folders[folder]
        folder = folder.rpartition("/")[0]
    return ""


def folders_of(distributions: Iterable[ObservedDistribution], site: str) -> dict[str, str]:
    """Folder in site-packages -> the package that has files in it; of several the one that comes first."""
    folders: dict[str, str] = {}
    for each in distributions:
        for file in each.files:
            folder = file.path.rpartition("/")[0]
            if folder not in folders and folder.startswith(f"{site}/"):
                folders[folder] = each.name
    return folders


def never_right(distribution: ObservedDistribution) -> frozenset[str]:
    """Paths of files that differ from RECORD since they were installed, by their times: it was wrong in the wheel.

    A file that was changed later has a later time than all that came out of the wheel with it; one that was copied from elsewhere has some
    other time.
    """
    edited = [file for file in distribution.files if file.is_edited]
    if not edited:
        return frozenset()
    times = [
        file.mtime_ns
        for file in distribution.files
        if file.kind == "file"
        and not file.is_edited
        and file.mtime_ns > 0
        and file.path.rpartition("/")[2] not in DROPPED_METADATA
        and not file.path.startswith("bin/")
    ]
    if len(times) < _LEAST_TIMES or any(
        file.kind == "missing" and file.path.endswith(".py") for file in distribution.files
    ):
        return frozenset()  # where files are gone too, something happened to it
    first, last = min(times), max(times)
    # RECORD comes last: what is older than it was there before it.
    record = next((file.mtime_ns for file in distribution.files if file.path.endswith(".dist-info/RECORD")), 0)
    if (
        first == last == record or last - first > _LONGEST_UNPACKING_NS
    ):  # times that were set, or are of several hours, tell nothing
        return frozenset()
    latest = max(last, min(last + _UNPACKING_NS, record - 1))
    return frozenset(file.path for file in edited if first - _UNPACKING_NS <= file.mtime_ns <= latest)


def _presence(distribution: ObservedDistribution) -> tuple[int, int, str]:
    right = sum(file.kind == "file" and file.sha256 == file.recorded for file in distribution.files)
    there = sum(file.kind == "file" for file in distribution.files)
    return right, there, distribution.folder


def _loose(observation: Observation, chosen: Sequence[ObservedDistribution]) -> dict[str, BinaryFacts]:
    """Package -> what was measured in files that no RECORD names and that lie among its own, or are a package of that name."""
    facts, site = observation.stray_binaries, observation.site_packages()
    folders = folders_of(chosen, site)
    binaries: dict[str, list[Binary]] = defaultdict(list)
    labels: dict[str, list[Label]] = defaultdict(list)
    for binary in facts.binaries:
        binaries[_owner_of_stray(binary.path, folders, site)].append(binary)
    for label in facts.labels:
        labels[_owner_of_stray(f"{site}/{label.path}", folders, site)].append(label)
    names = {name for name in (*binaries, *labels) if name}
    for file in observation.strays:  # a module without a binary counts too: others may require it
        name = _owner_of_stray(file.path, folders, site)
        if name and file.path.endswith(".py") and file.kind == "file":
            names.add(name)
    return {
        name: BinaryFacts(binaries=tuple(binaries[name]), labels=tuple(labels[name])) for name in sorted(names) if name
    }


def name_of_stray(shown: str) -> str:
    """What a package without metadata is called: as the project that publishes its module; below `nvidia/`, by its folder.

    Args:
        shown: Path of one of its files within site-packages.

    Example:
        >>> name_of_stray("sgl_kernel/__init__.py"), name_of_stray("nvidia/cu13/lib/libcudart.so.13")
        ('sglang-kernel', 'nvidia-cu13')
    """
    top, _, below = shown.partition("/")
    if top == "nvidia" and "/" in below:
        return f"nvidia-{normalise_name(below.partition('/')[0])}"
    folders, _, name = shown.rpartition("/")
    return projects_of(".".join([*folders.split("/"), name.partition(".")[0]]).strip("."))[0]


def _owner_of_stray(path: str, folders: Mapping[str, str], site: str) -> str:
    if not path.startswith(f"{site}/"):
        return ""
    return home_of(path, folders, site) or name_of_stray(path[len(site) + 1 :])


def _wheel(distribution: ObservedDistribution, loose: BinaryFacts, minor: str) -> ClosureWheel:
    site = f"lib/python{minor}/site-packages"
    version = true_version(distribution, site)
    own = distribution.binaries
    facts = BinaryFacts(
        binaries=tuple(sorted((*own.binaries, *loose.binaries), key=lambda binary: binary.path)),
        cubins=own.cubins,
        releases=own.releases,
        assemblers=own.assemblers,
        labels=(*own.labels, *loose.labels),
        driver_functions=own.driver_functions,
    )
    tags = _one_tag(distribution.wheel_tags)
    return ClosureWheel(
        facts=WheelFacts(
            filename=f"{_fit(distribution.name)}-{_fit(version)}-{tags}.whl",
            sha256=hashlib.sha256(distribution.folder.encode("utf-8", "surrogatepass")).hexdigest(),
            size=0,
            python=minor,
            name=distribution.name,
            version=version,
            requires_python=distribution.requires_python,
            requires_dist=distribution.requires_dist,
            provides_extra=distribution.provides_extra,
            wheel_tags=(),
            scripts=tuple(name for name, _ in distribution.scripts),
            hooks=tuple(hook for hook in distribution.hooks if not is_benign(hook, distribution)),
            files=tuple(_installed(file) for file in distribution.files if _is_installed(file)),
            anomalies=tuple(
                Anomaly(
                    kind="record-hash",
                    path=path.removeprefix(f"{site}/"),
                    detail="its bytes are others since it was installed",
                )
                for path in sorted(never_right(distribution))
            ),
            tree="",
            binaries=facts,
        )
    )


def _stray_wheel(name: str, facts: BinaryFacts, minor: str) -> ClosureWheel:
    """A package that has files and no metadata."""
    label = stated_version(facts.labels, {label.path.partition("/")[0] for label in facts.labels})
    version = label.value.partition("+")[0] if label else ""
    return ClosureWheel(
        facts=WheelFacts(
            filename=f"{_fit(name)}-{_fit(version)}-py3-none-any.whl",
            sha256=hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest(),
            size=0,
            python=minor,
            name=name,
            version=version,
            requires_python="",
            requires_dist=(),
            provides_extra=(),
            wheel_tags=(),
            scripts=(),
            hooks=(),
            files=(),
            anomalies=(),
            tree="",
            binaries=facts,
        )
    )


def _is_installed(file: ObservedFile) -> bool:
    """Whether RECORD names a file that is there; what belongs to the environment itself is never read."""
    return file.kind == "file" or (file.kind in ("link", "unreadable") and is_reserved(file.path))


def _installed(file: ObservedFile) -> InstalledFile:
    return InstalledFile(path=file.path, sha256=file.sha256, size=max(file.size, 0), executable=file.executable)


def _fit(text: str) -> str:
    """A piece of a wheel's file name."""
    fit = _UNFIT.sub("_", text)
    return fit if re.search(r"[^\W_]", fit, re.ASCII) else "0"


def _one_tag(tags: Sequence[str]) -> str:
    """The tags of WHEEL as a file name has them: `py2.py3-none-any`."""
    split = [tag.split("-") for tag in tags if tag.count("-") == 2 and all(map(_fit_tag, tag.split("-")))]
    if not split:
        return "py3-none-any"
    joined = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*split, strict=True))
    return joined if split_wheel_name(f"a-1-{joined}.whl") else "py3-none-any"


def _fit_tag(part: str) -> bool:
    return part != "" and _UNFIT.search(part) is None


def _platform(observation: Observation, wheels: Iterable[ClosureWheel]) -> str:
    """`linux-x86_64`: of the machine, else of most binaries."""
    machine = str(observation.host.get("machine") or "")
    if machine in _MACHINES:
        return _MACHINES[machine]
    counts = dict.fromkeys(_MACHINES, 0)
    for wheel in wheels:
        for binary in wheel.facts.binaries.binaries:
            if binary.machine in counts:
                counts[binary.machine] += 1
    return _MACHINES[max(sorted(counts, reverse=True), key=lambda name: counts[name])]


def _cuda(observation: Observation, wheels: Iterable[ClosureWheel]) -> CudaSpec | None:
    """The CUDA line of torch, for the GPUs of the machine; None without torch for CUDA."""
    torch = next((wheel for wheel in wheels if wheel.facts.name == "torch"), None)
    if torch is None:
        return None
    stated = [label.value for label in torch.facts.binaries.labels if label.path == "torch/version.py"]
    toolkit = next((value for value in stated if _CUDA.fullmatch(value)), "")
    if not toolkit:
        return None
    return CudaSpec(
        toolkit=toolkit,
        compute=tuple(sorted(set(computes(observation)))),
        require_gpu_code=tuple(
            sorted(
                wheel.facts.name
                for wheel in wheels
                if wheel.facts.name in MUST_RUN and any(binary.gpu for binary in wheel.facts.binaries.binaries)
            )
        ),
    )


def computes(observation: Observation) -> tuple[str, ...]:
    """Compute capabilities of the GPUs of the machine, as they are listed."""
    gpus = observation.host.get("gpus")
    found = [str(gpu.get("compute", "")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return tuple(compute for compute in found if _COMPUTE.fullmatch(compute))


def _hosts(observation: Observation) -> tuple[HostSpec, ...]:
    """The machine itself, if it has a driver."""
    driver = str(observation.host.get("driver") or "")
    if not _NUMBERS.fullmatch(driver):
        return ()
    compute = computes(observation)
    return (
        HostSpec(
            name=str(observation.host.get("hostname") or "here"),
            ssh="",
            driver=driver,
            compute=compute[0] if compute else "",
            gpus=len(compute),
        ),
    )


def name_of_folder(folder: str) -> str:
    """The project that a `.dist-info` folder is named after, normalised."""
    stem = folder.rpartition("/")[2]
    for suffix in (".dist-info", ".egg-info"):
        stem = stem.removesuffix(suffix)
    return normalise_name(stem.partition("-")[0])
