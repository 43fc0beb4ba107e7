// The parts of the global index: what is planned, sealed, published and refused.

#include "global_index.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

constexpr Segment::Identity kIdentity{.num_token_ids = 100, .tokenizer = {}, .kind = SegmentKind::kOutputs};
constexpr std::size_t kFull = 64;

GlobalIndexConfig small_config(std::size_t budget_bytes = 1 << 20) {
  return {.budget_bytes = budget_bytes,
          .max_growing_tokens = kFull,
          .max_counted_length = 20,
          .identity = kIdentity};
}

// Adds outputs, numbered from 1 on, and remembers what each namespace must have.
struct Model {
  explicit Model(std::size_t budget_bytes = 1 << 20) : index(small_config(budget_bytes)) {}

  std::uint64_t add(const std::string& name, const Text& tokens, std::uint32_t prompt_tail = 0) {
    const Output output{++last_id, tokens, prompt_tail, 0};
    if (index.begin(name, output)) {
      while (!index.add_slice(output, 7)) {
      }
      outputs.push_back({name, output});
    }
    return last_id;
  }

  // The texts of a namespace as its parts have them, without what is deleted.
  [[nodiscard]] std::vector<Text> texts(const std::string& name) const {
    std::vector<Text> result;
    for (const GlobalPart& part : index.find(name)) {
      const auto tokens = part.tokens();
      for (const OutputRecord& record : part.outputs()) {
        const bool is_dead = std::any_of(part.dead.begin(), part.dead.end(),
                                         [&](const auto& range) { return range.first == record.begin; });
        const auto begin = tokens.begin() + record.begin;
        if (!is_dead) result.emplace_back(begin, std::find(begin, tokens.end(), kEnd));
      }
    }
    return result;
  }

  [[nodiscard]] std::vector<Text> expected(const std::string& name) const {
    std::vector<Text> result;
    for (const auto& [output_name, output] : outputs) {
      if (output_name == name) result.push_back(output.tokens);
    }
    return result;
  }

  void erase(std::uint64_t id) {
    std::erase_if(outputs, [&](const auto& output) { return output.second.id == id; });
  }

  GlobalIndex index;
  std::vector<std::pair<std::string, Output>> outputs;
  std::uint64_t last_id = 0;
};

// Does what is planned until nothing is; returns how often.
int compact(GlobalIndex& index) {
  int num_plans = 0;
  while (const auto plan = index.plan()) {
    (void)index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
    index.check_integrity();
    ++num_plans;
  }
  return num_plans;
}

void test_a_full_part_is_sealed() {
  Random random(1);
  Model model;
  CHECK(!model.index.plan());
  model.add("a", draw_text(random, 40, 5));
  CHECK(!model.index.plan());
  model.add("a", draw_text(random, 40, 5));
  model.add("b", draw_text(random, 10, 5));
  const auto plan = model.index.plan();
  CHECK(plan && plan->name == "a" && plan->inputs.size() == 1 && plan->num_dropped == 0);
  // The next output makes a new part, which the plan does not have.
  model.add("a", draw_text(random, 5, 5));
  CHECK(model.index.find("a").size() == 2);
  auto segment = GlobalIndex::seal(*plan, kIdentity);
  CHECK(segment->outputs().size() == 2);
  CHECK(model.index.publish(*plan, std::move(segment)).size() == 1);
  CHECK(model.index.find("a").size() == 2);
  CHECK(model.index.find("a")[0].segment != nullptr);
  CHECK(model.index.find("b")[0].growing != nullptr);
  CHECK(model.texts("a") == model.expected("a"));
  CHECK(!model.index.plan());
  model.index.check_integrity();
}

void test_parts_are_merged_as_they_grow() {
  Random random(2);
  Model model;
  std::size_t most_parts = 0;
  for (int step = 0; step < 200; ++step) {
    model.add("a", draw_text(random, 33, 5), 3);
    CHECK(compact(model.index) <= 2);
    most_parts = std::max(most_parts, model.index.find("a").size());
  }
  CHECK(model.texts("a") == model.expected("a"));
  CHECK(most_parts <= 5);
  CHECK(model.index.stats().output_tokens == 200 * 30);
  CHECK(model.index.num_tokens("a") == 200 * 34);
}

