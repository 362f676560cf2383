"""`bundled-cuda`; the harmless part of the public report C32."""

from __future__ import annotations

import pytest

from tests.support.facts import Row, fails, make_binary, make_closure, make_facts, passes

ROWS = (
    passes(
        "bundled-cuda",
        "NVIDIA's own wheel",
        make_closure(
            [make_facts("nvidia-cuda-runtime", "13.0.96", binaries=[make_binary("nvidia/cu13/lib/libcudart.so.13")])]
        ),
    ),
    passes(
        "bundled-cuda",
        "libraries that are not CUDA's",
        make_closure([make_facts("demo", binaries=[make_binary("demo.libs/libpng16.8dd2b5e6.so.16")])]),
    ),
    fails(
        "bundled-cuda",
        "copies under a name with a digest",
        make_closure(
            [
                make_facts(
                    "torchvision",
                    "0.26.0",
                    binaries=[
                        make_binary("torchvision.libs/libcudart.8d5f5b7b.so.13"),
                        make_binary("torchvision.libs/libjpeg.0123abcd.so.8"),
                    ],
                )
            ]
        ),
        "info",
        "torchvision 0.26.0 brings 1 library of CUDA along: `torchvision.libs/libcudart.8d5f5b7b.so.13`",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()
