"""What holds for every venv: a diagnosis never raises, the order of what was seen does not matter, and nothing hostile is shown as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envspec.binaries import Binary, BinaryFacts, Label, Reference
from envspec.diagnosis.diagnose import diagnose
from envspec.diagnosis.text import render
from envspec.facts import StartupHook
from envspec.observed import (
    Observation,
    ObservedDistribution,
    ObservedFile,
    ObservedPython,
    PathEntry,
    observation_from_json,
    observation_to_json,
)
from envspec.traced import Frame, Raised, Traced
from tests.envspec.diagnosis.test_diagnosis_cases import CASES
from tests.support.observations import SITE, distribution, failed_run, file, make_observation, raised

if TYPE_CHECKING:
    from tests.envspec.diagnosis.test_diagnosis_cases import Case

NAMES = st.sampled_from(["torch", "torchvision", "sgl", "nvidia-cuda-runtime", "a", "~orch", "", "no name"])
PATHS = st.sampled_from(
    [
        *(f"{SITE}/{path}" for path in ("torch/__init__.py", "torch/version.py", "torch/lib/libc10.so", "a.py", "a/b.so", "zz.pth")),
        *("bin/serve", "bin/activate", "pyvenv.cfg", "bin/python", "/etc/passwd", "share/x", "odd", f"{SITE}/torch-1.dist-info/METADATA"),
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "2.11.0",
            "2.9.1+cu128",
            "not a version",
            "13.0",
            "3.12",
            "libcudart.so.12",
            "a" * 600,
            "\x1b[2J\n",
            "1" * 5000,
        ]
    ),
)
DIGESTS = st.sampled_from(["", "a" * 64, "b" * 64])
REQUIREMENTS = st.one_of(
    st.sampled_from(
        [
            "torch==2.9.1",
            "torch",
            "sgl[all]>=1; python_version > '3'",
            "broken ==",
            "x @ https://u:p@h/x.whl",
            "a; extra == 'b'",
        ]
    ),
    TEXTS,
)
FILES = st.builds(
    ObservedFile,
    path=PATHS,
    kind=st.sampled_from(["file", "link", "missing", "other", "unreadable"]),
    size=st.integers(-1, 1 << 40),
    sha256=DIGESTS,
    executable=st.booleans(),
    recorded=DIGESTS,
    recorded_size=st.integers(-1, 10),
    mtime_ns=st.integers(0, 10),
    links=st.integers(0, 3),
    target=TEXTS,
)
REFERENCES = st.builds(
    Reference,
    name=st.sampled_from(["_ZN3c104cuda1xEi", "PyInit_a", "cuInit", "memcpy"]),
    weak=st.booleans(),
    version=st.sampled_from(["", "GLIBC_2.99"]),
    library=st.sampled_from(["", "libc.so.6"]),
)
BINARIES = st.builds(
    Binary,
    path=PATHS,
    machine=st.sampled_from(["x86_64", "aarch64", "cuda", ""]),
    kind=st.sampled_from(["shared", "executable", "relocatable"]),
    damage=st.sampled_from(["", "cut off"]),
    soname=st.sampled_from(["", "libc10.so", "libcudart.so.13"]),
    needed=st.lists(
        st.sampled_from(["libc10.so", "libcudart.so.12", "libcudart.so.13", "libnuma.so.1", "$ORIGIN/x.so"]), max_size=3
    ).map(tuple),
    runpath=st.sampled_from([None, "", "$ORIGIN", "/opt"]),
    undefined=st.lists(REFERENCES, max_size=2).map(tuple),
    exports=st.sampled_from(["", "PyInit_b", "cudaMalloc\ncuInit"]),
)
LABELS = st.builds(
    Label,
    path=st.sampled_from(["torch/version.py", "a/version.py", "x"]),
    key=st.sampled_from(["cuda", "__version__", ""]),
    value=TEXTS,
)
FACTS = st.builds(
    BinaryFacts, binaries=st.lists(BINARIES, max_size=3).map(tuple), labels=st.lists(LABELS, max_size=2).map(tuple)
)
HOOKS = st.builds(
    StartupHook,
    path=st.sampled_from(["zz.pth", "sitecustomize.py", "a.pth"]),
    sha256=DIGESTS,
    code=st.lists(TEXTS, max_size=2).map(tuple),
)
DISTRIBUTIONS = st.builds(
    ObservedDistribution,
    name=NAMES,
    version=TEXTS,
    folder=st.sampled_from([f"{SITE}/torch-1.dist-info", f"{SITE}/x.egg-info", ""]),
    folder_version=TEXTS,
    direct_url=TEXTS,
    requires_python=TEXTS,
    requires_dist=st.lists(REQUIREMENTS, max_size=3).map(tuple),
    wheel_tags=st.lists(
        st.sampled_from(["py3-none-any", "cp311-cp311-linux_x86_64", "odd", "a-b-", "--"]), max_size=2
    ).map(tuple),
    scripts=st.lists(st.tuples(TEXTS, TEXTS), max_size=1).map(tuple),
    top_level=st.lists(st.sampled_from(["torch", "a", "a.py", "random", ""]), max_size=2).map(tuple),
    problems=st.lists(st.sampled_from(["RECORD is missing", "METADATA has no Version", "odd"]), max_size=2).map(tuple),
    files=st.lists(FILES, max_size=5).map(tuple),
    hooks=st.lists(HOOKS, max_size=1).map(tuple),
    binaries=FACTS,
)
PYTHONS = st.builds(
    ObservedPython,
    executable=st.sampled_from(["", "/usr/bin/python3.12", "/usr/bin/python3.13"]),
    link=TEXTS,
    version=TEXTS,
    minor=st.sampled_from(["3.12", "3.9", "", "odd"]),
    home=TEXTS,
    system_site_packages=st.booleans(),
    problems=st.lists(TEXTS, max_size=1).map(tuple),
)
ENTRIES = st.builds(
    PathEntry,
    path=st.sampled_from(["/jobs", "/srv/venv/lib/python3.12/site-packages", ""]),
    source=st.sampled_from(["PYTHONPATH", "venv", "standard library", "pth x"]),
    exists=st.booleans(),
    inside=st.booleans(),
    modules=st.lists(st.sampled_from(["torch", "random", "a"]), max_size=2).map(tuple),
)
VALUES: Any = st.one_of(
    st.none(), TEXTS, st.integers(), st.lists(st.one_of(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=2)
)
OBSERVATIONS = st.builds(
    Observation,
    prefix=st.sampled_from(["/srv/venv", "/", "", "/a\x1bb"]),
    python=PYTHONS,
    distributions=st.lists(DISTRIBUTIONS, max_size=4).map(tuple),
    strays=st.lists(FILES, max_size=4).map(tuple),
    stray_binaries=FACTS,
    stray_hooks=st.lists(HOOKS, max_size=2).map(tuple),
    path=st.lists(ENTRIES, max_size=3).map(tuple),
    environ=st.dictionaries(
        st.sampled_from(["LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "CUDA_HOME", "TRITON_PTXAS_PATH"]),
        TEXTS,
        max_size=3,
    ),
    libraries=st.dictionaries(
        st.sampled_from(["libcudart.so.12", "libc.so.6", "libstdc++.so.6"]),
        st.sampled_from(["/decoy/x", "relative", ""]),
        max_size=3,
    ),
    host=st.dictionaries(st.sampled_from(["glibc", "driver", "gpus", "machine", "hostname"]), VALUES, max_size=4),
    locked=st.sampled_from([{}, {"env": "x", "name": "y"}]),
    notes=st.lists(TEXTS, max_size=1).map(tuple),
    texts=st.dictionaries(PATHS, st.one_of(TEXTS, st.just("#!/srv/old/bin/python\n")), max_size=2),
)
FRAMES = st.builds(
    Frame,
    file=st.one_of(
        PATHS.map(lambda path: f"/srv/venv/{path}"),
        st.sampled_from(["<frozen importlib._bootstrap>", "", "/jobs/torch.py"]),
    ),
    line=st.integers(0, 9),
    function=TEXTS,
    module=TEXTS,
)
MESSAGES = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            "No module named 'torch.x'",
            "libcudart.so.12: cannot open shared object file",
            "/srv/venv/lib/x.so: undefined symbol: _ZN3c10",
            "operator torchvision::nms does not exist",
            "cannot import name 'a' from 'torch' (x)",
            "module 'random' has no attribute 'x'",
        ]
    ),
)
RAISES = st.builds(
    Raised,
    type=st.sampled_from(["ModuleNotFoundError", "OSError", "", "x.y"]),
    message=MESSAGES,
    name=st.sampled_from(["", "torch", "a.b", "distutils"]),
    path=TEXTS,
    frames=st.lists(FRAMES, max_size=3).map(tuple),
    importing=st.lists(st.sampled_from(["torch", "a.b", ""]), max_size=2).map(tuple),
)
RUNS = st.builds(
    Traced,
    target=TEXTS,
    ending=st.sampled_from(["ok", "exception", "exit", "crash", "timeout", "not started"]),
    detail=TEXTS,
    chain=st.lists(RAISES, max_size=3).map(tuple),
    swallowed=st.lists(RAISES, max_size=3).map(tuple),
    messages=st.lists(MESSAGES, max_size=2).map(tuple),
    modules=st.lists(st.tuples(st.sampled_from(["torch", "random", "a"]), TEXTS), max_size=2).map(tuple),
    mapped=st.lists(st.sampled_from(["/decoy/libcudart.so.12", "/srv/venv/x.so"]), max_size=2).map(tuple),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(observation=OBSERVATIONS, traced=st.one_of(st.none(), RUNS))
def test_diagnosis_never_raises_and_is_fit_to_be_shown(observation: Observation, traced: Traced | None) -> None:
    diagnosis = diagnose(observation, traced)
    lines = render(diagnosis)
    assert all(line.isprintable() for line in lines)
    assert all(cause.message.isprintable() for cause in diagnosis.causes)
    assert not any("u:p@" in line for line in lines)
    if traced is not None and traced.failed:
        assert any(cause.severity == "error" for cause in diagnosis.causes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_order_of_what_was_seen_does_not_matter(case: Case) -> None:
    seen = case.observation
    turned = replace(
        seen,
        distributions=tuple(replace(each, files=each.files[::-1]) for each in seen.distributions[::-1]),
        strays=seen.strays[::-1],
        stray_hooks=seen.stray_hooks[::-1],
    )
    assert replace(case, observation=turned).diagnose() == case.diagnose()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_diagnosis_survives_the_wire(case: Case) -> None:
    again = observation_from_json(observation_to_json(case.observation))
    assert replace(case, observation=again).diagnose() == case.diagnose()


def test_hostile_names_are_shown_as_text() -> None:
    evil = "a\x1b[2J\n\u202eb"
    observation = make_observation(
        distribution("sgl", requires=[f"x @ https://user:secret@host/{evil}", "missing"], more=[file(f"{evil}.py", kind="missing")]),
        strays=[file(f"{evil}/x.so", recorded=None)],
        environ={"PYTHONHOME": evil},
        texts={f"bin/{evil}": "#!/srv/old/bin/python\n"},
        prefix=f"/srv/{evil}",
    )  # fmt: skip
    traced = failed_run("sgl", raised("OSError", f"{evil}: cannot open", f"{evil}.py"), messages=[evil])
    for run in (None, traced):
        diagnosis = diagnose(observation, run)
        text = render(diagnosis)
        assert all(line.isprintable() for line in text)
        assert "secret" not in "".join(text)
        for cause in diagnosis.causes:
            shown = [cause.message, *cause.evidence, *cause.follows, *([cause.fix.line()] if cause.fix else [])]
            assert all(line.isprintable() for line in shown)
            assert not any("secret" in line for line in shown)
