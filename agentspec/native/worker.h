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

// Runs jobs one at a time, in the order they were posted: on a thread of its own, or at once on the caller's
// thread if it has none. A job may throw only std::bad_alloc. The job then ends, and must leave its data
// valid.
class Worker {
 public:
  explicit Worker(bool has_thread);
  ~Worker();  // drops the waiting jobs and finishes the running one
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Throws std::bad_alloc if there is no memory to keep the job.
  void post(std::function<void()> job);
  // Waits for the jobs posted so far, but not for later ones.
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

// A thread pool that shares the rows of a batch. The caller works too, so `num_threads` = 1 means no extra
// thread. The caller never waits for a thread that has not started: if all cores are busy it does the rows
// itself.
class RowPool {
 public:
  explicit RowPool(std::size_t num_threads);
  ~RowPool();
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;

  [[nodiscard]] std::size_t num_threads() const { return threads_.size() + 1; }
  // Calls work(thread, row) once for each row in [0, num_rows), with `thread` in [0, num_threads()). `work`
  // must not throw.
  void for_rows(std::size_t num_rows, const std::function<void(std::size_t, std::size_t)>& work);

 private:
  void run(std::size_t thread);
  void take_rows(std::size_t thread, const std::function<void(std::size_t, std::size_t)>& work);

  std::mutex mutex_;  // guards the members below; the atomic ones may be read without it
  std::condition_variable changed_;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;  // null once all rows are taken
  std::size_t num_rows_ = 0;
  std::atomic<std::size_t> next_row_ = 0;
  std::atomic<std::size_t> num_inside_ = 0;  // threads that take rows, without the caller
  std::atomic<std::size_t> round_ = 0;
  std::atomic<bool> stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace agentspec
