#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "index/global_index.h"

// Shared by the tests of the global index: an index, and a model of what it must contain.

namespace agentspec::test {

inline constexpr Segment::Identity kIdentity{
    .num_token_ids = 100, .tokenizer = {}, .kind = SegmentKind::kOutputs};
inline constexpr std::size_t kFull = 64;

inline GlobalIndexConfig small_config(std::size_t budget_bytes = 1 << 20) {
  return {.budget_bytes = budget_bytes,
          .max_growing_tokens = kFull,
          .max_counted_length = 20,
          .identity = kIdentity};
}

// Adds outputs, numbered from 1 on, and remembers what each namespace must contain.
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

  // The texts of a namespace as its parts hold them, without deleted outputs.
  [[nodiscard]] std::vector<Text> texts(const std::string& name) const {
    std::vector<Text> result;
    for (const GlobalPart& part : index.find(name)) {
      const auto tokens = part.tokens();
      for (const OutputRecord& record : part.outputs()) {
        const auto which = static_cast<std::size_t>(&record - part.outputs().data());
        const auto begin = tokens.begin() + record.begin;
        if (!part.is_dead(which)) result.emplace_back(begin, std::find(begin, tokens.end(), kEnd));
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

// Returns whether any output was deleted, including one that is being added.
inline bool erase_if(GlobalIndex& index, const std::string* name, const GlobalIndex::IsErased& is_erased) {
  GlobalIndex::Erasure erasure = index.plan_erasure(name, is_erased);
  index.erase(erasure);
  return erasure.num_outputs() > 0 || erasure.has_partial();
}

inline bool erase_output(GlobalIndex& index, std::uint64_t id) {
  return erase_if(index, nullptr, [=](const OutputRecord& output) { return output.id == id; });
}

// Executes plans until none is left. Returns their number.
inline int compact(GlobalIndex& index) {
  int num_plans = 0;
  while (const auto plan = index.plan()) {
    (void)index.publish(*plan, GlobalIndex::seal(*plan, kIdentity));
    index.check_integrity();
    ++num_plans;
  }
  return num_plans;
}

}  // namespace agentspec::test
