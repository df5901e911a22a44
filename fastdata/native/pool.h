// Threads that take images one by one, so that one large image holds up nobody.
//
// Life cycle; any deviation is a bug:
//   Start    with the first run() that needs threads, and again in a process forked since.
//   run()    returns when all its items are done.  Several may run at once; the oldest is served first.
//   Destroy  waits for running calls and joins the threads.  A forked child joins nothing: its threads do not exist.
#pragma once

#include <functional>
#include <memory>

namespace fastdata {

class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Calls work(item) for every item in [0, count).  work must not throw.
    void run(int64_t count, const std::function<void(int64_t)> &work);

  private:
    struct Shared;
    Shared &shared();

    const int threads_;
    std::unique_ptr<Shared> shared_;
};

} // namespace fastdata
