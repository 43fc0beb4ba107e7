#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace agentspec {

// Does jobs one after another, in the order they were posted: on a thread of its own, or at once on the
// caller's if it has none. A job may throw std::bad_alloc only: it ends there, and what it works on must be
// in order all the same.
class Worker {
 public:
  explicit Worker(bool has_thread);
  ~Worker();  // drops the jobs that wait, finishes the one that runs
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Throws std::bad_alloc if there is no memory to keep the job.
  void post(std::function<void()> job);
  // Waits for the jobs posted so far, and for no later ones.
  void wait();

 private:
  static void do_job(const std::function<void()>& job);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::uint64_t num_posted_ = 0;
  std::uint64_t num_done_ = 0;
  bool stops_ = false;
  std::thread thread_;
};

// A few threads that share out the rows of a batch. The caller works too, so `num_threads` of 1 means no
// thread at all, and it never waits for a thread that has not begun: where cores are busy the caller does the
// rows itself.
class RowPool {
 public:
  explicit RowPool(std::size_t num_threads);
  ~RowPool();
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;

  [[nodiscard]] std::size_t num_threads() const { return threads_.size() + 1; }
  // Calls work(thread, row) once for each row in [0, num_rows), `thread` in [0, num_threads()). It must not
  // throw. A thread takes `rows_at_once`, and none but the caller's does where there are not twice as many.
  void for_rows(std::size_t num_rows, const std::function<void(std::size_t, std::size_t)>& work,
                std::size_t rows_at_once = kRowsAtOnce);

 private:
  // Where rows take microseconds each: to wake a thread costs more than a row or two.
  static constexpr std::size_t kRowsAtOnce = 2;

  void run(std::size_t thread);
  void take_rows(std::size_t thread);

  std::mutex mutex_;  // guards what follows; the atomic ones may be looked at without it
  std::condition_variable changed_;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;  // null where all rows are taken
  std::size_t num_rows_ = 0;
  std::size_t rows_at_once_ = kRowsAtOnce;
  std::size_t next_row_ = 0;
  std::atomic<std::size_t> num_inside_ = 0;  // threads that take rows, the caller not counted
  std::atomic<std::size_t> round_ = 0;
  std::atomic<bool> stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace agentspec
