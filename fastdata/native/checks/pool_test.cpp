// Exercises the pool for ThreadSanitizer: many callers, large and small calls, creation and destruction, fork, refused
// memory, calls that hang.
#include "fastdata_native.h"

#include "batch/pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {
std::atomic<int> allocations_left{-1}; // until the next is refused; negative for no limit
} // namespace

void *operator new(size_t bytes, const std::nothrow_t &) noexcept { // or it would be the sanitizer's own
    return allocations_left.fetch_sub(1) == 0 ? nullptr : std::malloc(bytes);
}
void *operator new(size_t bytes) {
    void *const memory = operator new(bytes, std::nothrow);
    if (memory == nullptr)
        throw std::bad_alloc();
    return memory;
}
void operator delete(void *memory) noexcept {
    std::free(memory);
}
void operator delete(void *memory, size_t) noexcept {
    std::free(memory);
}

namespace {

void expect(bool holds, const char *what) {
    if (holds)
        return;
    std::fprintf(stderr, "pool_test: %s\n", what);
    std::exit(1);
}

int64_t sum_with(fastdata::Pool &pool, int64_t count) {
    std::atomic<int64_t> sum{0};
    pool.run(count, [&](int64_t item) { sum += item; });
    return sum;
}

void many_callers_share_a_pool() {
    fastdata::Pool pool(3);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller)
        callers.emplace_back([&pool, caller] {
            for (int64_t count = 0; count < 200; ++count)
                expect(sum_with(pool, count + caller) == (count + caller) * (count + caller - 1) / 2,
                       "an item was left out or done twice");
        });
    for (std::thread &caller : callers)
        caller.join();
}

void pools_come_and_go() {
    for (int i = 0; i < 100; ++i) {
        fastdata::Pool pool(i % 4);
        if (i % 3 != 0)
            expect(sum_with(pool, 50) == 1225, "a new pool works");
    }
}

// Memory that is refused at any point: an exception and nothing done, or fewer threads that do all of it.
void refused_memory_leaves_a_pool_that_works() {
    int refused = 0;
    for (int allowed = 0; allowed < 40; ++allowed) {
        fastdata::Pool pool(3);
        allocations_left = allowed;
        try {
            expect(sum_with(pool, 50) == 1225, "fewer threads do the same work");
        } catch (const std::bad_alloc &) {
            ++refused;
        }
        allocations_left = -1;
        expect(sum_with(pool, 50) == 1225, "the pool works once there is memory");
    }
    expect(refused > 0, "some allocation was refused");
}

void an_abandoned_pool_holds_nobody_up() {
    auto *pool = new fastdata::Pool(2); // never freed: a call is in it
    std::mutex mutex;
    std::condition_variable changed;
    bool hangs = false, released = false;
    std::thread caller([&] {
        pool->run(8, [&](int64_t) {
            std::unique_lock lock(mutex);
            hangs = true;
            changed.notify_all();
            changed.wait(lock, [&] { return released; });
        });
    });
    {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return hangs; });
    }
    pool->abandon(); // returns, though the call does not
    {
        const std::lock_guard lock(mutex);
        released = true;
    }
    changed.notify_all();
    caller.join();
}

// Results are written by the pool's threads and read here without another lock.
void what_threads_wrote_is_seen() {
    fd_pool *pool = fd_pool_create(4);
    std::string paths;
    for (int i = 0; i < 64; ++i)
        paths.append("/nonexistent").push_back('\0');
    std::vector<int64_t> numbers(64), sizes(64);
    std::vector<int32_t> statuses(64);
    std::vector<char> messages(64 * FD_MESSAGE_BYTES);
    std::vector<uint8_t> pixels(3);
    std::vector<void *> out(64, pixels.data());
    const fd_geometry geometry = {nullptr, 0, {0, 0}};
    const fd_format format = {FD_NHWC, FD_UINT8, 3, nullptr, {0, 0}};
    const fd_options options = {FD_SHRINK_FIRST, 0, 1, 1, 1, 1};
    for (int i = 0; i < 50; ++i) {
        fd_recipes recipes = {.count = 64,
                              .paths = paths.data(),
                              .paths_bytes = static_cast<int64_t>(paths.size()),
                              .indices = numbers.data(),
                              .occurrences = numbers.data(),
                              .out_size_px = {1, 1},
                              .out = out.data(),
                              .statuses = statuses.data(),
                              .messages = messages.data(),
                              .read_bytes = sizes.data()};
        fd_fill(pool, &recipes, &geometry, &format, &options);
        for (const int32_t status : statuses)
            expect(status == FD_UNREADABLE, "a missing file is unreadable");
    }
    fd_pool_destroy(pool);
}

#if !defined(__SANITIZE_THREAD__) // which does not follow threads that start after a fork
void a_child_gets_threads_of_its_own() {
    auto *pool = new fastdata::Pool(2);
    expect(sum_with(*pool, 100) == 4950, "the parent's pool works");
    const pid_t child = fork();
    if (child == 0) {
        const bool works = sum_with(*pool, 100) == 4950;
        delete pool;
        _exit(works ? 0 : 1);
    }
    int status = 0;
    expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "the child's pool works and is destroyed");
    expect(sum_with(*pool, 100) == 4950, "the parent's pool still works");
    delete pool;
}

#if !defined(__SANITIZE_ADDRESS__) // whose own allocator may be locked in the child for good
// Another thread may be anywhere inside run() when the process forks; what it holds is never given back in the child.
void a_child_waits_for_no_lock_of_its_parent() {
    auto *pool = new fastdata::Pool(2);
    std::atomic<bool> stop{false};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([&] {
            while (!stop)
                sum_with(*pool, 2);
        });
    for (int i = 0; i < 200; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(100); // a deadlock ends here
            _exit(sum_with(*pool, 100) == 4950 ? 0 : 1);
        }
        int status = 0;
        expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
               "the child of a busy parent works");
    }
    stop = true;
    for (std::thread &caller : callers)
        caller.join();
    delete pool;
}
#endif
#endif

} // namespace

int main() {
    many_callers_share_a_pool();
    pools_come_and_go();
    refused_memory_leaves_a_pool_that_works();
    an_abandoned_pool_holds_nobody_up();
    what_threads_wrote_is_seen();
#if !defined(__SANITIZE_THREAD__)
    a_child_gets_threads_of_its_own();
#if !defined(__SANITIZE_ADDRESS__)
    a_child_waits_for_no_lock_of_its_parent();
#endif
#endif
    std::puts("pool_test: passed");
}
