// One thread prepares drafting steps and changes the requests, while another runs the steps as a driver does:
// by a C function and its argument. Meant to run under each sanitizer.

#include "step/drafting_step.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "engine.h"
#include "engine_life.h"
#include "errors.h"
#include "goodput.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

constexpr std::size_t kRows = 6;
constexpr std::size_t kWidth = 8;
constexpr Token kVocabulary = 100;
constexpr std::size_t kColumns = 6;  // of a table: the number of tokens, four tokens, the end

// The memory of a step, filled with what nothing may leave there.
struct Memory {
  std::vector<std::int64_t> trees =
      std::vector<std::int64_t>(4 * kRows * kWidth + kRows * kWidth * kWidth / 8, -9);
  std::vector<std::int32_t> packed = std::vector<std::int32_t>(3 * kRows + 1 + 3 * kRows * kWidth, -9);
  std::vector<std::int32_t> num_nodes = std::vector<std::int32_t>(kRows, -9);
  std::vector<std::uint8_t> first_sources = std::vector<std::uint8_t>(kRows, 99);
  std::vector<std::uint8_t> outcomes = std::vector<std::uint8_t>(kRows, 99);
  std::vector<std::int64_t> ends = std::vector<std::int64_t>(kRows, -9);
  std::vector<std::int32_t> rooms = std::vector<std::int32_t>(kRows, -9);
  std::vector<double> estimated = std::vector<double>(kWidth - 1, -9.0);
  std::vector<std::int64_t> sizes = std::vector<std::int64_t>(kWidth - 1, -9);

  [[nodiscard]] StepMemory view() {
    return {trees, packed, num_nodes, first_sources, outcomes, ends, rooms, estimated, sizes};
  }
};

// An engine with a step, and what the step reads until it is done.
struct Life {
  explicit Life(const EngineConfig& config) : engine(config) {}

  Engine engine;
  Goodput suffix_only{{}};
  Goodput with_model{{}};
  Memory memory;
  DraftingStep step{engine, suffix_only, with_model, kRows, kWidth, kWidth - 1, memory.view()};
  std::map<std::string, Text> texts;
  std::vector<std::string> names;
  std::vector<std::int64_t> table;
  std::vector<std::int64_t> padding;

  void open(Random& random, const std::string& name) {
    texts[name] = draw_text(random, draw(random, 1, 60), 5);
    OpenOptions options;
    options.max_length = texts[name].size() + 80;
    engine.open(name, texts[name], "n", options);
  }

  [[nodiscard]] Engine::Rows rows() const {
    return engine.rows(std::vector<std::string_view>(names.begin(), names.end()));
  }

  // A forward that wrote some tokens of each row. The texts grow by them.
  [[nodiscard]] WrittenTokens written(Random& random) {
    table.assign(names.size() * kColumns, 7);
    for (std::size_t row = 0; row < names.size(); ++row) {
      std::int64_t* const line = &table[row * kColumns];
      line[0] = draw(random, 0, 4);
      const auto found = texts.find(names[row]);
      for (std::int64_t i = 1; found != texts.end() && i <= line[0]; ++i) {
        line[i] = draw(random, 0, 4);
        found->second.push_back(static_cast<Token>(line[i]));
      }
      line[kColumns - 1] = (found == texts.end() ? 5 : static_cast<std::int64_t>(found->second.size()) - 1) +
                           (padding.empty() ? 0 : padding[row]);
    }
    return {.rows = rows(), .table = table, .columns = kColumns, .ends = {}, .padding = padding};
  }

  [[nodiscard]] DraftingStep::Order order(Random& random, bool unites) {
    const std::size_t b = names.size();
    DraftingStep::Order made;
    made.written.push_back(written(random));
    made.rows = rows();
    made.padding = padding;
    made.max_tokens = draw(random, 0, kWidth - 1);
    made.suffixes = draw(random, 0, 4) > 0;
    made.width = static_cast<std::size_t>(draw(random, 1, kWidth));
    made.unites = unites;
    PlanningNumbers& planning = made.planning;
    planning.widths = {1, 2, 4, 8};
    planning.seconds = {1.0, 1.1, 1.2, 1.4};
    planning.rest = 0.1;
    if (unites || draw(random, 0, 1) == 0) {
      planning.with_model = {1.2, 1.3, 1.4, 1.6};
      planning.promised.assign(b, 2.0);
      planning.fit.assign(b, 1);
      planning.fit.back() = 0;
      planning.passes = 3;
    }
    return made;
  }

  void check_done(std::size_t width, bool unites) {
    CHECK(step.is_done());
    CHECK(step.error().empty());
    std::int64_t context = 0;
    for (std::size_t row = 0; row < names.size(); ++row) {
      const auto found = texts.find(names[row]);
      const bool is_drafted = memory.outcomes[row] == static_cast<std::uint8_t>(Outcome::kDrafted);
      CHECK(memory.num_nodes[row] >= 0 && memory.num_nodes[row] < static_cast<std::int32_t>(width));
      context += memory.ends[row] < 0 ? 0 : memory.ends[row];
      if (found == texts.end() || !is_drafted) continue;
      CHECK(memory.ends[row] + 1 - (padding.empty() ? 0 : padding[row]) ==
            static_cast<std::int64_t>(found->second.size()));
      const std::size_t root =
          unites ? 3 * names.size() + 1 + static_cast<std::size_t>(memory.packed[row]) : row * width;
      CHECK((unites ? memory.packed[root] : memory.trees[root]) == found->second.back());
    }
    CHECK(step.context() == context);
    CHECK(step.next().width >= 1 && step.next().width <= 8 && step.next().saved >= 0.0);
    std::vector<double> estimated(kWidth - 1);
    std::vector<std::int64_t> sizes(kWidth - 1);
    const double right = step.suffixes_followed(table, kColumns, {estimated, sizes});
    CHECK(right >= 0.0 && right <= std::accumulate(sizes.begin(), sizes.end(), 0.0) + 1e-9);
  }
};

