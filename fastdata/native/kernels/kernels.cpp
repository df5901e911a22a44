#include "kernels/kernels.h"

#include "base/processor.h"

#include <array>
#include <atomic>
#include <cstring>

namespace fastdata {
namespace {

bool processor_has(const Kernels &set) {
#if defined(FASTDATA_AVX2)
    if (&set == &kAvx2Kernels)
        return has_avx2_and_fma();
#endif
    (void)set;
    return true;
}

// Fastest first.
constexpr std::array kSets = {
#if defined(FASTDATA_AVX2)
    &kAvx2Kernels,
#endif
#if defined(FASTDATA_NEON)
    &kNeonKernels,
#endif
    &kPlainKernels,
};

const Kernels *fastest() {
    for (const Kernels *set : kSets)
        if (processor_has(*set))
            return set;
    return &kPlainKernels;
}

std::atomic<const Kernels *> chosen{nullptr};

} // namespace

bool choose_kernels(const char *name) {
    for (const Kernels *set : kSets)
        if (processor_has(*set) && std::strcmp(set->name, name) == 0) {
            chosen.store(set, std::memory_order_relaxed);
            return true;
        }
    return false;
}

const Kernels &kernels() {
    const Kernels *set = chosen.load(std::memory_order_relaxed);
    if (set == nullptr) {
        set = fastest();
        chosen.store(set, std::memory_order_relaxed);
    }
    return *set;
}

} // namespace fastdata
