#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "suffix_automaton.h"

namespace agentspec {

// Lets maps with string keys be searched by a string_view without a copy.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Some outputs of one namespace that were kept one after another. It is the unit of eviction.
struct Segment {
  explicit Segment(std::uint64_t segment_id, std::int32_t max_counted_length)
      : id(segment_id), automaton(max_counted_length) {}

  std::uint64_t id;               // the number of its first output in the order of all kept; never used again
  std::uint32_t num_outputs = 0;  // rises with every change, so that it serves as a version too
  SuffixAutomaton automaton;
};

using Segments = std::deque<std::unique_ptr<Segment>>;  // oldest first

struct GlobalIndexStats {
  std::size_t bytes = 0;
  std::size_t namespaces = 0;
  std::size_t outputs = 0;
  std::size_t output_tokens = 0;
  std::uint64_t evicted_outputs = 0;
};

// The finished outputs of each namespace, within one budget of bytes for all namespaces together.
//
//     namespace "a"   [segment 0: outputs 0 1 4] [segment 5: outputs 5 6]
//     namespace "b"   [segment 2: outputs 2 3 7]
//                      ^ evicted first            ^ evicted last
//
// Outputs are added to a namespace's last segment until it may outgrow its share of the budget. Eviction
// drops the segment with the smallest id as a whole, so what a namespace retains is always its latest
// outputs.
class GlobalIndex {
 public:
  GlobalIndex(std::size_t budget_bytes, std::int32_t max_counted_length);

  // Keeps an output and evicts until bytes() <= budget. An empty output is ignored; one that does not fit the
  // whole budget is not kept and counts as evicted.
  void add(std::string_view name, std::span<const Token> output);
  void clear();

  // The segments of one namespace and of no other; nullptr if it has none.
  [[nodiscard]] const Segments* find(std::string_view name) const;
  [[nodiscard]] const GlobalIndexStats& stats() const { return stats_; }
  void check_integrity() const;

 private:
  struct Namespace {
    std::string_view name;  // the key in namespaces_
    Segments segments;      // never empty, ids rise
  };

  static std::size_t segment_bytes(const Segment& segment);
  static std::size_t namespace_bytes(const Namespace& space);
  Segment& open_segment(Namespace& space, std::size_t num_tokens);
  void drop(const Segment& segment, Namespace& space);

  std::size_t budget_bytes_;
  std::int32_t max_counted_length_;
  std::uint64_t next_output_ = 0;
  std::unordered_map<std::string, Namespace, StringHash, std::equal_to<>> namespaces_;
  std::map<std::uint64_t, Namespace*> by_age_;  // segment id -> its namespace, every segment
  GlobalIndexStats stats_;
};

}  // namespace agentspec
