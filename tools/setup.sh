#!/usr/bin/env bash
# Makes or updates .venv with fastdata and everything the tests and the demonstration need.
# Sourced by demo.sh, test.sh and build_wheel.sh.  Set FASTDATA_PYTHON to use another interpreter than python3,
# FASTDATA_EXTRA=dev-core to leave out DALI, Ray, Lightning, transformers and the like, and FASTDATA_WITH to requirements
# that are installed as well, for example "torch==2.6.*".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON="${FASTDATA_PYTHON:-python3}"
EXTRA="${FASTDATA_EXTRA:-dev}"

# ---- system packages: python3 with venv, the TurboJPEG library, and what the native core is built with

as_root() { # runs a command as root, if that is allowed without a password
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_be_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

has_turbojpeg() { ldconfig -p 2>/dev/null | grep -q 'libturbojpeg\.so' || [ "$(uname)" = Darwin ]; }

has_compiler() { command -v "${CXX:-c++}" >/dev/null; }

has_jpeg_headers() { printf '#include <stdio.h>\n#include <jpeglib.h>\n' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1; }

has_deflate_headers() { printf '#include <libdeflate.h>\n' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1; }

install_system_package() { # the first of several names that the package index knows
    command -v apt-get >/dev/null || return 1
    may_be_root || return 1
    as_root apt-get update -qq >/dev/null 2>&1 || true
    for name in "$@"; do
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$name" >/dev/null 2>&1 && return 0
    done
    return 1
}

missing() { # what is missing, what to do
    echo "setup: $1 is missing and could not be installed; install it with: $2" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null || install_system_package python3 || missing "Python 3.10 or newer" "apt-get install python3 python3-venv"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || missing "Python 3.10 or newer ($("$PYTHON" -V) is here)" "apt-get install python3 python3-venv, or set FASTDATA_PYTHON to a newer interpreter"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_system_package python3-venv || missing "Python's venv module" "apt-get install python3-venv"
has_turbojpeg || install_system_package libturbojpeg0 libturbojpeg || missing "the TurboJPEG library" "apt-get install libturbojpeg0 (Debian) or libturbojpeg (Ubuntu)"

# Without these the package still works, with the other backends.
without_native() { # what is missing, what to do
    [ "${FASTDATA_REQUIRE_NATIVE:-0}" != 1 ] || missing "$@"
    echo "setup: $1 is missing, so the native backend, or a part of it, is not built; install it with: $2" >&2
}
has_compiler || install_system_package g++ || without_native "a C++ compiler" "apt-get install g++"
has_jpeg_headers || install_system_package libjpeg-dev || without_native "libjpeg-turbo's headers" "apt-get install libjpeg-dev"
has_deflate_headers || install_system_package libdeflate-dev || without_native "libdeflate's headers (for PNGs in the native backend)" "apt-get install libdeflate-dev"

# ---- the virtual environment, updated only when what it is made from has changed

stamp="$("$PYTHON" -V) $EXTRA ${FASTDATA_WITH:-} $({ cat pyproject.toml fastdata/native/*.txt fastdata/native/*.h fastdata/native/*/*.* && find fastdata -name '*.py' | sort; } | cksum)"
if [ ! -x .venv/bin/python ] || [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
    echo "setup: installing into .venv (a few minutes the first time)"
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$EXTRA]" ${FASTDATA_WITH:-}
    echo "$stamp" >.venv/stamp
fi