void run_on_a_thread(DraftingStep& step, const std::function<void()>& meanwhile) {
  std::thread driver([&step] { agentspec_run_drafting_step(&step); });
  do {
    meanwhile();
  } while (!step.is_done());
  driver.join();
}

void test_requests_change_while_steps_run() {
  for (const bool background : {true, false}) {
    EngineConfig config = small_engine_config();
    config.num_token_ids = kVocabulary;
    config.background = background;
    config.num_threads = 2;
    config.max_draft_tokens = kWidth - 1;
    Random random(background ? 1 : 2);
    Life life(config);
    int opened = 0;
    std::size_t num_drafted = 0;
    for (int round = 0; round < 200; ++round) {
      if (round % 10 == 0) {
        // Another batch: some requests go on, others are closed or were never opened.
        life.names.clear();
        for (const auto& [name, _] : life.texts) {
          if (life.names.size() + 2 < kRows) life.names.push_back(name);
        }
        life.names.emplace_back("never");
        life.padding.assign(draw(random, 0, 1) == 0 ? 0 : life.names.size(), 2);
      }
      const bool unites = draw(random, 0, 1) == 0;
      DraftingStep::Order order = life.order(random, unites);
      const std::size_t width = order.width;
      life.step.prepare(std::move(order));
      // The first requests are in the batch. They are closed now and then.
      bool is_drafted_for = draw(random, 0, 19) == 0;
      run_on_a_thread(life.step, [&] {
        const std::string name = "r" + std::to_string(opened++);
        life.open(random, name);
        (void)life.engine.stats();
        if (draw(random, 0, 3) == 0) life.engine.check_integrity();
        while (life.texts.size() > kRows + 1) {
          const auto victim = is_drafted_for ? life.texts.begin() : std::prev(life.texts.end());
          (void)life.engine.close(victim->first, draw(random, 0, 1) == 0, std::nullopt);
          life.texts.erase(victim);
          is_drafted_for = false;
        }
      });
      life.check_done(width, unites);
      for (std::size_t row = 0; row < life.names.size(); ++row) num_drafted += life.memory.num_nodes[row] > 0;
    }
    CHECK(num_drafted > 50);
    life.engine.flush();
    life.engine.check_integrity();
  }
}

void test_what_cannot_be_followed_leaves_roots() {
  EngineConfig config = small_engine_config();
  config.max_draft_tokens = kWidth - 1;
  Random random(3);
  Life life(config);
  life.open(random, "a");
  life.names = {"a", "never"};
  for (const bool unites : {false, true}) {
    DraftingStep::Order order = life.order(random, unites);
    order.written[0].table = order.written[0].table.first(kColumns);
    life.step.prepare(std::move(order));
    agentspec_run_drafting_step(&life.step);
    CHECK(life.step.is_done());
    CHECK(!life.step.error().empty());
    CHECK(life.memory.num_nodes[0] == 0 && life.memory.num_nodes[1] == 0);
    CHECK(life.memory.ends[0] == -1 && life.memory.ends[1] == -1);
    CHECK(!life.step.next().passes);
  }
}

// A device that failed may have written anything.
void test_any_number_may_be_in_a_table() {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EngineConfig config = small_engine_config();
  config.max_draft_tokens = kWidth - 1;
  Random random(4);
  Life life(config);
  life.names = {"a"};
  for (const std::int64_t count : {kLeast, std::int64_t{-1}, std::int64_t{99}, kMost}) {
    for (const std::int64_t end : {kLeast, std::int64_t{-1}, kMost}) {
      life.open(random, "a");
      DraftingStep::Order order = life.order(random, false);
      life.table[0] = count;
      life.table[kColumns - 1] = end;
      life.step.prepare(std::move(order));
      life.step.run();
      CHECK(life.step.error().empty());
      CHECK(life.memory.num_nodes[0] == 0);
      CHECK(life.step.context() == 0);
      life.engine.check_integrity();
      (void)life.engine.close("a", false, std::nullopt);
    }
  }
}

void test_orders_and_memory_that_do_not_fit_are_refused() {
  Random random(5);
  Life life(small_engine_config());
  life.names = {"a"};
  DraftingStep::Order order = life.order(random, false);
  order.width = kWidth + 1;
  CHECK_THROWS(life.step.prepare(std::move(order)), ConfigError);
  order = life.order(random, true);
  order.planning.fit.clear();
  CHECK_THROWS(life.step.prepare(std::move(order)), ConfigError);
  CHECK(life.step.is_done());
  StepMemory small = life.memory.view();
  small.ends = small.ends.first(kRows - 1);
  CHECK_THROWS(DraftingStep(life.engine, life.suffix_only, life.with_model, kRows, kWidth, 7, small),
               ConfigError);
}

}  // namespace

int main() {
  return run({test_requests_change_while_steps_run, test_what_cannot_be_followed_leaves_roots,
              test_any_number_may_be_in_a_table, test_orders_and_memory_that_do_not_fit_are_refused});
}
