// Threads that take images one by one, so that one large image holds up nobody.
//
// Life cycle; any deviation is a bug:
//   Start    with the first run() that needs threads, and again in a process forked since.
//   run()    returns when all its items are done.  Several may run at once; the oldest is served first.
//   Destroy  waits for running calls and joins the threads.  A forked child joins nothing: its threads do not exist.
//   Abandon  waits for nobody: idle threads end at once, others when the item they work on is done.  A call that runs
//            still returns when its items are done.
//   Fork     takes no lock of the parent, whatever its threads were doing: run() finds the owner by an atomic pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace fastdata {

class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Calls work(item) for every item in [0, count).  work must not throw.
    // Throws std::bad_alloc or std::system_error when not even one thread can be started; nothing is done then.
    void run(int64_t count, const std::function<void(int64_t)> &work);

    // For a pool one of whose threads may never come back; only the destructor may follow.
    void abandon();

  private:
    struct Shared;
    Shared &shared();

    const int threads_;
    std::atomic<Shared *> shared_{nullptr};
};

} // namespace fastdata
