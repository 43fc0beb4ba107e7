#include "worker.h"

#include <new>
#include <utility>

namespace agentspec {

Worker::Worker(bool has_thread) {
  if (has_thread) thread_ = std::thread([this] { run(); });
}

Worker::~Worker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::do_job(const std::function<void()>& job) {
  try {
    job();
  } catch (const std::bad_alloc&) {
  }
}

void Worker::post(std::function<void()> job) {
  if (!thread_.joinable()) {
    do_job(job);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++num_posted_;
  }
  changed_.notify_all();
}

void Worker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, num_posted = num_posted_] { return num_done_ >= num_posted; });
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    do_job(job);
    job = nullptr;  // frees what the job holds before anyone is told that it is done
    lock.lock();
    ++num_done_;
    changed_.notify_all();
  }
}

namespace {

// Sleeping and waking take tens of microseconds, as long as many a row takes. So a waiting thread first spins
// for about that long.
constexpr int kLooks = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Condition>
void look_for(Condition condition) {
  for (int i = 0; i < kLooks && !condition(); ++i) pause();
}

}  // namespace

RowPool::RowPool(std::size_t num_threads) {
  for (std::size_t thread = 1; thread < num_threads; ++thread) {
    threads_.emplace_back([this, thread] { run(thread); });
  }
}

RowPool::~RowPool() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RowPool::for_rows(std::size_t num_rows, const std::function<void(std::size_t, std::size_t)>& work) {
  if (threads_.empty() || num_rows < 2) {
    for (std::size_t row = 0; row < num_rows; ++row) work(0, row);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    num_rows_ = num_rows;
    next_row_ = 0;
    ++round_;
  }
  changed_.notify_all();
  take_rows(0, work);
  {
    // All rows are taken. A thread that wakes up from now on is too late, and the caller does not wait for
    // it.
    const std::lock_guard lock(mutex_);
    work_ = nullptr;
  }
  look_for([this] { return num_inside_ == 0; });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return num_inside_ == 0; });
}

void RowPool::run(std::size_t thread) {
  std::size_t seen = 0;
  for (;;) {
    look_for([&] { return stops_ || round_ != seen; });
    const std::function<void(std::size_t, std::size_t)>* work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || round_ != seen; });
      if (stops_) return;
      seen = round_;
      work = work_;
      if (work == nullptr) continue;
      ++num_inside_;
    }
    take_rows(thread, *work);
    bool is_last;
    {
      const std::lock_guard lock(mutex_);
      is_last = --num_inside_ == 0;
    }
    if (is_last) changed_.notify_all();
  }
}

// The caller does not change the members that this reads while any thread is inside.
void RowPool::take_rows(std::size_t thread, const std::function<void(std::size_t, std::size_t)>& work) {
  for (std::size_t row = next_row_++; row < num_rows_; row = next_row_++) work(thread, row);
}

}  // namespace agentspec
