#!/usr/bin/env bash
# Makes a folder with all that gpu_check.py needs on a machine with a GPU and torch, but without network, compiler and
# system libraries:
#
#   bash tools/gpu_bundle.sh FOLDER              then, over there:  bash FOLDER/check.sh --out RESULTS
#   PYTHON_VERSION=3.11 bash tools/gpu_bundle.sh FOLDER [IMAGES]   for another Python; with images of your own, by class
#
# FOLDER is at most 60 MB.  With BUNDLE_DALI=1, FOLDER-dali holds NVIDIA DALI's wheels in parts of 50 MB beside it; put
# it beside FOLDER over there, and check.sh joins and installs them.
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "gpu_bundle: expected FOLDER [IMAGES]" >&2; exit 2; }
bundle="$(mkdir -p "$1" && cd "$1" && pwd)"
images="${2:+$(cd "$2" && pwd)}"
version="${PYTHON_VERSION:-3.12}"
[ -z "$(ls -A "$bundle")" ] || { echo "gpu_bundle: $bundle is not empty; name a new folder" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/build_wheel.sh
mkdir "$bundle/wheels" "$bundle/tools" "$bundle/tests"
cp "$(ls -t dist/torch_fastdata-*.whl | head -n 1)" "$bundle/wheels"
download() { # folder, requirements: wheels for the other machine, with what they need, except for torch
    folder="$1"
    shift
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$folder" \
        --python-version "$version" --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "$@"
}
download "$bundle/wheels" google-crc32c numpy Pillow psutil pytest pytest-timeout hypothesis
cp tools/gpu_*.py "$bundle/tools"
cp -r tests/conftest.py tests/helpers tests/gpu "$bundle/tests"
find "$bundle" -name __pycache__ -prune -exec rm -rf {} +
cp pyproject.toml "$bundle" # pytest's settings
if [ -n "$images" ]; then
    cp -r "$images" "$bundle/images"
else
    .venv/bin/python - "$bundle/images" <<'PYTHON'
import sys
from fastdata.testing import synthetic_dataset

synthetic_dataset(sys.argv[1], classes=8, images_per_class=64, size_px=(500, 375))
PYTHON
fi

cat >"$bundle/check.sh" <<'CHECK'
#!/usr/bin/env bash
# bash check.sh --out RESULTS [other options of gpu_check.py]; PYTHON names the interpreter that has torch.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
if [ ! -e "$here/site/complete" ]; then # what torch's environment has already is not replaced
    rm -rf "$here/site"
    if [ -d "$here-dali" ]; then
        for first in "$here-dali"/*.part-aa; do
            cat "${first%aa}"* >"$here/wheels/$(basename "${first%.part-aa}")"
        done
    fi
    missing="$("$python" - "$here/wheels" <<'PYTHON'
import importlib.metadata, pathlib, sys

def is_missing(wheel):
    try:
        importlib.metadata.version(wheel.name.split("-")[0].replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return True
    return wheel.name.startswith("torch_fastdata")

print("\n".join(str(wheel) for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")) if is_missing(wheel)))
PYTHON
)"
    mapfile -t wheels <<<"$missing"
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$here/site" "${wheels[@]}"
    touch "$here/site/complete"
fi
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$here/tools/gpu_check.py" --images "$here/images" "$@"
CHECK

if [ "${BUNDLE_DALI:-0}" = 1 ]; then
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    download "$work" nvidia-dali-cuda120
    rm -f "$work"/numpy-*.whl "$work"/packaging-*.whl
    rm -rf "$bundle-dali"
    mkdir "$bundle-dali"
    for wheel in "$work"/*.whl; do
        split --bytes 50M "$wheel" "$bundle-dali/$(basename "$wheel").part-"
    done
fi

size_mb="$(du --summarize --block-size=1M --apparent-size "$bundle" | cut -f 1)"
[ "$size_mb" -le 60 ] || { echo "gpu_bundle: $bundle has $size_mb MB, more than 60: take fewer images" >&2; exit 1; }
echo "made: $bundle, $size_mb MB, for Python $version"
