// Eviction: what the global index drops when it exceeds its budget.
//
// The oldest outputs are dropped first, whatever their namespace: the part that holds the oldest output of
// all is sealed again without its oldest ones, as in a merge.

#include <algorithm>

#include "index/global_index.h"

namespace agentspec {
namespace {

// Each eviction drops at least 1 / kEvictedShare of a part.
constexpr std::size_t kEvictedShare = 4;

}  // namespace

std::optional<GlobalIndex::Plan> GlobalIndex::plan_eviction() {
  const auto found = std::find_if(order_.begin(), order_.end(), [&](const Place& place) {
    return target_ != place.space || place.space->parts.size() > 1;
  });
  if (found == order_.end()) return std::nullopt;
  GlobalPart& oldest = found->space->parts.front();
  Plan plan = make_plan(*found->space, {&oldest, 1});
  const std::span<const OutputRecord> outputs = oldest.outputs();
  const std::size_t num_tokens = oldest.num_tokens();
  const std::size_t excess = (bytes_ - config_.budget_bytes) / (oldest.bytes / (num_tokens + 1) + 1);
  const std::size_t wanted = std::max(num_tokens / kEvictedShare, excess);
  while (plan.num_dropped < outputs.size()) {
    ++plan.num_dropped;
    const std::size_t dropped =
        plan.num_dropped < outputs.size() ? outputs[plan.num_dropped].begin : num_tokens;
    if (dropped >= wanted) break;
  }
  return plan;
}

std::vector<GlobalPart> GlobalIndex::give_up(const Plan& plan) {
  const std::optional<std::size_t> first = find_inputs(plan);
  if (!first) return {};
  Namespace& space = namespaces_.find(plan.name)->second;
  for (const GlobalPart& part : plan.inputs) evicted_outputs_ += part.outputs().size() - part.dead.size();
  std::vector<GlobalPart> taken = take(space, *first, plan.inputs.size());
  if (space.parts.empty() && target_ != &space) remove_space(space);
  return taken;
}

}  // namespace agentspec
