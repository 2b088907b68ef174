// Runs a range of rows on several threads. Which thread takes which rows never changes a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sparsegen {

using Body = std::function<void(int64_t begin, int64_t end)>;

// The arithmetic of the standard while it lives: rounding to nearest, subnormal numbers kept. A caller may have asked its
// thread for another (torch.set_flush_denormal), and a result must not depend on which thread found it.
class StandardArithmetic {
 public:
#if defined(__SSE2__)
  StandardArithmetic() : before_(_mm_getcsr()) {
    if (before_ & kOwn) _mm_setcsr(before_ & ~kOwn);
  }
  ~StandardArithmetic() {
    if (before_ & kOwn) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kOwn = 0x8000 | 0x6000 | 0x0040;  // flush to zero, rounding, subnormals are zero
  unsigned before_;
#elif defined(__aarch64__)
  StandardArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    if (before_ & kOwn) asm volatile("msr fpcr, %0" ::"r"(before_ & ~kOwn));
  }
  ~StandardArithmetic() {
    if (before_ & kOwn) asm volatile("msr fpcr, %0" ::"r"(before_));
  }

 private:
  static constexpr uint64_t kOwn = uint64_t(1) << 24 | uint64_t(3) << 22 | uint64_t(1) << 19;  // FZ, RMode, FZ16
  uint64_t before_ = 0;
#endif
};

// A share of the work: threads take chunks until none is left, or until one of them fails.
class Share {
 public:
  Share(const Body& body, int64_t total, int64_t chunk) : body_(body), total_(total), chunk_(chunk) {}

  void run() noexcept {
    const StandardArithmetic standard;
    try {
      for (int64_t from; (from = next_.fetch_add(chunk_)) < total_;) body_(from, std::min(total_, from + chunk_));
    } catch (...) {
      const std::lock_guard<std::mutex> hold(failing_);
      if (!failure_) failure_ = std::current_exception();
      next_ = total_;
    }
  }

  // To be called once no thread runs it any more: the failure of any thread is the caller's.
  void finish() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const Body& body_;
  const int64_t total_, chunk_;
  std::atomic<int64_t> next_{0};
  std::mutex failing_;
  std::exception_ptr failure_;
};

// Threads that wait for work. One caller at a time has them; another caller meanwhile works alone.
class Pool {
 public:
  void run(Share& share, int threads) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return share.run();
    for (bool more = true; more && workers_ < threads - 1;) more = start();
    {
      std::lock_guard<std::mutex> hold(state_);
      share_ = &share;
      wanted_ = std::min(threads - 1, workers_);
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
  // False where the system has no thread left to give: the work is done by those there are.
  bool start() {
    try {
      std::thread([this] { work(); }).detach();
    } catch (const std::exception&) {
      return false;
    }
    ++workers_;
    return true;
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
  if (threads <= 1 || total <= chunk) {
    const StandardArithmetic standard;
    return body(0, total);
  }
  Share share(body, total, chunk);
  if (OpenMP run = borrowed()) run([](void* data) { static_cast<Share*>(data)->run(); }, &share, unsigned(threads), 0);
  else pool().run(share, threads);
  share.finish();
}

}  // namespace sparsegen
