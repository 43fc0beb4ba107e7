// The threads of an engine: jobs run in order, and each row is done once.

#include "worker.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

void test_jobs_keep_their_order() {
  for (const bool has_thread : {false, true}) {
    std::vector<int> done;
    Worker worker(has_thread);
    for (int i = 0; i < 200; ++i) {
      worker.post([&done, i] { done.push_back(i); });
    }
    worker.wait();
    CHECK(done.size() == 200);
    for (int i = 0; i < 200; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
  }
}

void test_without_a_thread_a_job_is_done_at_once() {
  Worker worker(false);
  const std::thread::id caller = std::this_thread::get_id();
  bool is_done = false;
  worker.post([&] { is_done = std::this_thread::get_id() == caller; });
  CHECK(is_done);
}

void test_waiting_ends_though_jobs_keep_coming() {
  std::atomic<bool> is_over = false;
  std::atomic<int> num_done = 0;
  Worker worker(true);
  // Each job posts the next one before it ends, so there is always one.
  const std::function<void()> job = [&] {
    ++num_done;
    if (!is_over) worker.post(job);
  };
  worker.post(job);
  worker.wait();
  CHECK(num_done >= 1);
  is_over = true;
  worker.wait();
}

void test_a_job_out_of_memory_stops_no_other() {
  for (const bool has_thread : {false, true}) {
    int num_done = 0;
    Worker worker(has_thread);
    worker.post([] { throw std::bad_alloc(); });
    worker.post([&] { ++num_done; });
    worker.wait();
    CHECK(num_done == 1);
  }
}

void test_jobs_that_wait_are_dropped_with_the_worker() {
  // Whoever waits for a job sees that what it held is freed.
  const auto held = std::make_shared<int>(0);
  std::atomic<bool> is_running = false;
  std::atomic<bool> may_end = false;
  std::thread opener;
  {
    Worker worker(true);
    worker.post([&] {
      is_running = true;
      while (!may_end) std::this_thread::yield();
      *held += 1;
    });
    for (int i = 0; i < 10; ++i) worker.post([held] { *held += 100; });
    while (!is_running) std::this_thread::yield();
    opener = std::thread([&] { may_end = true; });
  }
  opener.join();
  // The running job was finished. Each of the others was either finished or dropped before the worker
  // stopped.
  CHECK(*held % 100 == 1);
  CHECK(held.use_count() == 1);
}

void test_each_row_is_done_once() {
  Random random(1);
  for (const std::size_t num_threads : {1U, 2U, 3U, 8U}) {
    RowPool pool(num_threads);
    CHECK(pool.num_threads() == num_threads);
    for (int round = 0; round < 200; ++round) {
      const auto num_rows = static_cast<std::size_t>(draw(random, 0, 40));
      std::vector<int> num_done(num_rows, 0);
      std::vector<std::size_t> threads(num_rows, 0);
      pool.for_rows(num_rows, [&](std::size_t thread, std::size_t row) {
        ++num_done[row];
        threads[row] = thread;
      });
      for (std::size_t row = 0; row < num_rows; ++row) {
        CHECK(num_done[row] == 1);
        CHECK(threads[row] < num_threads);
      }
    }
  }
}

// More threads than cores, with rounds in quick succession: most threads are late for most rounds.
void test_no_round_is_mixed_up_with_the_next() {
  RowPool pool(16);
  std::size_t wanted = 0;
  std::atomic<std::size_t> num_done = 0;
  for (std::size_t round = 0; round < 3000; ++round) {
    const std::size_t num_rows = 2 + round % 3;
    // A row that is done late or for another round finds freed memory, or writes into that of the next round.
    std::vector<std::size_t> done(num_rows, 0);
    pool.for_rows(num_rows, [&, round](std::size_t, std::size_t row) {
      done[row] = round + 1;
      ++num_done;
    });
    wanted += num_rows;
    CHECK(num_done == wanted);
    for (const std::size_t row : done) CHECK(row == round + 1);
  }
}

}  // namespace

int main() {
  return run({test_jobs_keep_their_order, test_without_a_thread_a_job_is_done_at_once,
              test_waiting_ends_though_jobs_keep_coming, test_a_job_out_of_memory_stops_no_other,
              test_jobs_that_wait_are_dropped_with_the_worker, test_each_row_is_done_once,
              test_no_round_is_mixed_up_with_the_next});
}
