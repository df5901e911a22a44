// Exercises the pool for ThreadSanitizer: many callers, large and small calls, creation and destruction, fork.
#include "fastdata_native.h"

#include "pool.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

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

// Results are written by the pool's threads and read here without another lock.
void what_threads_wrote_is_seen() {
    fd_pool *pool = fd_pool_create(4);
    const std::vector<const char *> paths(64, "/nonexistent");
    std::vector<int32_t> sizes(128), statuses(64);
    std::vector<char> messages(64 * FD_MESSAGE_BYTES);
    for (int i = 0; i < 50; ++i) {
        fd_files *files =
            fd_files_read(pool, 64, paths.data(), nullptr, nullptr, sizes.data(), statuses.data(), messages.data());
        for (const int32_t status : statuses)
            expect(status == FD_UNREADABLE, "a missing file is unreadable");
        fd_files_free(files);
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
#endif

} // namespace

int main() {
    many_callers_share_a_pool();
    pools_come_and_go();
    what_threads_wrote_is_seen();
#if !defined(__SANITIZE_THREAD__)
    a_child_gets_threads_of_its_own();
#endif
    std::puts("pool_test: passed");
}
