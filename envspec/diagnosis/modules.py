"""Whose module is it: names of modules and of the projects that publish them.

Most projects publish a module of their own name. The others that are met in venvs for GPUs stand here, each as its wheel shows.
"""

from __future__ import annotations

from envspec.forms import normalise_name

PROJECTS = {
    "OpenSSL": ("pyopenssl",),
    "PIL": ("pillow",),
    "_cffi_backend": ("cffi",),
    "_distutils_hack": ("setuptools",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cublas": ("nvidia-cublas",),
    "cuda": ("cuda-python", "cuda-bindings", "cuda-core"),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x"),
    "cutlass": ("nvidia-cutlass-dsl",),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"),
    "dateutil": ("python-dateutil",),
    "deep_gemm": ("sgl-deep-gemm", "deep-gemm"),
    "dns": ("dnspython",),
    "dotenv": ("python-dotenv",),
    "faiss": ("faiss-cpu", "faiss-gpu"),
    "flash_attn": ("flash-attn",),
    "flash_mla": ("sgl-flash-mla", "flash-mla"),
    "flashinfer": ("flashinfer-python",),
    "git": ("gitpython",),
    "google._upb": ("protobuf",),
    "google.protobuf": ("protobuf",),
    "grpc": ("grpcio",),
    "jose": ("python-jose",),
    "jwt": ("pyjwt",),
    "magic": ("python-magic",),
    "mpl_toolkits": ("matplotlib",),
    "msgpack": ("msgpack",),
    "multipart": ("python-multipart",),
    "openai_harmony": ("openai-harmony",),
    "pkg_resources": ("setuptools",),
    "pydantic_core": ("pydantic-core",),
    "pynvml": ("nvidia-ml-py", "pynvml"),
    "serial": ("pyserial",),
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "socks": ("pysocks",),
    "soundfile": ("soundfile",),
    "tvm_ffi": ("apache-tvm-ffi",),
    "typing_extensions": ("typing-extensions",),
    "usb": ("pyusb",),
    "websocket": ("websocket-client",),
    "win32api": ("pywin32",),
    "xgrammar": ("xgrammar",),
    "yaml": ("pyyaml",),
    "zmq": ("pyzmq",),
}
"""Module -> projects that publish it, the usual one first."""


def projects_of(module: str) -> tuple[str, ...]:
    """The projects that are known to publish a module, the usual one first; one of the module's name if none is known.

    Args:
        module: With dots or without; the longest known beginning counts.
    """
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        known = PROJECTS.get(".".join(parts[:count]))
        if known:
            return known
    return (normalise_name(parts[0]),)


def is_known(module: str) -> bool:
    """Whether it is written here who publishes a module; if not, its name is all that there is to go by.

    Args:
        module: With dots or without.
    """
    parts = module.split(".")
    return any(".".join(parts[:count]) in PROJECTS for count in range(len(parts), 0, -1))


def modules_of(project: str) -> tuple[str, ...]:
    """The modules by which a project is imported, as far as its name says.

    Args:
        project: Normalised name.
    """
    known = tuple(module for module, projects in PROJECTS.items() if project in projects)
    return known or (project.replace("-", "_"),)
