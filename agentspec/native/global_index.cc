#include "global_index.h"

#include <utility>

#include "errors.h"

namespace agentspec {
namespace {

// Eviction drops about this part of the budget at a time.
constexpr std::size_t kSegmentsPerBudget = 8;
// What the containers allocate beside the values, estimated: map nodes, deque blocks, malloc's own headers.
constexpr std::size_t kSegmentOverhead = 160;
constexpr std::size_t kNamespaceOverhead = 768;

void require(bool holds, const std::string& what) {
  if (!holds) throw IntegrityError("global index: " + what);
}

}  // namespace

GlobalIndex::GlobalIndex(std::size_t budget_bytes, std::int32_t max_counted_length)
    : budget_bytes_(budget_bytes), max_counted_length_(max_counted_length) {}

std::size_t GlobalIndex::segment_bytes(const Segment& segment) {
  return segment.automaton.bytes() + sizeof(Segment) + kSegmentOverhead;
}

std::size_t GlobalIndex::namespace_bytes(const Namespace& space) {
  return space.name.size() + sizeof(Namespace) + kNamespaceOverhead;
}

const Segments* GlobalIndex::find(std::string_view name) const {
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? nullptr : &found->second.segments;
}

// The segment for an output of so many tokens: the last one, or a new one if that may outgrow its share.
Segment& GlobalIndex::open_segment(Namespace& space, std::size_t num_tokens) {
  if (!space.segments.empty()) {
    Segment& last = *space.segments.back();
    const std::size_t limit = budget_bytes_ / kSegmentsPerBudget;
    if (segment_bytes(last) + SuffixAutomaton::max_bytes(num_tokens) <= limit) return last;
    stats_.bytes -= segment_bytes(last);
    last.automaton.shrink_to_fit();
    stats_.bytes += segment_bytes(last);
  }
  space.segments.push_back(std::make_unique<Segment>(next_output_, max_counted_length_));
  Segment& segment = *space.segments.back();
  by_age_.emplace(segment.id, &space);
  stats_.bytes += segment_bytes(segment);
  return segment;
}

void GlobalIndex::add(std::string_view name, std::span<const Token> output) {
  if (output.empty()) return;
  // A token takes a state of its own at least, which saves building what cannot fit.
  if (output.size() * 32 > budget_bytes_) {
    ++stats_.evicted_outputs;
    return;
  }

  auto found = namespaces_.find(name);
  if (found == namespaces_.end()) {
    found = namespaces_.emplace(std::string(name), Namespace{}).first;
    found->second.name = found->first;
    stats_.bytes += namespace_bytes(found->second);
    ++stats_.namespaces;
  }
  Namespace& space = found->second;
  Segment& segment = open_segment(space, output.size());
  const std::size_t bytes_before = segment_bytes(segment);
  for (const Token token : output) segment.automaton.append(token);
  segment.automaton.finish();
  if (segment.num_outputs == 0) segment.automaton.shrink_to_fit();
  ++segment.num_outputs;
  ++next_output_;
  ++stats_.outputs;
  stats_.output_tokens += output.size();
  stats_.bytes += segment_bytes(segment) - bytes_before;

  // Too large even alone: it must not push out everything else first.
  if (segment.num_outputs == 1 && segment_bytes(segment) + namespace_bytes(space) > budget_bytes_) {
    drop(segment, space);
  }
  while (stats_.bytes > budget_bytes_) {
    const auto& [id, oldest] = *by_age_.begin();
    drop(*oldest->segments.front(), *oldest);
  }
}

// The segment must be the first or the last of its namespace.
void GlobalIndex::drop(const Segment& segment, Namespace& space) {
  stats_.bytes -= segment_bytes(segment);
  stats_.outputs -= segment.num_outputs;
  stats_.output_tokens -= static_cast<std::size_t>(segment.automaton.num_tokens());
  stats_.evicted_outputs += segment.num_outputs;
  by_age_.erase(segment.id);
  if (&segment == space.segments.front().get()) {
    space.segments.pop_front();
  } else {
    space.segments.pop_back();
  }
  if (!space.segments.empty()) return;
  stats_.bytes -= namespace_bytes(space);
  --stats_.namespaces;
  namespaces_.erase(namespaces_.find(space.name));
}

void GlobalIndex::clear() {
  by_age_.clear();
  namespaces_.clear();
  stats_ = {.evicted_outputs = stats_.evicted_outputs};
}

void GlobalIndex::check_integrity() const {
  GlobalIndexStats sum{.namespaces = namespaces_.size(), .evicted_outputs = stats_.evicted_outputs};
  std::size_t num_segments = 0;
  for (const auto& [name, space] : namespaces_) {
    require(space.name == name, "a namespace has another's name");
    require(!space.segments.empty(), "a namespace without segments");
    sum.bytes += namespace_bytes(space);
    for (std::size_t i = 0; i < space.segments.size(); ++i) {
      const Segment& segment = *space.segments[i];
      require(i == 0 || space.segments[i - 1]->id < segment.id, "segments out of order");
      const auto aged = by_age_.find(segment.id);
      require(aged != by_age_.end() && aged->second == &space,
              "a segment is missing from the order of eviction");
      require(segment.num_outputs > 0, "a segment without outputs");
      segment.automaton.check_integrity();
      sum.bytes += segment_bytes(segment);
      sum.outputs += segment.num_outputs;
      sum.output_tokens += static_cast<std::size_t>(segment.automaton.num_tokens());
      ++num_segments;
    }
  }
  require(num_segments == by_age_.size(), "the order of eviction names a segment that is gone");
  require(sum.bytes == stats_.bytes,
          "its bytes are " + std::to_string(sum.bytes) + ", counted were " + std::to_string(stats_.bytes));
  require(sum.namespaces == stats_.namespaces && sum.outputs == stats_.outputs &&
              sum.output_tokens == stats_.output_tokens,
          "its outputs were miscounted");
  require(stats_.bytes <= budget_bytes_ || stats_.outputs == 0, "it is larger than its budget");
}

}  // namespace agentspec
