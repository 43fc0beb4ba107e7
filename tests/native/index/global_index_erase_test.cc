// Deletes outputs from the global index, in every kind of part and during every kind of work on it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "index/global_index.h"
#include "index/global_index_model.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

void test_erasing_an_output_that_is_being_added() {
  Random random(7);
  Model model;
  model.add("a", draw_text(random, 20, 5));
  const Output output{99, draw_text(random, 30, 5), 0, 0};
  CHECK(model.index.begin("a", output));
  CHECK(!model.index.add_slice(output, 10));
  model.index.check_integrity();
  CHECK(model.index.stats().outputs == 1);
  // An earlier output may be deleted meanwhile.
  CHECK(erase_output(model.index, 1));
  model.erase(1);
  CHECK(!model.index.add_slice(output, 10));
  model.index.check_integrity();
  CHECK(erase_output(model.index, 99));
  CHECK(model.index.add_slice(output, 10));
  CHECK(!erase_output(model.index, 99));
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
    index.add_segments("a", {{segment, {}}, {segment, {}}});
    index.add_segments("b", {{segment, {}}});
    if (is_merged) {
      const auto both = index.plan_merge_of_all("a");
      (void)index.publish(*both, GlobalIndex::seal(*both, kIdentity));
    }
    CHECK(index.stats().outputs == 12);
    CHECK(erase_output(index, 2));
    CHECK(index.stats().outputs == 9);
    CHECK(!erase_output(index, 2));
    index.check_integrity();
    compact(index);
    CHECK(index.stats().outputs == 9);
  }
}

void test_what_is_deleted_leaves_memory() {
  Random random(12);
  Model model;
  for (int i = 0; i < 9; ++i) model.add("a", draw_text(random, 20, 5));
  CHECK(compact(model.index) > 0);
  const std::shared_ptr<const Segment> before = model.index.find("a").front().segment;
  const std::size_t num_sealed = before->outputs().size();
  CHECK(num_sealed > 3);
  CHECK(model.index.snapshot("a").segments.size() == 1);
  for (const std::uint64_t id : {1U, 3U}) {
    CHECK(erase_output(model.index, id));
    model.erase(id);
  }
  CHECK(model.index.snapshot("a").segments.empty());
  CHECK(model.index.snapshot("a").unsealed.size() == 7);
  // The growing part is sealed first.
  model.add("a", draw_text(random, 5 * 64, 5));
  const auto urgent = model.index.plan();
  CHECK(urgent && urgent->inputs.back().growing != nullptr);
  CHECK(compact(model.index) > 0);
  for (const GlobalPart& part : model.index.find("a")) CHECK(part.dead.empty());
  CHECK(model.index.snapshot("a").unsealed.empty());
  CHECK(model.texts("a") == model.expected("a"));
  CHECK(compact(model.index) == 0);
}

void test_outputs_are_deleted_many_at_a_time() {
  Random random(13);
  for (int round = 0; round < 20; ++round) {
    Model model;
    for (int i = 0; i < 12; ++i) model.add(i % 3 == 0 ? "b" : "a", draw_text(random, 20, 5));
    if (round % 2 == 0) compact(model.index);
    const auto plan = round % 4 < 2 ? model.index.plan_merge_of_all("a") : std::nullopt;
    const auto limit = static_cast<std::uint64_t>(draw(random, 0, 13));
    const std::string name = "a";
    const auto is_erased = [=](const OutputRecord& output) { return output.id <= limit; };
    GlobalIndex::Erasure erasure = model.index.plan_erasure(&name, is_erased);
    CHECK(model.texts("a") == model.expected("a"));
    model.index.erase(erasure);
    const std::size_t num_erased = std::erase_if(
        model.outputs, [&](const auto& output) { return output.first == "a" && output.second.id <= limit; });
    CHECK(erasure.num_outputs() == num_erased);
    CHECK(erasure.names().size() == (num_erased > 0 ? 1U : 0U));
    CHECK(model.index.find("a").empty() == model.expected("a").empty());
    model.index.check_integrity();
    if (plan) (void)model.index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
    for (const std::string one : {"a", "b"}) CHECK(model.texts(one) == model.expected(one));
    compact(model.index);
    for (const std::string one : {"a", "b"}) CHECK(model.texts(one) == model.expected(one));
  }
}

}  // namespace

int main() {
  return run({test_erasing_an_output_that_is_being_added, test_erasing_a_namespace_that_is_being_added_to,
              test_outputs_that_were_loaded_twice_are_erased_twice, test_what_is_deleted_leaves_memory,
              test_outputs_are_deleted_many_at_a_time});
}
