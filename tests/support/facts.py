"""Facts, closures and tables for tests of checks.

    closure = make_closure([make_facts("torch", "2.11.0"), make_facts("torchvision", "0.24.1", requires=["torch==2.9.1"])])

Without further arguments a wheel and a closure are sound: no check finds anything. Each argument bends one thing.

A test module of a family of checks has a table `ROWS`, and one test that runs it:

    ROWS = (
        passes("requires-dist", "a requirement that holds", make_closure([...])),
        fails("requires-dist", "a missing package", make_closure([...]), "error", "a 1.0 requires `b`, the lock has no b"),
    )

    @pytest.mark.parametrize("row", ROWS, ids=str)
    def test_check_finds_what_the_table_says(row: Row) -> None:
        row.verify()

`tests/envspec/checks/test_check_registry.py` finds the tables, and fails for a check that has no failing or no passing row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement as ParsedRequirement

from envspec.binaries import Binary, BinaryFacts, GpuCode, VersionNeed
from envspec.checks import Closure, ClosureWheel, run_checks
from envspec.facts import Anomaly, InstalledFile, StartupHook, WheelFacts
from envspec.layout import normalise_name
from envspec.lock import LockedHook, LockedPackage
from envspec.spec import CudaSpec, HostSpec, PythonSpec, Requirement, Spec, TargetSpec, Waiver
from tests.support.wheels import expand_tag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from envspec.facts import Finding, Severity

ACCEPTED_TAGS = (
    "cp312-cp312-manylinux_2_28_x86_64",
    "cp312-abi3-manylinux_2_28_x86_64",
    "cp310-abi3-manylinux_2_28_x86_64",
    "cp310-abi3-manylinux_2_17_x86_64",
    "py3-none-manylinux_2_28_x86_64",
    "py3-none-any",
)


def sha256_of(text: str) -> str:
    """The sha256 of a text, for facts that need some digest."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_facts(
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    environment_files: Mapping[str, str] | None = None,
    executable: Collection[str] = (),
    requires: Sequence[str] = (),
    requires_python: str = "",
    extras: Sequence[str] = (),
    hooks: Mapping[str, Sequence[str]] | None = None,
    anomalies: Sequence[tuple[str, str, str]] = (),
    tag: str = "py3-none-any",
    wheel_tags: Sequence[str] | None = None,
    filename: str | None = None,
    sha256: str | None = None,
    python: str = "3.12",
    binaries: BinaryFacts | Sequence[Binary] = (),
) -> WheelFacts:
    """Facts of a wheel.

    Args:
        name: Is normalised.
        version: As METADATA has it.
        files: Path below site-packages -> content; None stands for one module `<name>/__init__.py`.
        environment_files: Path in the environment -> content: `bin/serve`.
        executable: Paths of either that are executable; what lies in `bin/` always is.
        requires: `Requires-Dist` lines.
        requires_python: `Requires-Python`.
        extras: `Provides-Extra` lines.
        hooks: Path of a start-up hook -> lines that run; each is one of the files too.
        anomalies: Kind, path and detail.
        tag: Of the file name.
        wheel_tags: `Tag` lines of WHEEL; None stands for the expanded `tag`.
        filename: Of the wheel, if it is to differ from name, version and tag.
        sha256: Of the wheel; None stands for one that depends on the file name.
        python: Minor version.
        binaries: What was measured in binaries, or the binaries alone (`make_binary`); they are not among the files.
    """
    module = normalise_name(name).replace("-", "_")
    filename = filename or f"{module}-{version}-{tag}.whl"
    site = f"lib/python{python}/site-packages/"
    below_site = {f"{module}/__init__.py": f"# {name}"} if files is None else dict(files)
    below_site.update({path: "\n".join(lines) for path, lines in (hooks or {}).items()})
    contents = {site + path: content for path, content in below_site.items()} | dict(environment_files or {})
    runnable = {site + path for path in executable} | set(executable)
    return WheelFacts(
        filename=filename,
        sha256=sha256 or sha256_of(filename),
        size=1000,
        python=python,
        name=normalise_name(name),
        version=version,
        requires_python=requires_python,
        requires_dist=tuple(requires),
        provides_extra=tuple(extras),
        wheel_tags=tuple(expand_tag(tag) if wheel_tags is None else wheel_tags),
        scripts=tuple(sorted(path.removeprefix("bin/") for path in contents if path.startswith("bin/"))),
        hooks=tuple(
            StartupHook(path=path, sha256=sha256_of("\n".join(lines)), code=tuple(lines))
            for path, lines in sorted((hooks or {}).items())
        ),
        files=tuple(
            InstalledFile(
                path=path,
                sha256=sha256_of(content),
                size=len(content.encode()),
                executable=path in runnable or path.startswith("bin/"),
            )
            for path, content in sorted(contents.items())
        ),
        anomalies=tuple(Anomaly(kind=kind, path=path, detail=detail) for kind, path, detail in anomalies),
        tree=sha256_of(repr(sorted(contents.items()))),
        binaries=binaries if isinstance(binaries, BinaryFacts) else BinaryFacts(binaries=tuple(binaries)),
    )


