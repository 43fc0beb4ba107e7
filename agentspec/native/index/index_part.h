#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "index/suffix_array/suffix_array.h"
#include "index/suffix_automaton.h"

namespace agentspec {

// Half-open ranges of a segment's text that were deleted and must not be drafted from. Sorted and disjoint.
using DeadRanges = std::span<const std::pair<std::uint32_t, std::uint32_t>>;

// One index of a source: the automaton of a growing text, or a sealed segment.
struct IndexPart {
  const SuffixAutomaton* automaton = nullptr;  // null if the part is a segment
  const Segment* segment = nullptr;
  std::int64_t age_of_end = 0;  // number of tokens that the source has grown by since the end of this part
  DeadRanges dead;

  [[nodiscard]] bool is_live(std::uint32_t position) const {
    if (dead.empty()) return true;
    const auto after = std::upper_bound(dead.begin(), dead.end(), std::pair{position, UINT32_MAX});
    return after == dead.begin() || std::prev(after)->second <= position;
  }
};

// Where the end of a request's text occurs in a part.
struct PartMatch {
  IndexPart part;
  StateMatch state;      // for an automaton
  ContextMatch context;  // for a segment
  [[nodiscard]] std::int32_t length() const { return part.automaton ? state.length : context.length; }
};

// Iterates from a match to shorter and shorter patterns. All patterns of more than `next_length` and at most
// `length` tokens have the same occurrences.
struct Walk {
  std::uint16_t part = 0;
  std::int32_t length = 0;
  std::int32_t next_length = 0;
  StateId state = kInitialState;
  Interval interval;
  Interval next_interval;

  // Starts with the last `max_length` tokens of the match, or with all if it is shorter.
  Walk(std::uint16_t number, const PartMatch& match, std::int32_t max_length)
      : part(number),
        length(std::min(match.length(), max_length)),
        state(match.state.state),
        interval(match.context.interval) {
    if (length <= 0) return;
    if (const SuffixAutomaton* const automaton = match.part.automaton; automaton != nullptr) {
      while (automaton->link_length(state) >= length) state = automaton->link(state);
    } else if (length < match.context.length) {
      interval = match.part.segment->widen(match.context, length);
    }
    find_next(match.part);
  }

  void find_next(const IndexPart& source) {
    if (source.automaton != nullptr) {
      next_length = std::max(source.automaton->link_length(state), 0);
      return;
    }
    const ContextMatch shorter = source.segment->parent({length, interval});
    next_length = shorter.length;
    next_interval = shorter.interval;
  }

  // Moves to the occurrences of patterns of `pattern_length` tokens. Stays where it is if the match is
  // shorter.
  void shorten(const IndexPart& source, std::int32_t pattern_length) {
    while (length > 0 && next_length >= pattern_length) {
      length = next_length;
      if (length == 0) return;
      if (source.automaton != nullptr) {
        state = source.automaton->link(state);
      } else {
        interval = next_interval;
      }
      find_next(source);
    }
  }

  [[nodiscard]] bool occurs(std::int32_t pattern_length) const { return length >= pattern_length; }
  // The next smaller length at which the occurrences change, seen from patterns of `pattern_length` tokens.
  [[nodiscard]] std::int32_t next_change(std::int32_t pattern_length) const {
    return occurs(pattern_length) ? next_length : length;
  }
};

// The occurrences of one context in one part.
struct Cursor {
  enum class Kind : std::uint8_t {
    kState,     // `first` is a state of an automaton
    kInterval,  // ranks [first, first + count) of a segment
    kPoints,    // `count` positions of a segment, in the drafter's points from `first` on
  };
  Kind kind;
  std::uint8_t slot;
  std::uint16_t part;
  std::int32_t length;  // of the context at the root; below 1 if the context starts on the path from there
  std::int32_t first;
  std::uint32_t count;

  // The ranks of a kInterval cursor.
  [[nodiscard]] Interval interval() const {
    const auto begin = static_cast<std::uint32_t>(first);
    return {begin, begin + count};
  }
};

}  // namespace agentspec
