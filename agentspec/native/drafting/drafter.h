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

// Where a draft node was found. The values are those of agentspec.Source; no index drafts its MODEL.
enum class Source : std::uint8_t { kRoot = 0, kRequest = 1, kGlobal = 2, kCorpus = 3 };

struct DraftLimits {
  std::int32_t max_pattern = 64;  // longest pattern that is looked up, P in the papers
  double alpha = 4.0;  // for the plain rule: a pattern of p tokens drafts at most floor(alpha * p) tokens
  double min_token_prob = 0.1;  // nodes with a smaller estimate are not drafted
  bool chain = false;           // each node has at most one child
  bool own_text = true;         // false: nothing is drafted from the request's own text
};

// A node of a draft, which stores no root. In parent numbers the root is 0 and the first node is 1.
struct DraftNode {
  Token token;
  std::int32_t parent;
  double estimate;  // the probability that the node is accepted, D(N)
  Source source;    // the source with most of its evidence
  Features features;
};

struct Draft {
  std::int32_t match_length = 0;  // length of the longest pattern that was continued
  bool has_match = false;         // the end of the text occurred before, whether or not it was continued
  double score = 0.0;

  std::vector<DraftNode> nodes;  // in the order they were added, likeliest first
};

// The indexes in which the continuations of a request are looked up.
struct DraftSources {
  const Estimator* estimator = nullptr;  // null for the plain rule, which needs none
  const SuffixAutomaton* request = nullptr;
  std::span<const PartMatch> global;  // newest text last
  std::span<const PartMatch> corpora;
};

// Grows one draft tree from all sources, the likeliest continuation first. The search is SSSD's algorithm 1;
// the node score D(N) is SuffixDecoding's, with calibrated estimates in place of relative frequencies.
//
//   1. Choose contexts. In each source: the longest pattern that occurs, then shorter patterns that occur
//      several times as often (kMoreOften).
//   2. Expand the root: collect what follows in all contexts, and estimate each continuation from the
//      evidence of every context.
//   3. Take the continuation with the largest product of estimates from the root. Expand it with its contexts
//      extended by its token. Repeat until the tree is full or nothing likely is left. If no context from the
//      request's own text is left, add the longest end of the path that occurs there. This finds a quotation
//      that follows a template of other outputs.
//
// A node takes a bounded number of reads and look-ups in each part; a look-up in a segment of n tokens takes
// O(log n) time. The drafter holds only scratch memory, so calls do not depend on each other. Not
// thread-safe.
class Drafter {
 public:
  explicit Drafter(const DraftLimits& limits);

  // The result is valid until the next call.
  const Draft& draft(const DraftSources& sources, std::int32_t max_nodes);

  // What the drafter knew about continuations along the path that the request really took. Adds one row for
  // each continuation that it weighed, for as long as the true one was among them.
  struct Trial {
    Features features;
    float estimate;  // D(N) of the continuation
    bool accepted;
  };
  void trials(const DraftSources& sources, std::span<const Token> truth, std::vector<Trial>& rows);

 private:
  // A continuation that may be drafted.
  struct Candidate {
    Token token;
    std::int32_t depth;
    std::uint32_t first_interval;
    Source source;
    Features features;
  };
  // Its place in the heap, which is small because the heap moves it often.
  struct Ranked {
    float estimate;
    std::int32_t age;
    std::int32_t parent;
    std::uint32_t candidate;  // in candidates_
  };
  // The contexts of a node in all parts, stored in cursors_.
  struct Place {
    std::uint32_t first_cursor = 0;
    std::uint32_t num_cursors = 0;
    StateMatch request;  // longest end of the text and the path that occurs in the request's own text
  };
  // The contexts of one slot, while they are being read.
  struct Context {
    std::uint8_t slot;
    std::int32_t length;
    std::int32_t total;   // number of continuations
    std::int32_t read;    // how many of them were read
    std::int32_t latest;  // the age of the latest
    std::uint16_t first_weight;
  };
  // A continuation, while the contexts of its parent are being read, with evidence from each of contexts_.
  struct Child {
    struct Evidence {
      std::int32_t seen;  // number of occurrences in the context
      std::int32_t met;   // number of occurrences met in a context that was read only in part
      std::int32_t age;   // tokens since its last occurrence in the context
    };
    Token token;
    float probability;
    std::int32_t age;
    std::uint32_t first_interval;  // in intervals_, one for each interval among the parent's contexts
    float share;                   // the largest share in any context
    std::array<Evidence, kNumSlots> evidence;
    Features features;
  };

  Place start(const DraftSources& sources);
  void add_contexts(std::span<const PartMatch> matches, std::uint16_t first_part, int first_slot,
                    int end_slot);
  void read_children(Place place, std::int32_t depth, double path);
  void find_contexts(std::span<const Cursor> cursors, std::int32_t depth);
  Child* child(Token token);
  [[nodiscard]] std::span<Child* const> children() const { return {weighed_.data(), num_weighed_}; }
  void meet(std::size_t context, Token token, std::int32_t occurrences);
  void keep_likely_children(float needed);
  void count(std::size_t context, Token token, std::int32_t occurrences, std::int32_t age);
  void estimate_children(std::int32_t depth, double path);
  Place descend(const Place& parent, std::int32_t depth, Token token, std::uint32_t first_interval);
  void to_points(Place& place, std::int32_t depth);
  void expand(Place place, std::int32_t node, std::int32_t depth, float estimate);
  [[nodiscard]] Source main_source(const Child& child) const;

  DraftLimits limits_;
  const Estimator* estimator_ = nullptr;  // that of the sources
  Draft draft_;
  std::vector<IndexPart> parts_;  // the request's own part, then the global parts, then the corpora
  std::array<Context, kNumSlots> contexts_;  // only the first num_contexts_ are in use
  std::size_t num_contexts_ = 0;
  std::array<std::uint8_t, kNumSlots> context_of_{};  // by slot; meaningless where there is none
  std::int32_t match_length_ = 0;
  std::vector<Cursor> cursors_;
  std::vector<std::uint32_t> points_;
  std::vector<Interval> intervals_;  // of contexts extended by a child's token
  std::vector<Place> places_;        // of the root and of each node
  std::vector<Candidate> candidates_;
  std::vector<Ranked> heap_;
  static constexpr std::size_t kMaxChildren = 64;
  std::array<Child, kMaxChildren> children_;  // only the first num_children_ are in use
  std::array<Token, kMaxChildren> tokens_;    // theirs, close together for a fast search
  std::size_t num_children_ = 0;
  std::array<std::uint8_t, 256> found_at_{};  // by the low bits of a token: the child that was found last
  std::array<Child*, kMaxChildren> weighed_;  // the children that may be drafted
  std::size_t num_weighed_ = 0;
  std::array<Token, 64> met_;  // the tokens that follow the places being read
  std::vector<Cursor> tier_;
  std::vector<Walk> walks_;
};

}  // namespace agentspec
