#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "edge_table.h"

namespace agentspec {

using Token = std::int32_t;
using StateId = std::int32_t;

inline constexpr StateId kNoState = -1;
inline constexpr StateId kInitialState = 0;

// A suffix automaton over one or more sequences of tokens that counts how often each string occurs.
//
// A state stands for all strings that end at the same set of places. They are suffixes of one another: the
// longest has `length` tokens, the shortest length(link) + 1. So a state has one count, one last place and
// one set of continuations for all its strings.
//
// Strings longer than `max_counted_length` are matched but not counted: the counts of states whose shortest
// string is longer are meaningless. This bounds the work of an append, whatever the text.
class SuffixAutomaton {
 public:
  explicit SuffixAutomaton(std::int32_t max_counted_length);

  // Appends go to the current sequence; the first is started by the constructor. finish() ends it and starts
  // the next, so that no string is ever counted across the border.
  void append(Token token);
  void finish();
  void reserve(std::size_t num_tokens);
  void shrink_to_fit();

  [[nodiscard]] StateId next(StateId state, Token token) const {
    const State& s = states_[index(state)];
    if (s.target == kNoState) return kNoState;
    if (s.token == token) return s.target;
    if (s.is_hub) {
      const std::int32_t edge = table_.find(state, token);
      return edge < 0 ? kNoState : edges_[index(edge)].target;
    }
    for (std::int32_t e = s.next_edge; e >= 0; e = edges_[index(e)].next) {
      if (edges_[index(e)].token == token) return edges_[index(e)].target;
    }
    return kNoState;
  }

  // Calls visit(token, target) for each continuation until it returns false.
  template <typename Visit>
  void visit_edges(StateId state, Visit&& visit) const {
    visit_edges(state, false, std::forward<Visit>(visit));
  }

  // The same for the continuations with at least min_count occurrences, and for some others.
  template <typename Visit>
  void visit_likely_edges(StateId state, double min_count, Visit&& visit) {
    visit_edges(state, states_[index(state)].is_hub && prepare_hub(state, min_count),
                std::forward<Visit>(visit));
  }

  [[nodiscard]] StateId link(StateId state) const { return states_[index(state)].link; }
  [[nodiscard]] std::int32_t length(StateId state) const { return states_[index(state)].length; }
  // Length of the longest proper suffix of the state's strings that lies in another state; -1 for the initial
  // state.
  [[nodiscard]] std::int32_t link_length(StateId state) const {
    return state == kInitialState ? -1 : length(link(state));
  }
  // Number of places where the state's strings occur. Meaningless for the initial state.
  [[nodiscard]] std::int32_t count(StateId state) const { return states_[index(state)].count; }
  // Where the last occurrence ends: number of tokens appended by then, over all sequences.
  [[nodiscard]] std::int32_t last_end(StateId state) const { return states_[index(state)].last_end; }
  // Number of occurrences that another token follows: the sum of the counts over all continuations.
  [[nodiscard]] std::int32_t continuations(StateId state) const {
    const State& s = states_[index(state)];
    const bool ends_here = sequence_length_ > 0 && s.last_end == num_tokens_;
    return s.count - static_cast<std::int32_t>(s.num_finished) - (ends_here ? 1 : 0);
  }

  // The state of the last min(max_counted_length, length of the current sequence) tokens.
  [[nodiscard]] StateId tail() const { return tail_; }
  [[nodiscard]] std::int32_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] std::size_t num_states() const { return states_.size(); }
  // Steps made along links to keep the counts, over all appends: a measure of work that no clock disturbs.
  [[nodiscard]] std::int64_t count_steps() const { return count_steps_; }
  [[nodiscard]] std::size_t bytes() const {
    return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
           hubs_.capacity() * sizeof(Hub) + table_.bytes();
  }

  // An upper limit of bytes() for num_tokens tokens: at most two states and three edges a token, vectors a
  // quarter larger than needed, two to four slots an edge in the table.
  static std::size_t max_bytes(std::size_t num_tokens);

  // Throws IntegrityError naming the first invariant that does not hold.
  void check_integrity() const;

 private:
  // The first edge lies in the state itself, since most states have one only; the others form a list.
  struct State {
    std::int32_t length;
    StateId link;
    std::int32_t count;
    std::int32_t last_end;
    std::uint32_t num_finished : 31;  // sequences that end with the state's strings, finished ones only
    std::uint32_t is_hub : 1;
    Token token;             // of the first edge
    StateId target;          // of the first edge; kNoState: no edges at all
    std::int32_t next_edge;  // head of the list of further edges, or -1; a hub's index in hubs_
  };
  static_assert(sizeof(State) == 32);

  struct Edge {
    Token token;
    StateId target;
    std::int32_t next;  // in the same state's list, or -1
  };

  // A state with many edges. Those of its list are in table_ too, and the frequent ones stand first in the
  // list, so that a search for frequent continuations need not see all. Counts change after the list was put
  // in order, but no edge's by more than continuations(state) does.
  //
  //     first_edge -> frequent -> ... -> last_frequent -> rare -> rare -> ...
  struct Hub {
    std::int32_t first_edge;
    std::int32_t last_frequent;   // -1: none; new edges come after it
    std::int32_t max_rare_count;  // when the list was put in order; 0: there were no rare ones
    std::int32_t ordered_at;      // continuations(state) then
  };

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

  StateId step(Token token);
  StateId split(StateId from, Token token, StateId target);
  StateId new_state(const State& state);
  std::int32_t new_edge(const Edge& edge);
  void add_edge(StateId from, Token token, StateId target);
  void redirect(StateId from, Token token, StateId target);
  void copy_edges(StateId from, StateId to);
  void make_hub(StateId state);
  bool prepare_hub(StateId state, double min_count);
  void order_hub(StateId state);
  void check_hub(StateId state) const;
  [[nodiscard]] std::int32_t first_edge(const State& s) const {
    return s.is_hub ? hubs_[index(s.next_edge)].first_edge : s.next_edge;
  }

  template <typename Visit>
  void visit_edges(StateId state, bool only_frequent, Visit&& visit) const {
    const State& s = states_[index(state)];
    if (s.target == kNoState || !visit(s.token, s.target)) return;
    const std::int32_t last = only_frequent ? hubs_[index(s.next_edge)].last_frequent : -1;
    if (only_frequent && last < 0) return;
    for (std::int32_t e = first_edge(s); e >= 0; e = edges_[index(e)].next) {
      if (!visit(edges_[index(e)].token, edges_[index(e)].target) || e == last) return;
    }
  }

  std::vector<State> states_;  // [0] is the initial state: the empty string, link kNoState
  std::vector<Edge> edges_;
  std::vector<Hub> hubs_;
  EdgeTable table_;  // the edges of all hubs but their first ones, which lie in the states
  std::int32_t max_counted_length_;
  StateId last_ = kInitialState;      // the state of the whole current sequence
  StateId tail_ = kInitialState;      // see tail(); link_length(tail_) < tail_length_ <= length(tail_)
  std::int32_t tail_length_ = 0;      // min(max_counted_length_, sequence_length_)
  std::int32_t sequence_length_ = 0;  // tokens in the current sequence
  std::int32_t num_tokens_ = 0;
  std::int64_t count_steps_ = 0;
};

}  // namespace agentspec
