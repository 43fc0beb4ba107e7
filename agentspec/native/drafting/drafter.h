#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "drafting/estimator.h"
#include "index/index_part.h"
#include "index/suffix_automaton.h"
#include "index/token.h"

namespace agentspec {

// Where a node of a draft was found. The values are agentspec.Source's, whose MODEL no index drafts.
enum class Source : std::uint8_t { kRoot = 0, kRequest = 1, kGlobal = 2, kCorpus = 3 };

struct DraftLimits {
  std::int32_t max_pattern = 64;  // P
  double alpha = 4.0;             // the plain rule: a pattern of p tokens drafts at most floor(alpha * p)
  double min_token_prob = 0.1;    // nodes with a smaller estimate are not drafted
  bool chain = false;             // each node has one child at most
};

// A node of a draft without its root; parents are numbered with the root as 0 and the first node as 1.
struct DraftNode {
  Token token;
  std::int32_t parent;
  double estimate;  // the probability that the node is accepted, D(N)
  Source source;    // where most of its evidence is from
  Features features;
};

struct Draft {
  std::int32_t match_length = 0;  // of the longest pattern that was continued
  bool has_match = false;         // the text's end occurred before, whether or not it was continued
  double score = 0.0;

  std::vector<DraftNode> nodes;  // in the order they were added, best first
};

// What a request's next tokens are looked for in.
struct DraftSources {
  const Estimator* estimator = nullptr;  // what is made of it; the plain rule needs none
  const SuffixAutomaton* request = nullptr;
  std::span<const PartMatch> global;  // newest text last
  std::span<const PartMatch> corpora;
};

// Grows one tree from all sources, the likeliest continuation first (SSSD, algorithm 1; SuffixDecoding's
// D(N) with calibrated estimates in the place of shares).
//
//   1. Choose contexts. In each source: the longest pattern that occurs, then shorter ones that occur several
//      times as often; see kMoreOften.
//   2. Expand the root: unite what follows in all contexts, and estimate each continuation from what every
//      context says about it.
//   3. Take the continuation with the largest product of estimates from the root on, expand it with the
//      contexts made longer by its token, and go on until the tree is full or nothing likely is left. Where
//      none of the request's own text is left among them, as behind a template of other outputs that goes on
//      with a quotation, the longest end of the path that occurs there is one.
//
// It holds scratch memory only, so each call stands for itself; one thread at a time.
class Drafter {
 public:
  explicit Drafter(const DraftLimits& limits);

  // The result is valid until the next call.
  const Draft& draft(const DraftSources& sources, std::int32_t max_nodes);

  // What the drafter knew about continuations on the way that the request really took: a row for each
  // continuation that it weighed, as long as it weighed the true one.
  struct Trial {
    Features features;
    float estimate;  // D(N) of the continuation
    bool accepted;
  };
  void trials(const DraftSources& sources, std::span<const Token> truth, std::vector<Trial>& rows);

 private:
  struct Candidate {
    float estimate;
    std::int32_t parent;
    std::int32_t age;
    Token token;
    Source source;
    std::int32_t depth;
    std::uint32_t first_interval;
    Features features;
  };
  // What a node is continued by: its contexts in all parts, in cursors_.
  struct Place {
    std::uint32_t first_cursor = 0;
    std::uint32_t num_cursors = 0;
    StateMatch request;  // the longest end of text and path that occurs in the request's own text
  };
  // A continuation while the contexts of its parent are read.
  struct Child {
    Token token;
    float probability;
    std::int32_t age;
    std::uint32_t first_interval;  // in intervals_, one for each interval among the parent's contexts
    float share;                   // the largest among its contexts, as far as they were read
    std::array<std::int32_t, kNumSlots> seen;  // how often it occurred in each context
    std::array<std::int32_t, kNumSlots> met;   // how often it was met where a context was read in part only
    std::array<std::int32_t, kNumSlots> ages;  // tokens since it last occurred in each context
    Features features;
  };

  Place start(const DraftSources& sources);
  void add_contexts(std::span<const PartMatch> matches, std::uint16_t first_part, int first_slot,
                    int end_slot);
  void read_children(Place place, std::int32_t depth, double path);
  Child* child(Token token);
  [[nodiscard]] std::span<Child> children() { return {children_.data(), num_children_}; }
  void meet(std::size_t slot, Token token, std::int32_t occurrences);
  void keep_likely_children(float needed);
  void count(std::size_t slot, Token token, std::int32_t occurrences, std::int32_t age);
  Place descend(const Place& parent, std::int32_t depth, Token token, std::uint32_t first_interval);
  void to_points(Place& place, std::int32_t depth);
  void expand(Place place, std::int32_t node, std::int32_t depth, float estimate);
  [[nodiscard]] Source main_source(const Child& child) const;

  DraftLimits limits_;
  const Estimator* estimator_ = nullptr;  // of the sources
  Draft draft_;
  std::vector<IndexPart> parts_;  // the request's own, then the global ones, then the corpora
  std::array<std::int32_t, kNumSlots> lengths_{};  // of the contexts that are being read
  std::array<std::int32_t, kNumSlots> totals_{};
  std::array<std::int32_t, kNumSlots> read_{};  // how many of the totals were read
  std::int32_t match_length_ = 0;
  std::vector<Cursor> cursors_;
  std::vector<std::uint32_t> points_;
  std::vector<Interval> intervals_;  // of contexts made longer by a child's token
  std::vector<Place> places_;        // of the root and each node
  std::vector<Candidate> heap_;
  std::vector<Child> children_;  // the first num_children_ are in use
  std::size_t num_children_ = 0;
  std::array<Token, 64> met_;  // what follows the places that are being read
  std::size_t last_child_ = 0;
  std::vector<Cursor> tier_;
  std::vector<Walk> walks_;
};

}  // namespace agentspec
