#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "drafting/drafter.h"
#include "index/index_part.h"

namespace agentspec {

// SuffixDecoding's algorithm 1 as published; other rules are compared with it. It grows one tree for each
// source and each pattern length, the largest share of occurrences first, and returns the tree with the
// largest sum of estimates. It does not use the corpora. It holds only scratch memory, so calls do not depend
// on each other. Not thread-safe.
class PlainDrafter {
 public:
  explicit PlainDrafter(const DraftLimits& limits);

  // The result is valid until the next call.
  const Draft& draft(const DraftSources& sources, std::int32_t max_nodes);

 private:
  // A string that may be drafted. places_ holds its occurrences in each part.
  struct Candidate {
    double estimate;
    std::int64_t recency;  // larger if it occurred later
    std::int32_t parent;
    std::int32_t length;  // of the pattern and the tokens after it
    Token token;
    std::uint32_t first_place;
    std::uint32_t num_places;
  };

  // The patterns of one source, from the longest to the shortest. Patterns with the same occurrences have the
  // same continuations; only the longest of them is used, since it may draft the most.
  class Patterns {
   public:
    void start(std::span<const PartMatch> parts, std::int32_t max_pattern);
    void advance();
    [[nodiscard]] std::int32_t length() const { return length_; }  // 0 if there are no more patterns
    [[nodiscard]] std::span<const Cursor> places() const { return places_; }
    [[nodiscard]] std::span<const PartMatch> parts() const { return parts_; }

   private:
    void gather();

    std::span<const PartMatch> parts_;
    std::vector<Walk> walks_;
    std::vector<Cursor> places_;
    std::int32_t length_ = 0;
  };

  void grow(const Patterns& patterns, Source source, std::int32_t max_nodes);
  void expand(std::span<const PartMatch> parts, const Candidate& node, std::int32_t number, std::size_t room);
  void find_tokens(const IndexPart& part, const Cursor& place);
  [[nodiscard]] std::int32_t max_spec(std::int32_t pattern_length, std::int32_t max_nodes) const;

  DraftLimits limits_;
  Patterns request_;
  Patterns global_;
  Draft best_;
  Draft current_;
  std::vector<Candidate> heap_;
  std::vector<Candidate> children_;
  std::vector<Token> tokens_;
  std::vector<Cursor> places_;
};

}  // namespace agentspec
