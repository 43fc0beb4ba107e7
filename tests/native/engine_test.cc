// Random lives of engines, with all invariants of an engine checked after each step, and the inputs that an
// engine refuses. The contents of drafts are tested in tests/agentspec.

#include "engine.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "drafting/tree_mask.h"
#include "drafting/tree_memory.h"
#include "engine_life.h"
#include "errors.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

void test_random_lives() {
  Random random(20240229);
  for (int round = 0; round < 80; ++round) {
    EngineLife life([&](std::int32_t low, std::int32_t high) { return draw(random, low, high); }, true);
    for (int step = 0; step < 150; ++step) {
      try {
        life.step();
      } catch (const std::exception& error) {
        std::printf("round %d, step %d: %s\n", round, step, error.what());
        CHECK(!"a life goes on");
        break;
      }
      CHECK(true);
    }
    life.end();
  }
}

void test_errors() {
  EngineConfig config = small_engine_config();
  config.num_token_ids = 10;
  Engine engine(config);
  DraftBatch batch;
  const Text good = {1, 2, 3};
  const Text bad = {1, 10};
  const std::vector<std::string> unknown = {"a", "b"};
  const std::vector<std::int32_t> negative = {1, -1};
  const std::vector<std::int32_t> one = {1};
  engine.open("a", good, "");
  CHECK_THROWS(engine.open("a", good, ""), DuplicateRequestError);
  CHECK_THROWS(engine.open("b", {}, ""), TokenError);
  CHECK_THROWS(engine.open("b", bad, ""), TokenError);
  CHECK_THROWS(engine.extend("a", bad), TokenError);
  CHECK_THROWS(engine.extend("b", good), UnknownRequestError);
  CHECK_THROWS(engine.extend("b", {}), UnknownRequestError);
  CHECK_THROWS(engine.draft(unknown, {}, batch), UnknownRequestError);
  CHECK_THROWS(engine.draft(unknown, negative, batch), ConfigError);
  CHECK_THROWS(engine.draft(unknown, one, batch), ConfigError);
  CHECK_THROWS(engine.close("b", true, std::nullopt), UnknownRequestError);
  const std::vector<std::string_view> both = {"a", "b"};
  const Engine::Rows rows = engine.rows(both);
  const std::vector<std::int64_t> accepted = {1, 4, 1, 4};
  const std::vector<std::int64_t> ends = {3, 3};
  const std::vector<std::int64_t> end = {3};
  std::vector<std::int64_t> told(2);
  CHECK(rows.size() == 2);
  CHECK_THROWS(engine.follow(rows, accepted, 4, ends, {}), ConfigError);
  CHECK_THROWS(engine.follow(rows, accepted, 0, ends, {}), ConfigError);
  CHECK_THROWS(engine.follow(rows, accepted, 2, end, {}), ConfigError);
  CHECK_THROWS(engine.follow(rows, accepted, 2, ends, end), ConfigError);
  CHECK_THROWS(engine.draft_followed(rows, end, 1, DraftSpans{}, told), ConfigError);
  CHECK_THROWS(engine.draft_followed(rows, {}, -1, DraftSpans{}, told), ConfigError);
  CHECK_THROWS(engine.draft_followed(rows, {}, 0, DraftSpans{}, told), ConfigError);
  CHECK(engine.num_tokens("a") == 3);
  CHECK(!engine.is_open("b"));
  config.weights.pop_back();
  CHECK_THROWS(Engine{config}, ConfigError);

  const std::vector<std::int32_t> offsets = {0, 3};
  const std::vector<std::int32_t> parents = {-1, 0, 1};
  const std::vector<std::int32_t> cycle = {-1, 2, 1};
  TreeMemory narrow(1, 2);
  TreeMemory wide(1, 3);
  CHECK_THROWS(build_tree_arrays(offsets, good, parents, {}, 2, narrow.arrays()), ConfigError);
  CHECK_THROWS(build_tree_arrays(offsets, good, cycle, {}, 3, wide.arrays()), ConfigError);
  CHECK_THROWS(build_tree_arrays(offsets, good, parents, {}, 3, narrow.arrays()), ConfigError);
  build_tree_arrays(offsets, good, parents, {}, 3, wide.arrays());
  CHECK(wide.arrays().num_nodes[0] == 3);
}

void test_outputs_have_ids_of_their_own() {
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    Engine engine(small_engine_config());
    for (int j = 0; j < 3; ++j) {
      engine.open("a", Text{1}, "");
      engine.extend("a", Text{2});
      ids.push_back(engine.close("a", true, std::nullopt));
    }
  }
  std::sort(ids.begin(), ids.end());
  CHECK(ids.front() != 0);
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
}

}  // namespace

int main() { return run({test_random_lives, test_errors, test_outputs_have_ids_of_their_own}); }
