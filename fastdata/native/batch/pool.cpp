#include "batch/pool.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <csignal>
#include <pthread.h>
#include <unistd.h>
#endif

namespace fastdata {
namespace {

// While it lives, threads that are started get none of the process's signals: handlers are the program's, in its own
// threads.  What a thread itself causes, such as an access to bad memory, is delivered to it all the same.
class SignalsBlocked {
#if !defined(_WIN32)
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
            sigdelset(&all, own);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

  private:
    sigset_t before_;
#endif
};

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
    std::vector<std::thread> threads; // guarded by mutex

    // Expects the mutex to be held.
    void start(int count) {
        threads.reserve(static_cast<size_t>(count));
        [[maybe_unused]] const SignalsBlocked blocked;
        try {
            while (static_cast<int>(threads.size()) < count)
                threads.emplace_back([this] { serve(); });
        } catch (...) { // no memory, or the system allows no more; fewer threads do the same work
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

    void abandon() {
        const std::lock_guard lock(mutex);
        closing = true;
        for (std::thread &thread : threads)
            thread.detach();
        threads.clear();
        arrived.notify_all();
    }

    void serve() {
#if defined(__linux__)
        pthread_setname_np(pthread_self(), "fastdata-core");
#endif
        std::unique_lock lock(mutex);
        for (;;) {
            arrived.wait(lock, [this] { return closing || !calls.empty(); });
            if (calls.empty())
                return; // closing, and nothing is left to do
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

    void run(Call &call, int count) {
        std::unique_lock lock(mutex);
        if (threads.empty())
            start(count);
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
    const Shared *const shared = shared_.load();
    // A child has no such threads to join, and a mutex that was locked in the parent cannot be freed: it is left alone.
    if (shared != nullptr && shared->owner == static_cast<int>(getpid()))
        delete shared;
}

void Pool::abandon() {
    Shared *const shared = shared_.exchange(nullptr); // its threads use it for as long as they live, so it is not freed
    if (shared != nullptr && shared->owner == static_cast<int>(getpid()))
        shared->abandon();
}

Pool::Shared &Pool::shared() {
    Shared *known = shared_.load();
    if (known != nullptr && known->owner == static_cast<int>(getpid()))
        return *known;
    auto fresh = std::make_unique<Shared>();
    if (shared_.compare_exchange_strong(known, fresh.get()))
        return *fresh.release();
    return *known; // another thread was quicker
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
    shared().run(call, threads_);
}

} // namespace fastdata