def make_binary(
    path: str,
    *,
    gpu: Mapping[str, int] | None = None,
    releases: Sequence[str] = (),
    versions: Mapping[str, Sequence[str]] | None = None,
    machine: str = "x86_64",
    kind: str = "shared",
    **more: Any,
) -> Binary:
    """A binary.

    Args:
        path: Below site-packages, or in the environment if it begins with `bin/`.
        gpu: Codes of a fatbin, with spaces between -> number of such fatbins: `{"sm_90 compute_90": 3}`.
        releases: CUDA releases that made its GPU code.
        versions: Library -> versions of its symbols that are needed: `{"libc.so.6": ["GLIBC_2.17"]}`.
        machine: As in `Binary`.
        kind: As in `Binary`.
        more: Other fields of `Binary`.
    """
    fatbins = tuple(sorted((tuple(codes.split()), count) for codes, count in (gpu or {}).items()))
    return Binary(
        path=path if path.startswith("bin/") else f"lib/python3.12/site-packages/{path}",
        machine=machine,
        kind=kind,
        gpu=GpuCode(fatbins=fatbins, releases=tuple(releases)) if gpu is not None else None,
        version_needs=tuple(VersionNeed(library, tuple(names)) for library, names in (versions or {}).items()),
        **more,
    )


def make_spec(
    packages: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    waivers: Sequence[Waiver] = (),
    python: str = "3.12",
    exact: str = "",
    platform: str = "linux-x86_64",
    glibc: str = "2.35",
    compute: Sequence[str] = (),
    require_gpu_code: Sequence[str] = (),
    hosts: Sequence[HostSpec] = (),
) -> Spec:
    """A spec; packages and overrides are PEP 508 requirements: `torch[opt]==2.11.0`. It has [cuda] if `compute` names capabilities."""
    return Spec(
        name="demo",
        snapshot=None,
        python=PythonSpec(version=python, exact=exact),
        target=TargetSpec(platform=platform, glibc=glibc),
        cuda=CudaSpec(toolkit="13.0", compute=tuple(compute), require_gpu_code=tuple(require_gpu_code))
        if compute
        else None,
        packages=tuple(_requirement(text) for text in sorted(packages)),
        overrides=tuple(_requirement(text) for text in sorted(overrides)),
        waivers=tuple(waivers),
        hosts=tuple(hosts),
    )


def make_closure(
    wheels: Sequence[WheelFacts | ClosureWheel],
    spec: Spec | None = None,
    *,
    previous: Sequence[LockedPackage] = (),
    accepted_tags: Sequence[str] = ACCEPTED_TAGS,
) -> Closure:
    """A closure of wheels, for a spec that asks for nothing unless one is given."""
    return Closure(
        spec=spec or make_spec(),
        wheels=tuple(wheel if isinstance(wheel, ClosureWheel) else ClosureWheel(facts=wheel) for wheel in wheels),
        accepted_tags=tuple(accepted_tags),
        previous=tuple(previous),
    )


def locked(facts: WheelFacts, *, sha256: str | None = None) -> LockedPackage:
    """The package of a lock that was made of these facts."""
    return LockedPackage(
        name=facts.name,
        version=facts.version,
        index="default",
        file=facts.filename,
        size=facts.size,
        sha256=sha256 or facts.sha256,
        tree=facts.tree,
        hooks=tuple(LockedHook(path=hook.path, sha256=hook.sha256, code=hook.code) for hook in facts.hooks),
    )


def waiver(check: str, package: str, *, path: str = "", owner: str = "") -> Waiver:
    """A waiver with some reason."""
    return Waiver(check=check, package=package, path=path, owner=owner, reason="looked at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a check's table: what the check finds in a closure."""

    check: str
    case: str
    """What is special about the closure, in words."""

    closure: Closure
    severity: Severity | None
    """None if the check finds nothing."""

    message: str = ""
    """Exact; empty if only the severity counts."""

    def __str__(self) -> str:
        return f"{self.check}: {self.case}"

    def findings(self) -> tuple[Finding, ...]:
        """What the check finds, waived findings left out."""
        return tuple(finding for finding in run_checks(self.closure).findings if finding.check == self.check)

    def verify(self) -> None:
        """Assert that the check finds this and nothing else.

        The order of the wheels must not count, so the closure is also judged with its wheels turned round.
        """
        found = self.findings()
        if self.severity is None:
            assert found == ()
        else:
            assert [finding.severity for finding in found] == [self.severity]
            if self.message:
                assert found[0].message == self.message
        turned = replace(self, closure=replace(self.closure, wheels=self.closure.wheels[::-1]))
        assert turned.findings() == found


def passes(check: str, case: str, closure: Closure) -> Row:
    """A row in which the check finds nothing."""
    return Row(check=check, case=case, closure=closure, severity=None)


def fails(check: str, case: str, closure: Closure, severity: Severity, message: str = "") -> Row:
    """A row in which the check finds one thing."""
    return Row(check=check, case=case, closure=closure, severity=severity, message=message)


def _requirement(text: str) -> Requirement:
    parsed = ParsedRequirement(text)
    return Requirement(
        name=normalise_name(parsed.name),
        specifier=str(parsed.specifier),
        extras=tuple(sorted(normalise_name(extra) for extra in parsed.extras)),
    )
