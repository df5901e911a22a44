// Preloaded into a process: memory that the native core and the libraries it decodes with ask for is counted, and one
// request fails, or all from one on.
//
// watch()                    finds where these libraries are, once they are loaded; how many it has found
// arm_memory(at, lasting)    the `at`th request from now on fails, or all from it on
// disarm_memory()            how many requests were counted

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <new>

namespace {

struct Range {
    uintptr_t begin, end;
};

constexpr int kMost = 8;
Range watched[kMost];
int found;
std::atomic<long> left{0}, counted{0};
std::atomic<bool> armed{false}, lasts{false};

int look(dl_phdr_info *info, size_t, void *) {
    bool is_watched = false;
    for (const char *name : {"fastdata_native", "libjpeg", "libdeflate"})
        is_watched |= std::strstr(info->dlpi_name, name) != nullptr;
    for (int i = 0; is_watched && i < info->dlpi_phnum && found < kMost; i++) {
        const auto &header = info->dlpi_phdr[i];
        if (header.p_type == PT_LOAD && (header.p_flags & PF_X) != 0) {
            const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
            watched[found++] = {begin, begin + header.p_memsz};
        }
    }
    return 0;
}

bool refused(void *caller) {
    if (!armed.load())
        return false;
    const auto from = reinterpret_cast<uintptr_t>(caller);
    for (int i = 0; i < found; i++) {
        if (from < watched[i].begin || from >= watched[i].end)
            continue;
        counted++;
        const long rest = left.fetch_sub(1);
        return rest == 1 || (rest < 1 && lasts.load());
    }
    return false;
}

} // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

int watch() {
    found = 0;
    dl_iterate_phdr(look, nullptr);
    return found;
}

void arm_memory(long at, int lasting) {
    counted = 0;
    left = at;
    lasts = lasting != 0;
    armed = true;
}

long disarm_memory() {
    armed = false;
    return counted;
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) noexcept {
    return refused(CALLER) ? (errno = ENOMEM, nullptr) : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) noexcept {
    return refused(CALLER) ? (errno = ENOMEM, nullptr) : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) noexcept {
    return refused(CALLER) ? (errno = ENOMEM, nullptr) : __libc_realloc(memory, size);
}

} // extern "C"

static void *given(void *memory) {
    if (memory == nullptr)
        throw std::bad_alloc();
    return memory;
}

void *operator new(size_t size) { return given(refused(CALLER) ? nullptr : __libc_malloc(size ? size : 1)); }

void *operator new[](size_t size) { return given(refused(CALLER) ? nullptr : __libc_malloc(size ? size : 1)); }

void *operator new(size_t size, const std::nothrow_t &) noexcept {
    return refused(CALLER) ? nullptr : __libc_malloc(size ? size : 1);
}

void *operator new(size_t size, std::align_val_t alignment) {
    return given(refused(CALLER) ? nullptr : __libc_memalign(static_cast<size_t>(alignment), size));
}

void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, size_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, size_t, std::align_val_t) noexcept { std::free(memory); }
