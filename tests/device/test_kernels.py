"""The kernels that decode on a GPU: run by Triton's interpreter, and compiled for GPUs that are not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="torch has no Triton here")

INTERPRETED = Path(__file__).parents[1] / "interpreted"

BYTES, WORDS, HALVES, TABLE, FLOATS = "*u8", "*i32", "*i16", "*i64", "*fp32"
STRIDES = {f"stride_{axis}": "i32" for axis in "ncyx"}
FLOAT_BATCH = {"out": FLOATS, "levels": FLOATS, **STRIDES, "HAS_LEVELS": True, "PIXELS": 512}
LEVELS = {"out": BYTES, "levels": BYTES, **STRIDES, "HAS_LEVELS": False, "PIXELS": 512}
EFFECTS = {"words": WORDS, "table": TABLE}
SIGNATURES: dict[str, dict[str, Any]] = {
    "unpack": {"arena": BYTES, "words": WORDS, "table": TABLE, "coefficients": HALVES, "wrong": WORDS},
    "huffman": {
        "arena": BYTES,
        "words": WORDS,
        "halves": HALVES,
        "table": TABLE,
        "zigzag": WORDS,
        "coefficients": HALVES,
        "wrong": WORDS,
        "LANES": 32,
    },
    "idct": {"words": WORDS, "table": TABLE, "coefficients": HALVES, "samples": BYTES, "BLOCKS": 32},
    "to_rgb": {"words": WORDS, "table": TABLE, "samples": BYTES, "pixels": BYTES, "PIXELS": 512},
    "resample": {"words": WORDS, "table": TABLE, "source": BYTES, "canvas": BYTES, **LEVELS, "LAST": False},
    "resample to floats": {
        "words": WORDS,
        "table": TABLE,
        "source": BYTES,
        "canvas": BYTES,
        **FLOAT_BATCH,
        "LAST": True,
    },
    "resample to levels": {"words": WORDS, "table": TABLE, "source": BYTES, "canvas": BYTES, **LEVELS, "LAST": True},
    "measure": {
        **EFFECTS,
        "floats": FLOATS,
        "canvas": BYTES,
        "counts": WORDS,
        "sums": FLOATS,
        "number": "i32",
        "PIXELS": 512,
    },
    "tabulate": {**EFFECTS, "counts": WORDS, "tables": BYTES, "number": "i32"},
    "change": {
        **EFFECTS,
        "arena": BYTES,
        "floats": FLOATS,
        "doubles": "*fp64",
        "source": BYTES,
        "sums": FLOATS,
        "out": BYTES,
        "tables": BYTES,
        "number": "i32",
        "PIXELS": 512,
    },
    "store": {**EFFECTS, "first_canvas": BYTES, "other_canvas": BYTES, **FLOAT_BATCH},
    "copy_rows": {"arena": BYTES, "table": TABLE, **FLOAT_BATCH, "width": "i32", "height": "i32"},
}


@pytest.mark.parametrize("file", sorted(file.name for file in INTERPRETED.glob("test_*.py")))
def test_interpreted(file: str) -> None:
    """Triton decides when it is imported whether it interprets, so these tests have a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(INTERPRETED / file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert re.search(r"\d+ passed", ended.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for CUDA is for Linux")
@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_and_spill_nothing(name: str, capability: int, tmp_path: Path) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fastdata.device import decode_kernels, effect_kernels

    kernel = getattr(effect_kernels if name in effect_kernels.__all__ else decode_kernels, name.split()[0])
    given = SIGNATURES[name]
    source = ASTSource(
        fn=kernel,
        signature={each: given[each] if isinstance(given[each], str) else "constexpr" for each in kernel.arg_names},
        constexprs={each: value for each, value in given.items() if not isinstance(value, str)},
    )
    options = {"num_warps": 1 if name == "huffman" else 4, "enable_fp_fusion": name not in effect_kernels.__all__}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assembly = tmp_path / "kernel.ptx"
    assembly.write_text(compiled.asm["ptx"])
    assembler = next(Path(triton.__file__).parent.rglob("ptxas"))
    target = re.search(r"\.target (\w+)", compiled.asm["ptx"])
    assert target is not None
    command = [str(assembler), "-v", f"--gpu-name={target[1]}", str(assembly), "-o", str(tmp_path / "kernel")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    spilled = re.findall(r"(\d+) bytes spill", told.stdout + told.stderr)
    assert spilled
    assert set(spilled) == {"0"}
