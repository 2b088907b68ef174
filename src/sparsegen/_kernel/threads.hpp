// Runs a range of rows on several threads. Which thread takes which rows never changes a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif

namespace sparsegen {

using Body = std::function<void(int64_t begin, int64_t end)>;

// A share of the work: threads take chunks until none is left.
struct Share {
  const Body& body;
  int64_t total, chunk;
  std::atomic<int64_t> next{0};
  void run() {
    for (int64_t from; (from = next.fetch_add(chunk)) < total;) body(from, std::min(total, from + chunk));
  }
};

// Threads that wait for work. One caller at a time has them; another caller meanwhile works alone.
class Pool {
 public:
  void run(Share& share, int threads) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return share.run();
    while (int(workers_) < threads - 1) start();
    {
      std::lock_guard<std::mutex> hold(state_);
      share_ = &share;
      wanted_ = threads - 1;
      ++round_;
    }
    wake_.notify_all();
    share.run();
    std::unique_lock<std::mutex> hold(state_);
    wanted_ = 0;  // a thread that has not come yet is not needed any more
    idle_.wait(hold, [&] { return busy_ == 0; });
    share_ = nullptr;
  }

 private:
  void start() {
    std::thread([this] { work(); }).detach();
    ++workers_;
  }
  void work() {
    std::unique_lock<std::mutex> hold(state_);
    for (int64_t seen = 0;;) {
      wake_.wait(hold, [&] { return wanted_ > 0 && round_ != seen; });
      seen = round_;
      --wanted_;
      ++busy_;
      Share* share = share_;
      hold.unlock();
      share->run();
      hold.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }
  std::mutex turn_, state_;
  std::condition_variable wake_, idle_;
  Share* share_ = nullptr;
  int wanted_ = 0, busy_ = 0, workers_ = 0;
  int64_t round_ = 0;
};

// The threads do not survive a fork, so a child starts with a pool of its own. Pools are never destroyed: their
// threads may still wait on them while the process ends.
inline Pool& pool() {
  static std::atomic<Pool*> current{new Pool};
#if defined(__unix__) || defined(__APPLE__)
  static const int once = pthread_atfork(nullptr, nullptr, [] { current = new Pool; });
  (void)once;
#endif
  return *current;
}

// The entry of an OpenMP runtime that is already in the process, as GCC's libgomp has it. A framework's own threads spin
// for a while after each of its operations; borrowing them beats competing with them for the cores.
using OpenMP = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

inline std::atomic<OpenMP>& borrowed() {
  static std::atomic<OpenMP> entry{nullptr};
#if defined(__unix__) || defined(__APPLE__)
  // libgomp's threads do not survive a fork and it does not notice: a child uses the pool above.
  static const int once = pthread_atfork(nullptr, nullptr, [] { entry = nullptr; });
  (void)once;
#endif
  return entry;
}

inline void parallel(int64_t total, int64_t chunk, int threads, const Body& body) {
  if (threads <= 1 || total <= chunk) return body(0, total);
  Share share{body, total, chunk};
  if (OpenMP run = borrowed()) run([](void* data) { static_cast<Share*>(data)->run(); }, &share, unsigned(threads), 0);
  else pool().run(share, threads);
}

}  // namespace sparsegen
