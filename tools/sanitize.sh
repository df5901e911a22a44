#!/usr/bin/env bash
# Builds the native core with AddressSanitizer and UndefinedBehaviorSanitizer and runs its tests and some rounds with
# damaged JPEGs, then its pool under ThreadSanitizer, and once without any: a busy process that forks may leave a
# sanitizer's own locks locked in the child.  Part of tools/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build() { # folder, sanitizers, target
    .venv/bin/cmake -S fastdata/native -B "build/$1" -DFASTDATA_SANITIZE="$2" -DFASTDATA_TESTS=ON -DFASTDATA_WERROR=ON >/dev/null
    .venv/bin/cmake --build "build/$1" --parallel --target "$3" >/dev/null
}

# Python itself is not built with the sanitizer, so it is loaded first; what Python leaks at exit is not ours.
library() { "${CXX:-c++}" -print-file-name="$1"; }
build sanitize-address address,undefined all
preload="$(library libasan.so):$(library libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0
build/sanitize-address/pool_test
build/sanitize-address/kernels_test
LD_PRELOAD="$preload" FASTDATA_NATIVE_LIBRARY="$PWD/build/sanitize-address/libfastdata_native.so" \
    .venv/bin/python -m pytest -q -p no:cacheprovider -m "not bounded_memory" tests/native
LD_PRELOAD="$preload" FASTDATA_NATIVE_LIBRARY="$PWD/build/sanitize-address/libfastdata_native.so" \
    .venv/bin/python tests/faults/long.py jpeg_windows --rounds 400

build sanitize-thread thread pool_test
build/sanitize-thread/pool_test
build sanitize-none "" pool_test
build/sanitize-none/pool_test