void test_what_a_plan_reads_is_not_appended_to() {
  // The oldest part is the growing one; it is to be made smaller, and its namespace goes on meanwhile.
  Random random(3);
  Model model(6'000);
  model.add("a", draw_text(random, 20, 5));
  std::optional<GlobalIndex::Plan> plan;
  for (char name = 'b'; !plan; ++name) {
    model.add({name}, draw_text(random, 10, 5));
    plan = model.index.plan();
  }
  CHECK(plan->name == "a" && plan->num_dropped > 0);
  const std::size_t num_tokens = plan->inputs.front().tokens().size();
  model.add(plan->name, draw_text(random, 10, 5));
  CHECK(plan->inputs.front().tokens().size() == num_tokens);

  Model whole;
  whole.add("a", draw_text(random, 20, 5));
  const auto all = whole.index.plan_merge_of_all("a");
  CHECK(all && all->inputs.size() == 1);
  whole.add("a", draw_text(random, 20, 5));
  CHECK(all->inputs.front().tokens().size() == 21);
  CHECK(whole.index.find("a").size() == 2);
  // It has not been published: the part waits to be sealed.
  CHECK(compact(whole.index) == 1);
  CHECK(whole.texts("a") == whole.expected("a"));
  whole.index.check_integrity();
}

void test_a_plan_whose_parts_have_changed_is_refused() {
  Random random(4);
  for (int how = 0; how < 4; ++how) {
    Model model;
    const std::uint64_t id = model.add("a", draw_text(random, 40, 5));
    model.add("a", draw_text(random, 40, 5));
    if (how >= 2) CHECK(compact(model.index) == 1);  // sealed before, and merged with another
    if (how >= 2) model.add("a", draw_text(random, 70, 5));
    const auto plan = model.index.plan();
    CHECK(plan.has_value());
    if (!plan) continue;
    if (how % 2 == 0) {
      CHECK(model.index.erase_output(id));
      model.erase(id);
    } else {
      CHECK(!model.index.erase_namespace("a").empty());
      model.outputs.clear();
      model.add("a", draw_text(random, 40, 5));
    }
    const auto before = model.texts("a");
    const auto bytes = model.index.stats().bytes;
    const auto freed = model.index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
    CHECK(freed.size() == 1 && freed[0].segment != nullptr);
    CHECK(model.texts("a") == before);
    CHECK(model.index.stats().bytes == bytes);
    model.index.check_integrity();
    compact(model.index);
    CHECK(model.texts("a") == model.expected("a"));
  }
}

void test_a_refused_plan_stays_refused() {
  Model model;
  Random random(5);
  model.add("a", draw_text(random, 70, 5));
  const auto first = model.index.plan();
  const auto second = model.index.plan();
  CHECK(first && second);
  CHECK(model.index.publish(*first, GlobalIndex::seal(*first, kIdentity)).size() == 1);
  CHECK(model.index.publish(*second, GlobalIndex::seal(*second, kIdentity)).front().segment != nullptr);
  CHECK(model.texts("a") == model.expected("a"));
  CHECK(model.index.find("a").size() == 1);
}

void test_giving_up_makes_room_all_the_same() {
  Random random(6);
  Model model(8'000);
  while (true) {
    model.add("a", draw_text(random, 10, 5));
    model.add("b", draw_text(random, 10, 5));
    const auto plan = model.index.plan();
    if (!plan) continue;
    if (plan->num_dropped == 0) {
      (void)model.index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
      continue;
    }
    const GlobalIndexStats before = model.index.stats();
    const std::size_t num_lost = plan->inputs.front().outputs().size();
    CHECK(model.index.give_up(*plan).size() == 1);
    const GlobalIndexStats after = model.index.stats();
    CHECK(after.bytes < before.bytes);
    CHECK(after.outputs == before.outputs - num_lost);
    CHECK(after.evicted_outputs == before.evicted_outputs + num_lost);
    CHECK(model.index.give_up(*plan).empty());
    model.index.check_integrity();
    break;
  }
}

void test_erasing_an_output_that_is_being_added() {
  Random random(7);
  Model model;
  model.add("a", draw_text(random, 20, 5));
  const Output output{99, draw_text(random, 30, 5), 0, 0};
  CHECK(model.index.begin("a", output));
  CHECK(!model.index.add_slice(output, 10));
  model.index.check_integrity();
  CHECK(model.index.stats().outputs == 1);
  // An earlier one may go meanwhile.
  CHECK(model.index.erase_output(1));
  model.erase(1);
  CHECK(!model.index.add_slice(output, 10));
  model.index.check_integrity();
  CHECK(model.index.erase_output(99));
  CHECK(model.index.add_slice(output, 10));
  CHECK(!model.index.erase_output(99));
  CHECK(model.texts("a").empty());
  model.add("a", draw_text(random, 20, 5));
  CHECK(model.texts("a") == model.expected("a"));
  model.index.check_integrity();
}

void test_erasing_a_namespace_that_is_being_added_to() {
  Random random(8);
  Model model;
  const Output output{99, draw_text(random, 30, 5), 0, 0};
  CHECK(model.index.begin("a", output));
  CHECK(!model.index.add_slice(output, 10));
  CHECK(model.index.erase_namespace("a").size() == 1);
  CHECK(model.index.add_slice(output, 10));
  CHECK(model.index.find("a").empty());
  CHECK(model.index.stats().bytes == 0);
  CHECK(model.index.begin("a", output));
  CHECK(!model.index.add_slice(output, 10));
  CHECK(model.index.clear().size() == 1);
  CHECK(model.index.add_slice(output, 10));
  CHECK(model.index.stats().bytes == 0);
}

void test_outputs_that_were_loaded_twice_are_erased_twice() {
  Random random(10);
  Model model;
  for (int i = 0; i < 4; ++i) model.add("a", draw_text(random, 20, 5));
  const auto plan = model.index.plan_merge_of_all("a");
  const std::shared_ptr<const Segment> segment = GlobalIndex::seal(*plan, kIdentity);
  for (const bool is_merged : {false, true}) {
    GlobalIndex index(small_config());
    for (int i = 0; i < 2; ++i) index.add_segment("a", segment);
    index.add_segment("b", segment);
    if (is_merged) {
      const auto both = index.plan_merge_of_all("a");
      (void)index.publish(*both, GlobalIndex::seal(*both, kIdentity));
    }
    CHECK(index.stats().outputs == 12);
    CHECK(index.erase_output(2));
    CHECK(index.stats().outputs == 9);
    CHECK(!index.erase_output(2));
    index.check_integrity();
    compact(index);
    CHECK(index.stats().outputs == 9);
  }
}

void test_segments_are_no_longer_than_they_may_be() {
  Random random(11);
  Model model;
  GlobalIndexConfig config = small_config();
  config.max_segment_tokens = 300;
  model.index = GlobalIndex(config);
  for (int i = 0; i < 60; ++i) {
    model.add("a", draw_text(random, 33, 5));
    compact(model.index);
  }
  for (const GlobalPart& part : model.index.find("a")) CHECK(part.tokens().size() <= 300);
  CHECK(model.index.find("a").size() >= 60 * 34 / 300);
  CHECK(model.texts("a") == model.expected("a"));
}

void test_random_lives() {
  Random random(9);
  for (int round = 0; round < 30; ++round) {
    const std::size_t budget_bytes = round % 2 == 0 ? 1 << 20 : 12'000;
    Model model(budget_bytes);
    std::optional<GlobalIndex::Plan> plan;
    std::shared_ptr<const Segment> segment;
    for (int step = 0; step < 150; ++step) {
      const std::string name = draw(random, 0, 1) == 0 ? "a" : "b";
      const int action = draw(random, 0, 19);
      if (action < 9) {
        model.add(name, draw_text(random, draw(random, 1, 40), 5), 0);
      } else if (action < 11 && model.last_id > 0) {
        const auto id = static_cast<std::uint64_t>(draw(random, 1, static_cast<std::int32_t>(model.last_id)));
        const auto before = model.outputs.size();
        model.erase(id);
        const bool was_there = model.outputs.size() < before;
        CHECK(model.index.erase_output(id) == was_there || budget_bytes < 1 << 20);
      } else if (action < 14) {
        plan = model.index.plan();
        if (plan) segment = GlobalIndex::seal(*plan, kIdentity);
      } else if (action < 17 && plan) {
        // The life has gone on since it was planned.
        (void)model.index.publish(*plan, std::move(segment));
        plan.reset();
      } else if (action == 17) {
        plan = model.index.plan_merge_of_all(name);
        if (plan) segment = GlobalIndex::seal(*plan, kIdentity);
      } else if (action == 18 && draw(random, 0, 9) == 0) {
        (void)model.index.erase_namespace(name);
        std::erase_if(model.outputs, [&](const auto& output) { return output.first == name; });
      } else {
        compact(model.index);
        CHECK(model.index.stats().bytes <= budget_bytes);
      }
      model.index.check_integrity();
      for (const std::string one : {"a", "b"}) {
        const auto expected = model.expected(one);
        const auto found = model.texts(one);
        // What is evicted are the oldest ones.
        CHECK(found.size() <= expected.size());
        if (found.size() > expected.size()) continue;
        CHECK(std::equal(found.rbegin(), found.rend(), expected.rbegin()));
        CHECK(budget_bytes < 1 << 20 || found.size() == expected.size());
      }
    }
  }
}

}  // namespace

int main() {
  return run({test_a_full_part_is_sealed, test_parts_are_merged_as_they_grow,
              test_what_a_plan_reads_is_not_appended_to, test_a_plan_whose_parts_have_changed_is_refused,
              test_a_refused_plan_stays_refused, test_giving_up_makes_room_all_the_same,
              test_erasing_an_output_that_is_being_added, test_erasing_a_namespace_that_is_being_added_to,
              test_outputs_that_were_loaded_twice_are_erased_twice,
              test_segments_are_no_longer_than_they_may_be, test_random_lives});
}
