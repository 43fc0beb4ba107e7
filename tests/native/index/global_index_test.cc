// The parts of the global index: what is planned, sealed, published and refused.

#include "index/global_index.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "index/global_index_model.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

void test_what_a_plan_reads_is_not_appended_to() {
  // The oldest part is the growing one. It is being made smaller while its namespace grows.
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
  // It has not been published, so the part is still waiting to be sealed.
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
    if (how >= 2) CHECK(compact(model.index) == 1);  // sealed before, and merged with another part
    if (how >= 2) model.add("a", draw_text(random, 70, 5));
    const auto plan = model.index.plan();
    CHECK(plan.has_value());
    if (!plan) continue;
    if (how % 2 == 0) {
      CHECK(erase_output(model.index, id));
      model.erase(id);
    } else {
      CHECK(!model.index.erase_namespace("a").empty());
      model.outputs.clear();
      model.add("a", draw_text(random, 40, 5));
    }
    const auto before = model.texts("a");
    const auto bytes = model.index.stats().bytes;
    const auto freed = model.index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
    CHECK(model.texts("a") == before);
    if (how == 2) {
      // What was deleted from a segment is deleted from its replacement too.
      CHECK(freed.size() == plan->inputs.size());
      CHECK(model.index.find("a").front().dead.size() == 1);
      CHECK(model.index.snapshot("a").segments.empty());
    } else {
      CHECK(freed.size() == 1 && freed[0].segment != nullptr);
      CHECK(model.index.stats().bytes == bytes);
    }
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

void test_segments_come_before_what_is_there() {
  Random random(14);
  Model source;
  std::vector<GlobalIndex::DeadSegment> segments;
  for (const std::string name : {"first", "second"}) {
    for (int i = 0; i < 3; ++i) source.add(name, draw_text(random, 20, 5));
    segments.push_back({GlobalIndex::seal(*source.index.plan_merge_of_all(name), kIdentity), {}});
  }
  segments[1].dead.push_back({0, segments[1].segment->outputs()[1].begin});
  Model model;
  model.last_id = 100;
  model.add("a", draw_text(random, 20, 5));
  model.index.add_segments("a", segments);
  model.index.check_integrity();
  std::vector<Text> expected = source.expected("first");
  for (const std::size_t which : {1U, 2U}) expected.push_back(source.expected("second")[which]);
  expected.push_back(model.expected("a").front());
  CHECK(model.texts("a") == expected);
  compact(model.index);
  CHECK(model.texts("a") == expected);
  // If all outputs are known, nothing is added.
  segments.resize(1);
  for (std::size_t i = 0; i < 3; ++i) segments[0].dead.push_back({});
  model.index.add_segments("b", segments);
  CHECK(model.index.find("b").empty());
  CHECK(model.index.namespaces().size() == 1);
}

void test_the_oldest_are_evicted_first() {
  Random random(15);
  Model source;
  std::vector<std::shared_ptr<const Segment>> segments;
  for (const std::int64_t time : {300, 100, 200}) {
    GlobalIndex index(small_config());
    const Output output{static_cast<std::uint64_t>(time), draw_text(random, 40, 5), 0, time};
    CHECK(index.begin("x", output));
    CHECK(index.add_slice(output, 100));
    segments.push_back(GlobalIndex::seal(*index.plan_merge_of_all("x"), kIdentity));
  }
  // Outputs from elsewhere go by their times, whatever order they came in; then the others in the order they
  // came.
  GlobalIndex index(small_config(9'000));
  for (std::size_t i = 0; i < 3; ++i) index.add_segments("c" + std::to_string(i), {{segments[i], {}}});
  std::vector<std::string> evicted;
  std::vector<std::string> names = {"c0", "c1", "c2"};
  for (std::uint64_t id = 1000; evicted.size() < 5; ++id) {
    const Output output{id, draw_text(random, 40, 5), 0, 0};
    names.push_back("d" + std::to_string(id));
    CHECK(index.begin(names.back(), output));
    CHECK(index.add_slice(output, 100));
    compact(index);
    std::erase_if(names, [&](const std::string& name) {
      if (!index.find(name).empty()) return false;
      evicted.push_back(name);
      return true;
    });
  }
  CHECK((std::vector<std::string>(evicted.begin(), evicted.begin() + 5) ==
         std::vector<std::string>{"c1", "c2", "c0", "d1000", "d1001"}));
}

// The smallest id that is left in any namespace, and its namespace.
std::pair<std::uint64_t, std::string> oldest_of_all(const GlobalIndex& index,
                                                    const std::vector<std::string>& names) {
  std::pair<std::uint64_t, std::string> oldest{UINT64_MAX, ""};
  for (const std::string& name : names) {
    for (const GlobalPart& part : index.find(name)) {
      for (std::size_t i = 0; i < part.outputs().size(); ++i) {
        if (!part.is_dead(i)) oldest = std::min(oldest, {part.outputs()[i].id, name});
      }
    }
  }
  return oldest;
}

void test_each_eviction_drops_the_oldest_output_of_all() {
  Random random(21);
  const std::vector<std::string> names = {"busy", "second", "third", "quiet"};
  int num_evictions = 0;
  for (int round = 0; round < 20; ++round) {
    GlobalIndex index(small_config(20'000));
    // Ids and times of outputs from elsewhere rise together, and the ids of all others are larger.
    std::uint64_t id = 0;
    for (const std::string& name : names) {
      GlobalIndex source(small_config());
      for (int i = 0; i < 4; ++i) {
        const Output output{++id, draw_text(random, 20, 5), 0, static_cast<std::int64_t>(id)};
        CHECK(source.begin("x", output));
        CHECK(source.add_slice(output, 100));
      }
      index.add_segments(name, {{GlobalIndex::seal(*source.plan_merge_of_all("x"), kIdentity), {}}});
    }
    for (int step = 0; step < 300; ++step) {
      // Half of the outputs are of one namespace, and one in sixteen is of the last one.
      const int lot = draw(random, 0, 15);
      const Output output{++id, draw_text(random, draw(random, 1, 40), 5), 0, 0};
      CHECK(index.begin(names[lot < 8 ? 0 : lot < 12 ? 1 : lot < 15 ? 2 : 3], output));
      CHECK(index.add_slice(output, 100));
      const auto erased = static_cast<std::uint64_t>(draw(random, 1, static_cast<std::int32_t>(id)));
      if (step % 8 == 0) (void)erase_output(index, erased);
      while (const auto plan = index.plan()) {
        const auto [oldest, name] = oldest_of_all(index, names);
        if (plan->num_dropped > 0) CHECK(plan->name == name);
        (void)index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
        index.check_integrity();
        if (plan->num_dropped == 0) continue;
        ++num_evictions;
        CHECK(oldest_of_all(index, names).first > oldest);
      }
    }
  }
  CHECK(num_evictions > 1000);
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
        CHECK(erase_output(model.index, id) == was_there || budget_bytes < 1 << 20);
      } else if (action < 14) {
        plan = model.index.plan();
        if (plan) segment = GlobalIndex::seal(*plan, kIdentity);
      } else if (action < 17 && plan) {
        // Other operations have happened since it was planned.
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
        // The oldest outputs are the ones evicted.
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
  return run({test_what_a_plan_reads_is_not_appended_to, test_a_plan_whose_parts_have_changed_is_refused,
              test_a_refused_plan_stays_refused, test_giving_up_makes_room_all_the_same,
              test_segments_are_no_longer_than_they_may_be, test_segments_come_before_what_is_there,
              test_the_oldest_are_evicted_first, test_each_eviction_drops_the_oldest_output_of_all,
              test_random_lives});
}
