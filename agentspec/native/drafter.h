#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "suffix_automaton.h"

namespace agentspec {

// Where a draft was found. The values are agentspec.Source's.
enum class Source : std::uint8_t { kRoot = 0, kRequest = 1, kGlobal = 2 };

struct DraftLimits {
  std::int32_t max_pattern = 64;  // P
  double alpha = 4.0;             // a pattern of p tokens drafts at most floor(alpha * p)
  double min_token_prob = 0.1;    // nodes with a smaller estimate are not drafted
  bool chain = false;             // each node has one child at most
};

// A node of a draft without its root; parents are numbered with the root as 0 and the first node as 1.
struct DraftNode {
  Token token;
  std::int32_t parent;
  double estimate;  // D(N)
};

struct Draft {
  Source source = Source::kRoot;  // kRoot: nothing to draft
  std::int32_t match_length = 0;
  double score = 0.0;
  std::vector<DraftNode> nodes;  // in the order they were added, best first
};

// Where the end of a text was found in one automaton: the longest suffix of the text that occurs in it, or
// one of at least P tokens. It lies in `state`.
struct Match {
  StateId state = kInitialState;
  std::int32_t length = 0;

  void advance(const SuffixAutomaton& automaton, Token token);
};

// SuffixDecoding's algorithm 1: grows one tree for each source and each length of pattern, best estimates
// first, and returns the one with the best score. It holds scratch memory only, so each call stands for
// itself.
class Drafter {
 public:
  explicit Drafter(const DraftLimits& limits);

  // `request` is the automaton of the request's own text. `segments` are the global automata, oldest first,
  // with the match of the text in each. All stay what they are; only hubs are put in order, to be searched
  // faster. The result is valid until the next call.
  const Draft& draft(SuffixAutomaton& request, std::span<SuffixAutomaton* const> segments,
                     std::span<const Match> matches, std::int32_t max_nodes);

 private:
  // A state in one of a source's automata.
  struct Place {
    std::int32_t automaton;
    StateId state;
  };

  // A string that may be drafted: the places of all automata where it occurs, in places_.
  struct Candidate {
    double estimate;
    std::int64_t recency;  // larger: occurred later
    std::int32_t parent;
    Token token;
    std::uint32_t first_place;
    std::uint32_t num_places;
  };

  // The patterns of one source from the longest to the shortest. Lengths whose places are the same share
  // their continuations; of these only the longest counts, since it may draft the most.
  class Patterns {
   public:
    void start(std::span<SuffixAutomaton* const> automata, std::span<const Match> matches,
               std::int32_t max_pattern);
    void advance();
    [[nodiscard]] std::int32_t length() const { return length_; }  // 0: no more
    [[nodiscard]] std::span<const Place> places() const { return places_; }
    [[nodiscard]] std::span<SuffixAutomaton* const> automata() const { return automata_; }

   private:
    void gather();

    std::span<SuffixAutomaton* const> automata_;
    std::vector<Match> ends_;  // per automaton; ends_[i].length >= length_: its state contains the pattern
    std::vector<Place> places_;
    std::int32_t length_ = 0;
  };

  void grow(const Patterns& patterns, Source source, std::int32_t max_nodes);
  void expand(std::span<SuffixAutomaton* const> automata, std::int32_t node, double estimate,
              std::size_t first, std::size_t count, std::size_t room);
  [[nodiscard]] std::int32_t max_spec(std::int32_t pattern_length, std::int32_t max_nodes) const;

  DraftLimits limits_;
  Patterns request_;
  Patterns global_;
  Draft best_;
  Draft current_;
  std::vector<Candidate> heap_;
  std::vector<Candidate> children_;
  std::vector<Token> tokens_;
  std::vector<Place> places_;
};

}  // namespace agentspec
