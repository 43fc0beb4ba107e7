#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "index/edge_table.h"
#include "index/token.h"

namespace agentspec {

using StateId = std::int32_t;

inline constexpr StateId kInitialState = 0;
inline constexpr StateId kNoState = INT32_MIN;

// A suffix automaton (Blumer et al., 1985) over a growing text, with the number of occurrences of each
// string. The text may consist of several texts that each end with kEnd; strings that cross an end are not
// counted.
//
// A state stands for all strings that end at the same set of positions. They are suffixes of one another: the
// longest has `length` tokens and the shortest has length(link) + 1. All strings of a state share one count,
// one last position and one set of continuations.
//
// Two kinds of states share the ids:
//
//     id >= 0   the state of the text's first `id` tokens. Its length is its id, and its first edge leads
//               by the text's next token to the next id, so neither is stored.
//     id < 0    a state that was split off from another, in splits_[~id].
//
// Strings longer than `max_counted_length` are matched but not counted: a state whose shortest string is
// longer has a meaningless count. This bounds the work of each append, whatever the text is.
//
// A text of n tokens has at most 2n states and 3n edges. next() takes expected constant time. An append makes
// at most max_counted_length steps to update the counts.
class SuffixAutomaton {
 public:
  explicit SuffixAutomaton(std::int32_t max_counted_length);

  void append(Token token);
  void append(std::span<const Token> tokens) {
    for (const Token token : tokens) append(token);
  }
  // Reserves memory for `num_tokens` more tokens.
  void reserve(std::size_t num_tokens);
  void shrink_to_fit();

  [[nodiscard]] const std::vector<Token>& text() const { return text_; }
  [[nodiscard]] std::int32_t num_tokens() const { return static_cast<std::int32_t>(text_.size()); }

  [[nodiscard]] StateId next(StateId state, Token token) const {
    std::int32_t edge;
    if (state >= 0) {
      if (state == num_tokens()) return kNoState;
      if (text_[index(state)] == token) return state + 1;
      edge = prefixes_[index(state)].next_edge;
    } else {
      const Split& split = splits_[index(~state)];
      if (split.token == token) return split.target;
      edge = split.next_edge;
    }
    if (is_hub(edge)) {
      edge = table_.find(state, token);
      return edge < 0 ? kNoState : edges_[index(edge)].target;
    }
    for (; edge >= 0; edge = edges_[index(edge)].next) {
      if (edges_[index(edge)].token == token) return edges_[index(edge)].target;
    }
    return kNoState;
  }

  // Calls visit(token, target) for each continuation, kEnd included.
  template <typename Visit>
  void visit_edges(StateId state, Visit&& visit) const {
    visit_edges(state, false, std::forward<Visit>(visit));
  }

  // The same for every continuation that follows at least a tenth of the state's occurrences, and for some
  // others. It visits at most a few dozen, however many there are.
  template <typename Visit>
  void visit_frequent_edges(StateId state, Visit&& visit) const {
    visit_edges(state, true, std::forward<Visit>(visit));
  }

  // True if visit_frequent_edges() may skip some continuations.
  [[nodiscard]] bool has_many_edges(StateId state) const { return is_hub(next_edge(state)); }

  [[nodiscard]] StateId link(StateId state) const {
    return state >= 0 ? prefixes_[index(state)].link : splits_[index(~state)].link;
  }
  [[nodiscard]] std::int32_t length(StateId state) const {
    return state >= 0 ? state : splits_[index(~state)].length;
  }
  // Length of the longest proper suffix of the state's strings that lies in another state; -1 for the initial
  // state.
  [[nodiscard]] std::int32_t link_length(StateId state) const {
    return state == kInitialState ? -1 : length(link(state));
  }
  // Number of positions where the state's strings occur. Meaningless for the initial state.
  [[nodiscard]] std::int32_t count(StateId state) const {
    return state >= 0 ? prefixes_[index(state)].count : splits_[index(~state)].count;
  }
  // The end of the last occurrence: the number of tokens that had been appended by then.
  [[nodiscard]] std::int32_t last_end(StateId state) const {
    return state >= 0 ? prefixes_[index(state)].last_end : splits_[index(~state)].last_end;
  }
  // Number of occurrences that are followed by a token or an end: the sum of the counts of all continuations.
  [[nodiscard]] std::int32_t continuations(StateId state) const {
    return count(state) - (last_end(state) == num_tokens() ? 1 : 0);
  }

  // The state of the last min(max_counted_length, tokens since the last end) tokens.
  [[nodiscard]] StateId tail() const { return tail_; }
  [[nodiscard]] std::int32_t tail_length() const { return tail_length_; }
  // Number of steps along links that were made to keep the counts, over all appends. It measures work
  // independently of time.
  [[nodiscard]] std::int64_t count_steps() const { return count_steps_; }
  [[nodiscard]] std::size_t bytes() const {
    return text_.capacity() * sizeof(Token) + prefixes_.capacity() * sizeof(Prefix) +
           splits_.capacity() * sizeof(Split) + edges_.capacity() * sizeof(Edge) +
           hubs_.capacity() * sizeof(Hub) + table_.bytes();
  }

