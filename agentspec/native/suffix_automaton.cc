#include "suffix_automaton.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "errors.h"

namespace agentspec {
namespace {

// From so many edges on, a state's list is searched through the table.
constexpr int kHubEdges = 12;
// Continuations that are sought are rarer than one in so many only where almost all are wanted; a hub's list
// is put in order for them, with those of half that share among the frequent ones, so that the order lasts.
constexpr std::int32_t kFrequentShare = 16;

// Grows by a quarter, not by a factor of two: what is allocated stays close to what is used.
template <typename T>
void push(std::vector<T>& items, const T& item) {
  if (items.size() == items.capacity()) {
    const T copy = item;  // may lie in `items`
    items.reserve(items.size() + items.size() / 4 + 16);
    items.push_back(copy);
  } else {
    items.push_back(item);
  }
}

void require(bool holds, const char* what, StateId state) {
  if (!holds) throw IntegrityError("suffix automaton, state " + std::to_string(state) + ": " + what);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton(std::int32_t max_counted_length) : max_counted_length_(max_counted_length) {
  new_state({0, kNoState, 0, 0, 0, 0, 0, kNoState, -1});
}

void SuffixAutomaton::reserve(std::size_t num_tokens) {
  // Typical of code and prose; more is found when it is needed.
  states_.reserve(states_.size() + num_tokens + num_tokens / 2);
  edges_.reserve(edges_.size() + num_tokens / 2);
}

void SuffixAutomaton::shrink_to_fit() {
  states_.shrink_to_fit();
  edges_.shrink_to_fit();
  hubs_.shrink_to_fit();
}

std::size_t SuffixAutomaton::max_bytes(std::size_t num_tokens) {
  const std::size_t edges = 3 * num_tokens;
  return (2 * num_tokens * sizeof(State) + edges * sizeof(Edge)) * 5 / 4 + edges * (64 + sizeof(Hub)) + 1024;
}

StateId SuffixAutomaton::new_state(const State& state) {
  push(states_, state);
  return static_cast<StateId>(states_.size() - 1);
}

std::int32_t SuffixAutomaton::new_edge(const Edge& edge) {
  push(edges_, edge);
  return static_cast<std::int32_t>(edges_.size() - 1);
}

// The state must have no edge with this token.
void SuffixAutomaton::add_edge(StateId from, Token token, StateId target) {
  State& s = states_[index(from)];
  if (s.target == kNoState) {
    s.token = token;
    s.target = target;
    return;
  }
  if (s.is_hub) {
    Hub& hub = hubs_[index(s.next_edge)];
    std::int32_t& previous = hub.last_frequent < 0 ? hub.first_edge : edges_[index(hub.last_frequent)].next;
    const Edge edge{token, target, previous};
    previous = static_cast<std::int32_t>(edges_.size());
    table_.insert(from, token, new_edge(edge));
    return;
  }
  s.next_edge = new_edge({token, target, s.next_edge});
  int num_edges = 0;
  for (std::int32_t e = s.next_edge; e >= 0; e = edges_[index(e)].next) ++num_edges;
  if (num_edges == kHubEdges) make_hub(from);
}

void SuffixAutomaton::make_hub(StateId state) {
  State& s = states_[index(state)];
  for (std::int32_t e = s.next_edge; e >= 0; e = edges_[index(e)].next) {
    table_.insert(state, edges_[index(e)].token, e);
  }
  // Not in order yet: whatever the counts, they did not grow by more than continuations() since it was 0.
  push(hubs_, {s.next_edge, -1, 0, 0});
  s.is_hub = 1;
  s.next_edge = static_cast<std::int32_t>(hubs_.size() - 1);
}

// True if all edges with at least min_count occurrences are the state's first or frequent ones.
bool SuffixAutomaton::prepare_hub(StateId state, double min_count) {
  const std::int32_t total = continuations(state);
  // So many may be wanted that the order spares nothing.
  if (min_count * kFrequentShare < total) return false;
  const Hub& hub = hubs_[index(states_[index(state)].next_edge)];
  if (hub.max_rare_count + (total - hub.ordered_at) >= min_count) order_hub(state);
  return true;
}

// Puts the edges that make up a certain share of all occurrences before the others.
void SuffixAutomaton::order_hub(StateId state) {
  Hub& hub = hubs_[index(states_[index(state)].next_edge)];
  const std::int32_t total = continuations(state);
  std::int32_t next = hub.first_edge;
  std::int32_t first_rare = -1;
  std::int32_t* frequent_end = &hub.first_edge;
  std::int32_t* rare_end = &first_rare;
  hub = {-1, -1, 0, total};
  while (next >= 0) {
    const std::int32_t e = next;
    next = edges_[index(e)].next;
    const std::int32_t occurrences = count(edges_[index(e)].target);
    if (static_cast<std::int64_t>(occurrences) * 2 * kFrequentShare >= total) {
      *frequent_end = e;
      frequent_end = &edges_[index(e)].next;
      hub.last_frequent = e;
    } else {
      *rare_end = e;
      rare_end = &edges_[index(e)].next;
      hub.max_rare_count = std::max(hub.max_rare_count, occurrences);
    }
  }
  *rare_end = -1;
  *frequent_end = first_rare;
}

// The state must have an edge with this token.
void SuffixAutomaton::redirect(StateId from, Token token, StateId target) {
  State& s = states_[index(from)];
  if (s.token == token) {
    s.target = target;
    return;
  }
  std::int32_t e = s.is_hub ? table_.find(from, token) : s.next_edge;
  while (edges_[index(e)].token != token) e = edges_[index(e)].next;
  edges_[index(e)].target = target;
}

// Gives `to`, a copy of the state `from` that still shares its list, a list of its own in the same order.
void SuffixAutomaton::copy_edges(StateId from, StateId to) {
  const bool is_hub = states_[index(from)].is_hub;
  const std::int32_t last_frequent = is_hub ? hubs_[index(states_[index(from)].next_edge)].last_frequent : -1;
  std::int32_t first = -1;
  std::int32_t previous = -1;
  std::int32_t last_frequent_copy = -1;
  for (std::int32_t e = first_edge(states_[index(from)]); e >= 0; e = edges_[index(e)].next) {
    const Edge edge = edges_[index(e)];
    const std::int32_t copy = new_edge({edge.token, edge.target, -1});
    (previous < 0 ? first : edges_[index(previous)].next) = copy;
    previous = copy;
    if (is_hub) table_.insert(to, edge.token, copy);
    if (e == last_frequent) last_frequent_copy = copy;
  }
  if (is_hub) {
    const Hub original = hubs_[index(states_[index(from)].next_edge)];
    push(hubs_, {first, last_frequent_copy, original.max_rare_count, original.ordered_at});
    first = static_cast<std::int32_t>(hubs_.size() - 1);
  }
  states_[index(to)].next_edge = first;
}

// Splits off from `target` the strings that are no longer than length(from) + 1: they now end at one more
// place than the others. The new state takes the count, the link and the continuations that they had so far.
StateId SuffixAutomaton::split(StateId from, Token token, StateId target) {
  const StateId clone = new_state(states_[index(target)]);
  states_[index(clone)].length = length(from) + 1;
  copy_edges(target, clone);
  for (StateId s = from; s != kNoState && next(s, token) == target; s = link(s)) redirect(s, token, clone);
  states_[index(target)].link = clone;
  return clone;
}

// The state of the current sequence with one more token, made if need be.
StateId SuffixAutomaton::step(Token token) {
  // An earlier sequence may have made it already.
  const StateId known = next(last_, token);
  if (known != kNoState) return length(known) == length(last_) + 1 ? known : split(last_, token, known);

  const StateId current = new_state({length(last_) + 1, kNoState, 0, 0, 0, 0, 0, kNoState, -1});
  StateId from = last_;
  StateId target = kNoState;
  while (from != kNoState && (target = next(from, token)) == kNoState) {
    add_edge(from, token, current);
    from = link(from);
  }
  StateId suffix = kInitialState;
  if (from != kNoState) suffix = length(target) == length(from) + 1 ? target : split(from, token, target);
  states_[index(current)].link = suffix;
  return current;
}

void SuffixAutomaton::append(Token token) {
  // 1. The automaton's own step.
  last_ = step(token);
  ++num_tokens_;
  ++sequence_length_;

  // 2. The tail: follow the token, then drop the string's first token if it has grown too long. If the step
  //    has split the old tail and its string is the new state's now, that makes no difference: on the way to
  //    the split the old tail was given this continuation, and the new state took it over.
  tail_ = next(tail_, token);
  if (tail_length_ < max_counted_length_) {
    ++tail_length_;
  } else if (link_length(tail_) >= max_counted_length_) {
    tail_ = link(tail_);
  }

  // 3. Each suffix of the tail has one more occurrence, which ends here. Lengths fall from step to step, so
  //    there are at most max_counted_length_ of them.
  for (StateId s = tail_; s != kInitialState; s = link(s)) {
    State& state = states_[index(s)];
    ++state.count;
    state.last_end = num_tokens_;
    ++count_steps_;
  }
}

void SuffixAutomaton::finish() {
  for (StateId s = tail_; s != kInitialState; s = link(s)) ++states_[index(s)].num_finished;
  last_ = kInitialState;
  tail_ = kInitialState;
  tail_length_ = 0;
  sequence_length_ = 0;
}

void SuffixAutomaton::check_hub(StateId state) const {
  const Hub& hub = hubs_[index(states_[index(state)].next_edge)];
  // The continuations of the initial state and of uncounted ones are not counted as such.
  if (state == kInitialState || link_length(state) + 1 >= max_counted_length_) return;
  bool is_rare = hub.last_frequent < 0;
  for (std::int32_t e = hub.first_edge; e >= 0; e = edges_[index(e)].next) {
    require(!is_rare ||
                count(edges_[index(e)].target) <= hub.max_rare_count + continuations(state) - hub.ordered_at,
            "an edge is more frequent than it may be where it stands", state);
    is_rare = is_rare || e == hub.last_frequent;
  }
  require(is_rare, "its last frequent edge is not in its list", state);
}

void SuffixAutomaton::check_integrity() const {
  std::size_t hub_edges = 0;
  std::size_t list_edges = 0;
  std::unordered_set<Token> tokens;
  for (StateId s = 0; index(s) < states_.size(); ++s) {
    const State& state = states_[index(s)];
    if (s == kInitialState) {
      require(state.length == 0 && state.link == kNoState, "the initial state is not the empty string", s);
    } else {
      require(state.link >= 0 && index(state.link) < states_.size(), "its link names no state", s);
      require(length(state.link) < state.length, "its link is not shorter", s);
    }
    tokens.clear();
    std::int64_t sum = 0;
    visit_edges(s, [&](Token token, StateId target) {
      require(target > 0 && index(target) < states_.size(), "an edge names no state", s);
      require(tokens.insert(token).second, "two edges with one token", s);
      require(next(s, token) == target, "an edge is not found", s);
      require(length(target) > state.length && link_length(target) <= state.length, "an edge skips a state",
              s);
      sum += count(target);
      return true;
    });
    if (!tokens.empty()) list_edges += tokens.size() - 1;
    if (state.is_hub) {
      hub_edges += tokens.size() - 1;
      check_hub(s);
    }
    // The continuations of uncounted states are uncounted too.
    if (link_length(s) + 1 >= max_counted_length_) continue;
    if (s == kInitialState) {
      require(sum == num_tokens_, "the counts of the single tokens do not add up to the number of tokens", s);
    } else {
      require(state.count >= 1 && state.last_end >= 1 && state.last_end <= num_tokens_, "it never occurred",
              s);
      require(sum == continuations(s), "the counts of its continuations do not add up to its own", s);
    }
  }
  require(hub_edges == table_.size(), "the table of edges holds more or fewer than the hubs have",
          kInitialState);
  require(list_edges == edges_.size(), "an edge belongs to no state", kInitialState);
  require(tail_length_ == std::min(max_counted_length_, sequence_length_), "the tail has a wrong length",
          tail_);
  require(link_length(tail_) < tail_length_ && tail_length_ <= length(tail_), "the tail is in another state",
          tail_);
}

}  // namespace agentspec
