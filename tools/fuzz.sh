#!/usr/bin/env bash
# Fuzzes the native core under AddressSanitizer and UndefinedBehaviorSanitizer, each of three targets for so long:
# bash tools/fuzz.sh [SECONDS] (default 150).  Needs clang.  New inputs are kept in build/fuzz, where the next run goes on.
# An input that fails is in build/fuzz/found: put it into tests/faults/seeds, and every later run begins with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds="${1:-150}"
command -v clang++ >/dev/null || {
    echo "fuzz: clang++ is missing; install it with: apt-get install clang" >&2
    exit 1
}

.venv/bin/cmake -S fastdata/native -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DFASTDATA_FUZZ=ON >/dev/null
.venv/bin/cmake --build build/fuzz --parallel --target fuzz fuzz_pixels fuzz_records >/dev/null
mkdir -p build/fuzz/found
known=()
[ ! -d tests/faults/seeds ] || known=(tests/faults/seeds)
for target in fuzz fuzz_pixels fuzz_records; do
    corpus="build/fuzz/corpus-$target"
    records=()
    [ "$target" != fuzz_records ] || records=(--records)
    mkdir -p "$corpus"
    # Any bytes are pixels; the others begin with images.
    [ "$target" = fuzz_pixels ] || .venv/bin/python tests/helpers/make_corpus.py "$corpus" "${records[@]}"
    build/fuzz/$target -max_total_time="$seconds" -max_len=8192 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix=build/fuzz/found/ "$corpus" "${known[@]}" 2>&1 |
        { grep -E "number_of_executed_units|ERROR|SUMMARY|Test unit written" || true; } # pipefail has the fuzzer's verdict
done
