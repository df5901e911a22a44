#include "pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <pthread.h>
#include <unistd.h>
#endif

namespace fastdata {
namespace {

struct Call {
    int64_t count;
    const std::function<void(int64_t)> &work;
    std::atomic<int64_t> next{0};
    int workers = 0; // threads inside `help`; guarded by Shared::mutex

    bool is_taken() const { return next.load(std::memory_order_relaxed) >= count; }

    // Works until every item is taken.
    void help() {
        for (int64_t item = next++; item < count; item = next++)
            work(item);
    }
};

} // namespace

struct Pool::Shared {
    const int owner = static_cast<int>(getpid());
    std::mutex mutex;
    std::condition_variable arrived, finished;
    std::deque<Call *> calls; // with items nobody has taken
    int callers = 0;          // inside run()
    bool closing = false;
    std::vector<std::thread> threads;

    explicit Shared(int count) {
        threads.reserve(static_cast<size_t>(count));
        try {
            for (int i = 0; i < count; ++i)
                threads.emplace_back([this] { serve(); });
        } catch (const std::system_error &) { // the system allows no more; fewer do the same work
            if (threads.empty())
                throw;
        }
    }

    ~Shared() {
        {
            std::unique_lock lock(mutex);
            finished.wait(lock, [this] { return callers == 0; });
            closing = true;
        }
        arrived.notify_all();
        for (std::thread &thread : threads)
            thread.join();
    }

    void serve() {
#if defined(__linux__)
        pthread_setname_np(pthread_self(), "fastdata-core");
#endif
        std::unique_lock lock(mutex);
        for (;;) {
            arrived.wait(lock, [this] { return closing || !calls.empty(); });
            if (calls.empty())
                return;
            Call &call = *calls.front();
            ++call.workers;
            lock.unlock();
            call.help();
            lock.lock();
            if (!calls.empty() && calls.front() == &call)
                calls.pop_front(); // nothing of it is left to take
            if (--call.workers == 0)
                finished.notify_all();
        }
    }

    void run(Call &call) {
        std::unique_lock lock(mutex);
        calls.push_back(&call);
        ++callers;
        arrived.notify_all();
        finished.wait(lock, [&call] { return call.is_taken() && call.workers == 0; });
        --callers;
        finished.notify_all(); // the destructor may be waiting
    }
};

Pool::Pool(int threads) : threads_(threads) {}

Pool::~Pool() {
    if (shared_ != nullptr && shared_->owner != static_cast<int>(getpid()))
        shared_.release(); // NOLINT: the child has no such threads to join, and a locked mutex cannot be freed
}

Pool::Shared &Pool::shared() {
    static std::mutex creation;
    const std::lock_guard lock(creation);
    if (shared_ != nullptr && shared_->owner != static_cast<int>(getpid()))
        (void)shared_.release();
    if (shared_ == nullptr)
        shared_ = std::make_unique<Shared>(threads_);
    return *shared_;
}

void Pool::run(int64_t count, const std::function<void(int64_t)> &work) {
    if (count <= 0)
        return;
    if (threads_ <= 0 || count == 1) {
        for (int64_t item = 0; item < count; ++item)
            work(item);
        return;
    }
    Call call{count, work};
    shared().run(call);
}

} // namespace fastdata
