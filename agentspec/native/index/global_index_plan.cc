// Plans that seal, merge and rewrite parts. The plans that drop outputs are in eviction.cc.

#include <algorithm>
#include <utility>

#include "index/global_index.h"

namespace agentspec {
namespace {

// A part is merged with the parts after it once they have 1 / kMergeRatio of its size. So a namespace has few
// parts, and each token is sealed only a few times.
constexpr std::size_t kMergeRatio = 16;

// Calls visit(part, output) for each output that goes into the plan's segment, in order.
template <typename Visit>
void visit_kept(const GlobalIndex::Plan& plan, const Visit& visit) {
  std::size_t to_drop = plan.num_dropped;
  for (std::size_t part = 0; part < plan.inputs.size(); ++part) {
    for (std::size_t i = 0; i < plan.inputs[part].outputs().size(); ++i) {
      if (to_drop > 0) {
        --to_drop;
      } else if (!plan.inputs[part].is_dead(i)) {
        visit(part, i);
      }
    }
  }
}

}  // namespace

GlobalIndex::Plan GlobalIndex::make_plan(Namespace& space, std::span<GlobalPart> inputs) {
  Plan plan{std::string(space.name), {inputs.begin(), inputs.end()}, 0};
  for (GlobalPart& part : inputs) part.is_frozen = true;
  mark(space, Work::kSeal);
  return plan;
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan() {
  // Sealing comes first, because it saves memory and drops nothing. But if outputs arrive faster than they
  // are sealed, sealing alone would never end and the index would grow. So in a crowded index, sealing and
  // eviction alternate.
  if (std::exchange(has_sealed_crowded_, false) && is_crowded()) {
    if (auto plan = plan_eviction()) return plan;
  }
  // A namespace stays marked until nothing is left to do for it.
  while (Namespace* const space = marked(Work::kSeal)) {
    if (auto plan = plan_sealing(*space)) {
      has_sealed_crowded_ = is_crowded();
      return plan;
    }
    unmark(*space, Work::kSeal);
  }
  while (Namespace* const space = marked(Work::kRewrite)) {
    if (auto plan = plan_rewriting(*space)) return plan;
    unmark(*space, Work::kRewrite);
  }
  return bytes_ > config_.budget_bytes ? plan_eviction() : std::nullopt;
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan_sealing(Namespace& space) {
  std::vector<GlobalPart>& parts = space.parts;
  std::size_t closed = parts.size();
  if (closed > 0 && (target_ == &space || !is_closed(parts.back()))) --closed;
  std::size_t first = 0;
  while (first < closed && !parts[first].growing) ++first;
  if (first == closed) return std::nullopt;
  std::size_t merged = 0;
  for (std::size_t i = first; i < closed; ++i) merged += parts[i].num_tokens();
  while (first > 0 && parts[first - 1].num_tokens() < kMergeRatio * merged &&
         parts[first - 1].num_tokens() + merged <= config_.max_segment_tokens) {
    merged += parts[--first].num_tokens();
  }
  return make_plan(space, std::span(parts).subspan(first, closed - first));
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan_rewriting(Namespace& space) {
  const auto found = std::find_if(space.parts.begin(), space.parts.end(),
                                  [](const GlobalPart& part) { return !part.dead.empty(); });
  if (found == space.parts.end()) return std::nullopt;
  return make_plan(space, {found, 1});
}

std::optional<GlobalIndex::Plan> GlobalIndex::plan_merge_of_all(std::string_view name) {
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return std::nullopt;
  std::vector<GlobalPart>& parts = found->second.parts;
  if (parts.empty() || (parts.size() == 1 && !parts[0].growing && parts[0].dead.empty())) return std::nullopt;
  return make_plan(found->second, parts);
}

std::shared_ptr<const Segment> GlobalIndex::seal(const Plan& plan, const Segment::Identity& identity) {
  std::vector<Token> text;
  std::vector<OutputRecord> records;
  std::size_t num_tokens = 0;
  for (const GlobalPart& part : plan.inputs) num_tokens += part.num_tokens();
  text.reserve(num_tokens);
  visit_kept(plan, [&](std::size_t part, std::size_t which) {
    const GlobalPart& input = plan.inputs[part];
    const auto [begin, end] = input.range_of(which);
    records.push_back(input.outputs()[which]);
    records.back().begin = static_cast<std::uint32_t>(text.size());
    const std::span<const Token> output = input.tokens().subspan(begin, end - begin);
    text.insert(text.end(), output.begin(), output.end());
  });
  if (records.empty()) return nullptr;
  return Segment::build(text, records, identity);
}

std::optional<std::size_t> GlobalIndex::find_inputs(const Plan& plan) {
  const std::span<const GlobalPart> parts = find(plan.name);
  const auto same = [](const GlobalPart& a, const GlobalPart& b) {
    return a.id == b.id && a.num_tokens() == b.num_tokens();
  };
  const auto found = std::search(parts.begin(), parts.end(), plan.inputs.begin(), plan.inputs.end(), same);
  if (found == parts.end()) return std::nullopt;
  return static_cast<std::size_t>(found - parts.begin());
}

std::vector<GlobalPart> GlobalIndex::publish(const Plan& plan, std::shared_ptr<const Segment> segment) {
  const std::optional<std::size_t> first = find_inputs(plan);
  const auto found = namespaces_.find(plan.name);
  if (!first || (target_ == &found->second && *first + plan.inputs.size() == found->second.parts.size())) {
    GlobalPart refused;
    refused.segment = std::move(segment);
    std::vector<GlobalPart> freed;
    freed.push_back(std::move(refused));
    return freed;
  }
  Namespace& space = found->second;
  GlobalPart part;
  part.id = next_part_++;
  part.segment = std::move(segment);
  auto ages = std::make_shared<GlobalPart::Ages>();
  if (part.segment) ages->reserve(part.segment->outputs().size());
  // Outputs that were deleted after planning are in the new segment.
  std::size_t num_kept = 0;
  visit_kept(plan, [&](std::size_t input, std::size_t which) {
    const GlobalPart& replaced = space.parts[*first + input];
    if (replaced.is_dead(which)) part.dead.push_back(part.range_of(num_kept));
    ages->push_back(replaced.age_of(which));
    ++num_kept;
  });
  part.segment_ages = std::move(ages);
  std::vector<GlobalPart> replaced = take(space, *first, plan.inputs.size());
  for (std::size_t i = 0, left = plan.num_dropped; i < replaced.size() && left > 0; ++i) {
    for (std::size_t which = 0; which < replaced[i].outputs().size() && left > 0; ++which, --left) {
      if (!replaced[i].is_dead(which)) ++evicted_outputs_;
    }
  }
  if (num_kept > part.dead.size()) {
    if (!part.dead.empty()) mark(space, Work::kRewrite);
    update_bytes(
        *space.parts.insert(space.parts.begin() + static_cast<std::ptrdiff_t>(*first), std::move(part)));
    update_place(space);
  } else if (space.parts.empty()) {
    remove_space(space);
  }
  return replaced;
}

}  // namespace agentspec
