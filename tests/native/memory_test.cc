// Running out of memory at any allocation breaks nothing: each operation is repeated with a failure at its
// first allocation, then at its second, and so on, until it succeeds.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "engine.h"
#include "engine_life.h"

namespace {

// Number of allocations until one fails; 0: none fails.
std::int64_t countdown = 0;
bool has_failed = false;

void* allocate(std::size_t size, std::size_t alignment) {
  if (countdown > 0 && --countdown == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace agentspec;
using namespace agentspec::test;

// An engine with some of everything: segments, a growing part, conversations, open requests.
struct Scene {
  explicit Scene(bool plain_rule, std::size_t budget_bytes = 1 << 20)
      : engine(config(plain_rule, budget_bytes)) {
    Random random(1);
    for (int i = 0; i < 9; ++i) {
      engine.open("kept", draw_text(random, 10, 5), "a");
      engine.extend("kept", draw_text(random, 30, 5));
      ids.push_back(engine.close("kept", true, std::nullopt));
    }
    engine.open("other", draw_text(random, 300, 5), "b");
    engine.extend("other", draw_text(random, 30, 5));
    ids.push_back(engine.close("other", true, std::nullopt));
    for (const char* const name : {"1", "2", "3", "4", "5"}) {
      engine.open(name, draw_text(random, 30, 5), "a");
      rows.push_back(name);
    }
    engine.extend("1", draw_text(random, 30, 5));
    engine.draft(rows, {}, batch);
  }

  static EngineConfig config(bool plain_rule, std::size_t budget_bytes) {
    EngineConfig result = small_engine_config();
    result.plain_rule = plain_rule;
    result.budget_bytes = budget_bytes;
    result.learning_rate = 0.1F;
    return result;
  }

  // What an engine must still be able to do afterwards.
  void check(bool is_open = true) {
    engine.check_integrity();
    engine.flush();
    engine.draft(std::vector<std::string>{"2", "3"}, {}, batch);
    engine.open("after", Text{1, 2, 3, 1, 2}, "a");
    engine.extend("after", Text{3, 1});
    engine.draft(std::vector<std::string>{"after"}, {}, batch);
    CHECK(batch.tokens.size() > 1);
    engine.close("after", true, std::nullopt);
    CHECK(engine.is_open("1") == is_open);
    CHECK(engine.stats().waiting_outputs == 0);
    CHECK(engine.stats().global.bytes <= 1 << 20);
    engine.check_integrity();
  }

  Engine engine;
  DraftBatch batch;
  std::vector<std::uint64_t> ids;
  std::vector<std::string> rows;
};

// Calls work(scene) on a new scene each time, failing at the n-th allocation, and checks the state that is
// left. Returns the number of allocations until it succeeded.
int fail_everywhere(std::size_t budget_bytes, const std::function<void(Scene&)>& work,
                    const std::function<void(Scene&, bool is_done)>& check) {
  for (int n = 1;; ++n) {
    Scene scene(n % 2 == 0, budget_bytes);
    has_failed = false;
    bool is_done = false;
    countdown = n;
    try {
      work(scene);
      is_done = true;
    } catch (const std::bad_alloc&) {
    }
    countdown = 0;
    check(scene, is_done);
    if (!has_failed) return n - 1;
  }
}

void test_open() {
  Random random(2);
  const Text prompt = draw_text(random, 300, 5);
  const int num_allocations = fail_everywhere(
      1 << 20, [&](Scene& scene) { scene.engine.open("new", prompt, "a"); },
      [&](Scene& scene, bool is_done) {
        CHECK(scene.engine.is_open("new") == is_done);
        scene.check();
      });
  CHECK(num_allocations > 3);
}

void test_extend() {
  Random random(3);
  const Text tokens = draw_text(random, 1500, 5);  // more than an index has room for
  const int num_allocations = fail_everywhere(
      1 << 20, [&](Scene& scene) { scene.engine.extend("1", tokens); },
      [&](Scene& scene, bool is_done) {
        CHECK(scene.engine.num_tokens("1") == (is_done ? 1560U : 60U));
        scene.engine.draft(std::vector<std::string>{"1"}, {}, scene.batch);
        scene.engine.extend("1", tokens);
        scene.engine.draft(std::vector<std::string>{"1"}, {}, scene.batch);
        scene.check();
        scene.engine.close("1", true, std::nullopt);
        scene.check(false);
      });
  CHECK(num_allocations > 3);
}

void test_draft() {
  fail_everywhere(
      1 << 20,
      [&](Scene& scene) {
        scene.engine.extend("1", Text{0});
        scene.engine.draft(scene.rows, {}, scene.batch);
      },
      [&](Scene& scene, bool) { scene.check(); });
  // If nothing fails, the draft is the same as before.
  Scene first(false);
  Scene second(false);
  countdown = 3;
  try {
    first.engine.draft(first.rows, {}, first.batch);
  } catch (const std::bad_alloc&) {
  }
  countdown = 0;
  first.engine.draft(first.rows, {}, first.batch);
  second.engine.draft(second.rows, {}, second.batch);
  CHECK(first.batch.tokens == second.batch.tokens);
  CHECK(first.batch.estimates == second.batch.estimates);
}

// The output is longer than a part may grow, so it is sealed and merged with the earlier sealed part.
void test_close_and_seal() {
  Random random(4);
  const Text output = draw_text(random, 80, 5);
  int num_kept = 0;
  const int num_allocations = fail_everywhere(
      1 << 20,
      [&](Scene& scene) {
        scene.engine.extend("1", output);
        scene.engine.close("1", true, std::nullopt);
      },
      [&](Scene& scene, bool is_done) {
        const GlobalIndexStats stats = scene.engine.stats().global;
        // Sealing may fail at any point: the old parts stay, and at most the new output is lost.
        CHECK(stats.outputs == 10 || stats.outputs == 11);
        CHECK(stats.output_tokens == 300 + (stats.outputs == 11 ? 110U : 0U));
        CHECK(stats.outputs + stats.evicted_outputs <= 11);
        if (stats.outputs == 11) ++num_kept;
        scene.check(!is_done && scene.engine.is_open("1"));
        CHECK(scene.engine.stats().global.segments >= 1);
      });
  CHECK(num_allocations > 20);
  CHECK(num_kept > 5);
}

void test_close_and_evict() {
  Random random(5);
  const Text output = draw_text(random, 80, 5);
  const std::size_t budget_bytes = 9'000;
  fail_everywhere(
      budget_bytes,
      [&](Scene& scene) {
        scene.engine.extend("1", output);
        scene.engine.close("1", true, std::nullopt);
      },
      [&](Scene& scene, bool is_done) {
        scene.check(!is_done && scene.engine.is_open("1"));
        // The next output brings the index back within its budget.
        CHECK(scene.engine.stats().global.bytes <= budget_bytes);
      });
}

void test_erase() {
  for (const std::size_t which : {0U, 8U, 9U}) {
    const auto work = [&](Scene& scene) { (void)scene.engine.erase_output(scene.ids[which]); };
    fail_everywhere(1 << 20, work, [&](Scene& scene, bool is_done) {
      CHECK(scene.engine.stats().global.outputs == (is_done ? 9U : 10U));
      CHECK(scene.engine.erase_output(scene.ids[which]) != is_done);
      scene.check();
    });
  }
}

void test_erase_many() {
  const auto check = [](std::size_t num_left) {
    return [num_left](Scene& scene, bool is_done) {
      CHECK(scene.engine.stats().global.outputs == (is_done ? num_left : 10U));
      scene.check();
    };
  };
  fail_everywhere(
      1 << 20, [](Scene& scene) { CHECK(scene.engine.erase_request("a", "kept") == 9); }, check(1));
  fail_everywhere(1 << 20, [](Scene& scene) { CHECK(scene.engine.expire("a", INT64_MAX) == 9); }, check(1));
  // From a segment and from the growing part.
  const int num_allocations = fail_everywhere(
      1 << 20,
      [](Scene& scene) {
        for (const std::size_t which : {0U, 8U}) (void)scene.engine.erase_output(scene.ids[which]);
      },
      [](Scene& scene, bool is_done) {
        CHECK(scene.engine.stats().global.outputs == 8U || !is_done);
        scene.check();
      });
  CHECK(num_allocations > 20);
}

void test_add() {
  Random random(6);
  const Text output = draw_text(random, 80, 5);
  int num_added = 0;
  const int num_allocations = fail_everywhere(
      1 << 20, [&](Scene& scene) { num_added += scene.engine.add("c", 77, output, 3, 1) ? 1 : 0; },
      [&](Scene& scene, bool) {
        CHECK(scene.engine.stats().global.outputs <= 11);
        scene.check();
      });
  CHECK(num_allocations > 10);
  CHECK(num_added > 1);
}

void test_snapshot_and_load_segments() {
  fail_everywhere(
      1 << 20,
      [](Scene& scene) {
        const GlobalSnapshot snapshot = scene.engine.snapshot("a");
        std::vector<std::span<const std::byte>> blobs;
        for (const auto& segment : snapshot.segments) blobs.push_back(segment->blob());
        CHECK(!blobs.empty());
        const std::vector<std::uint64_t> known = {snapshot.segments.front()->outputs().front().id};
        (void)scene.engine.load_segments("c", blobs, known);
      },
      [](Scene& scene, bool is_done) {
        // Either all segments are there or none.
        CHECK((scene.engine.stats().global.outputs > 10) == is_done);
        CHECK((scene.engine.stats().global.namespaces == 3) == is_done);
        scene.check();
      });
}

void test_erase_namespace_and_clear() {
  fail_everywhere(
      1 << 20, [&](Scene& scene) { (void)scene.engine.erase_namespace("a"); },
      [&](Scene& scene, bool is_done) {
        CHECK(scene.engine.stats().global.outputs == (is_done ? 1U : 10U));
        scene.check();
      });
  fail_everywhere(
      1 << 20, [&](Scene& scene) { scene.engine.clear(); },
      [&](Scene& scene, bool is_done) {
        CHECK(scene.engine.stats().global.outputs == (is_done ? 0U : 10U));
        scene.check();
      });
}

}  // namespace

int main() {
  return run({test_open, test_extend, test_draft, test_close_and_seal, test_close_and_evict, test_erase,
              test_erase_many, test_add, test_snapshot_and_load_segments, test_erase_namespace_and_clear});
}