  // Throws IntegrityError, which names the first invariant that does not hold.
  void check_integrity() const;

 private:
  // `next_edge` is the head of the list of all edges but the first one, kNoEdge, or the reference of a hub.
  struct Prefix {
    StateId link;
    std::int32_t count;
    std::int32_t last_end;
    std::int32_t next_edge;
  };
  static_assert(sizeof(Prefix) == 16);

  struct Split {
    std::int32_t length;
    StateId link;
    std::int32_t count;
    std::int32_t last_end;
    std::int32_t next_edge;
    Token token;     // of the first edge
    StateId target;  // of the first edge; a split state always has one
  };
  static_assert(sizeof(Split) == 28);

  struct Edge {
    Token token;
    StateId target;
    std::int32_t next;  // in the same state's list, or kNoEdge
  };

  // A state with many edges. The edges of its list are in table_ too. Frequent edges come first in the list,
  // so a search for frequent continuations need not visit all edges. The list is sorted again before the
  // state's count has grown by a sixteenth.
  //
  //     first_edge -> frequent -> ... -> last_frequent -> rare -> rare -> ...
  struct Hub {
    std::int32_t first_edge;
    std::int32_t last_frequent;  // kNoEdge if there is none; new edges come after it
    std::int32_t ordered_at;     // count of the state when the list was last sorted
  };

  static constexpr std::int32_t kNoEdge = -1;

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  static bool is_hub(std::int32_t next_edge) { return next_edge < kNoEdge; }
  static std::int32_t hub_reference(std::size_t hub) { return -2 - static_cast<std::int32_t>(hub); }
  [[nodiscard]] const Hub& hub(std::int32_t next_edge) const { return hubs_[index(-2 - next_edge)]; }
  Hub& hub(std::int32_t next_edge) { return hubs_[index(-2 - next_edge)]; }

  std::int32_t& next_edge(StateId state) {
    return state >= 0 ? prefixes_[index(state)].next_edge : splits_[index(~state)].next_edge;
  }
  [[nodiscard]] std::int32_t next_edge(StateId state) const {
    return state >= 0 ? prefixes_[index(state)].next_edge : splits_[index(~state)].next_edge;
  }
  [[nodiscard]] std::int32_t first_listed(std::int32_t next_edge) const {
    return is_hub(next_edge) ? hub(next_edge).first_edge : next_edge;
  }
  void set_link(StateId state, StateId link) {
    (state >= 0 ? prefixes_[index(state)].link : splits_[index(~state)].link) = link;
  }

  void step(Token token);
  StateId split(StateId from, Token token, StateId target);
  std::int32_t new_edge(const Edge& edge);
  void add_edge(StateId from, Token token, StateId target);
  void redirect(StateId from, Token token, StateId target);
  std::int32_t copy_edges(StateId from, StateId to);
  void make_hub(StateId state);
  void order_hub(StateId state);
  [[nodiscard]] bool has_end_within(StateId state) const;
  void check_hub(StateId state) const;

  template <typename Visit>
  void visit_edges(StateId state, bool only_frequent, Visit&& visit) const {
    std::int32_t edge;
    if (state >= 0) {
      if (state == num_tokens()) return;
      visit(text_[index(state)], state + 1);
      edge = prefixes_[index(state)].next_edge;
    } else {
      const Split& split = splits_[index(~state)];
      visit(split.token, split.target);
      edge = split.next_edge;
    }
    std::int32_t last = kNoEdge;
    if (is_hub(edge)) {
      const Hub& h = hub(edge);
      if (only_frequent && h.last_frequent == kNoEdge) return;
      if (only_frequent) last = h.last_frequent;
      edge = h.first_edge;
    }
    for (; edge >= 0; edge = edges_[index(edge)].next) {
      visit(edges_[index(edge)].token, edges_[index(edge)].target);
      if (edge == last) return;
    }
  }

  std::vector<Token> text_;
  std::vector<Prefix>
      prefixes_;  // one more than there are tokens; [0] is the initial state, the empty string
  std::vector<Split> splits_;
  std::vector<Edge> edges_;
  std::vector<Hub> hubs_;
  EdgeTable table_;  // the edges of all hubs, without each hub's first edge
  std::int32_t max_counted_length_;
  StateId tail_ = kInitialState;  // see tail(); link_length(tail_) < tail_length_ <= length(tail_)
  std::int32_t tail_length_ = 0;
  std::int64_t count_steps_ = 0;
};

// Where the end of a text occurs in an automaton: the longest suffix of the text that occurs there lies in
// `state`. If only the last tokens of the text were matched, it is the longest suffix of those.
struct StateMatch {
  StateId state = kInitialState;
  std::int32_t length = 0;

  // Advances the match by one more token of the text.
  void advance(const SuffixAutomaton& automaton, Token token);
};

}  // namespace agentspec
