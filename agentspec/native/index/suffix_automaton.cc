#include "index/suffix_automaton.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "errors.h"

namespace agentspec {
namespace {

// A state with at least this many listed edges becomes a hub, and is searched through the table.
constexpr int kHubEdges = 12;
// An edge of a hub is frequent if it has at least 1 / kFrequentShare of the state's occurrences; see
// order_hub().
constexpr std::int64_t kFrequentShare = 32;
// A hub's list is sorted again when the state's count has grown by 1 / kReorderShare. By then a rare edge can
// have at most 1/32 + 1/16 of the occurrences, less than the tenth that visit_frequent_edges() promises.
constexpr std::int32_t kReorderShare = 16;

// Grows by an eighth instead of a factor of two, so that little of the allocated memory is unused.
template <typename T>
void push(std::vector<T>& items, const T& item) {
  if (items.size() == items.capacity()) {
    const T copy = item;  // `item` may lie in `items`
    items.reserve(items.size() + items.size() / 8 + 16);
    items.push_back(copy);
  } else {
    items.push_back(item);
  }
}

template <typename T>
void reserve_more(std::vector<T>& items, std::size_t more) {
  if (items.capacity() - items.size() < more) items.reserve(items.size() + more + items.size() / 8);
}

void require(bool holds, const char* what, StateId state) {
  if (!holds) throw IntegrityError("suffix automaton, state " + std::to_string(state) + ": " + what);
}

}  // namespace

void StateMatch::advance(const SuffixAutomaton& automaton, Token token) {
  StateId target = automaton.next(state, token);
  while (target == kNoState && state != kInitialState) {
    state = automaton.link(state);
    length = automaton.length(state);
    target = automaton.next(state, token);
  }
  if (target == kNoState) return;
  state = target;
  ++length;
}

SuffixAutomaton::SuffixAutomaton(std::int32_t max_counted_length) : max_counted_length_(max_counted_length) {
  prefixes_.push_back({kNoState, 0, 0, kNoEdge});
}

void SuffixAutomaton::reserve(std::size_t num_tokens) {
  reserve_more(text_, num_tokens);
  reserve_more(prefixes_, num_tokens + 1);
  // Typical for code and prose. More is allocated when it is needed.
  reserve_more(splits_, num_tokens / 3);
  reserve_more(edges_, num_tokens / 2);
}

void SuffixAutomaton::shrink_to_fit() {
  text_.shrink_to_fit();
  prefixes_.shrink_to_fit();
  splits_.shrink_to_fit();
  edges_.shrink_to_fit();
  hubs_.shrink_to_fit();
}

std::int32_t SuffixAutomaton::new_edge(const Edge& edge) {
  push(edges_, edge);
  return static_cast<std::int32_t>(edges_.size() - 1);
}

// The state must already have a first edge, and none with this token.
void SuffixAutomaton::add_edge(StateId from, Token token, StateId target) {
  std::int32_t& head = next_edge(from);
  if (is_hub(head)) {
    Hub& h = hub(head);
    std::int32_t& before = h.last_frequent < 0 ? h.first_edge : edges_[index(h.last_frequent)].next;
    const Edge edge{token, target, before};
    before = static_cast<std::int32_t>(edges_.size());
    table_.insert(from, token, new_edge(edge));
    return;
  }
  head = new_edge({token, target, head});
  int num_edges = 0;
  for (std::int32_t e = head; e >= 0; e = edges_[index(e)].next) ++num_edges;
  if (num_edges == kHubEdges) make_hub(from);
}

void SuffixAutomaton::make_hub(StateId state) {
  std::int32_t& head = next_edge(state);
  for (std::int32_t e = head; e >= 0; e = edges_[index(e)].next) {
    table_.insert(state, edges_[index(e)].token, e);
  }
  push(hubs_, {head, kNoEdge, 0});
  head = hub_reference(hubs_.size() - 1);
  order_hub(state);
}

// Puts the frequent edges before the others.
void SuffixAutomaton::order_hub(StateId state) {
  Hub& h = hub(next_edge(state));
  // The initial state has no count. Its continuations are all tokens of the text.
  const std::int64_t total = state == kInitialState ? num_tokens() : count(state);
  std::int32_t next = h.first_edge;
  std::int32_t first_rare = kNoEdge;
  std::int32_t* frequent_end = &h.first_edge;
  std::int32_t* rare_end = &first_rare;
  h.first_edge = kNoEdge;
  h.last_frequent = kNoEdge;
  h.ordered_at = static_cast<std::int32_t>(total);
  while (next >= 0) {
    const std::int32_t e = next;
    next = edges_[index(e)].next;
    if (count(edges_[index(e)].target) * kFrequentShare >= total) {
      *frequent_end = e;
      frequent_end = &edges_[index(e)].next;
      h.last_frequent = e;
    } else {
      *rare_end = e;
      rare_end = &edges_[index(e)].next;
    }
  }
  *rare_end = kNoEdge;
  *frequent_end = first_rare;
}

// The state must have an edge with this token. It is never the first edge of a prefix state: that edge leads
// to the next longer string, which no split takes from its state.
void SuffixAutomaton::redirect(StateId from, Token token, StateId target) {
  if (from < 0 && splits_[index(~from)].token == token) {
    splits_[index(~from)].target = target;
    return;
  }
  const std::int32_t head = next_edge(from);
  std::int32_t e = is_hub(head) ? table_.find(from, token) : head;
  while (edges_[index(e)].token != token) e = edges_[index(e)].next;
  edges_[index(e)].target = target;
}

// Copies the listed edges of `from` to `to`, in the same order. Returns the next_edge that `to` must have.
std::int32_t SuffixAutomaton::copy_edges(StateId from, StateId to) {
  const std::int32_t head = next_edge(from);
  const bool copy_hub = is_hub(head);
  const std::int32_t last_frequent = copy_hub ? hub(head).last_frequent : kNoEdge;
  std::int32_t first = kNoEdge;
  std::int32_t previous = kNoEdge;
  std::int32_t last_frequent_copy = kNoEdge;
  for (std::int32_t e = first_listed(head); e >= 0; e = edges_[index(e)].next) {
    const Edge edge = edges_[index(e)];
    const std::int32_t copy = new_edge({edge.token, edge.target, kNoEdge});
    (previous < 0 ? first : edges_[index(previous)].next) = copy;
    previous = copy;
    if (copy_hub) table_.insert(to, edge.token, copy);
    if (e == last_frequent) last_frequent_copy = copy;
  }
  if (!copy_hub) return first;
  push(hubs_, {first, last_frequent_copy, hub(head).ordered_at});
  return hub_reference(hubs_.size() - 1);
}

// Splits off from `target` the strings of at most length(from) + 1 tokens: they now end at one position more
// than the others. The new state takes over their count, link and continuations.
StateId SuffixAutomaton::split(StateId from, Token token, StateId target) {
  const auto made = ~static_cast<StateId>(splits_.size());
  Split split{length(from) + 1, link(target), count(target), last_end(target), kNoEdge, 0, kNoState};
  if (target >= 0) {
    split.token = text_[index(target)];
    split.target = target + 1;
  } else {
    split.token = splits_[index(~target)].token;
    split.target = splits_[index(~target)].target;
  }
  push(splits_, split);
  splits_[index(~made)].next_edge = copy_edges(target, made);
  for (StateId s = from; s != kNoState && next(s, token) == target; s = link(s)) redirect(s, token, made);
  set_link(target, made);
  return made;
}

// Adds the state of the whole text with one more token. The edge from the previous state is implicit, since
// the new state is the next prefix. The other suffixes of the text that have no continuation by the token yet
// get an edge.
void SuffixAutomaton::step(Token token) {
  const std::int32_t last = num_tokens();
  push(text_, token);
  push(prefixes_, {kNoState, 0, 0, kNoEdge});
  StateId from = link(last);
  StateId target = kNoState;
  while (from != kNoState && (target = next(from, token)) == kNoState) {
    add_edge(from, token, last + 1);
    from = link(from);
  }
  StateId suffix = kInitialState;
  if (from != kNoState) {
    suffix = length(target) == length(from) + 1 ? target : split(from, token, target);
  }
  set_link(last + 1, suffix);
}

void SuffixAutomaton::append(Token token) {
  // 1. The automaton's own step.
  step(token);

  // 2. The tail: follow the token, then drop the string's first token if the string has grown too long. If
  // the step has split the old tail and the new state now has its string, the result is the same: before the
  // split, the old tail got this continuation, and the new state took it over.
  tail_ = next(tail_, token);
  if (tail_length_ < max_counted_length_) {
    ++tail_length_;
  } else if (link_length(tail_) >= max_counted_length_) {
    tail_ = link(tail_);
  }

  // 3. Each suffix of the tail has one more occurrence, which ends here. The lengths fall with each step, so
  // there are at most max_counted_length_ steps.
  const std::int32_t end = num_tokens();
  for (StateId s = tail_; s != kInitialState;) {
    std::int32_t head;
    std::int32_t occurrences;
    StateId link_of;
    if (s >= 0) {
      Prefix& state = prefixes_[index(s)];
      occurrences = ++state.count;
      state.last_end = end;
      head = state.next_edge;
      link_of = state.link;
    } else {
      Split& state = splits_[index(~s)];
      occurrences = ++state.count;
      state.last_end = end;
      head = state.next_edge;
      link_of = state.link;
    }
    if (is_hub(head)) {
      const std::int32_t ordered_at = hub(head).ordered_at;
      if (occurrences - ordered_at > ordered_at / kReorderShare) order_hub(s);
    }
    ++count_steps_;
    s = link_of;
  }
  const std::int32_t initial = prefixes_[0].next_edge;
  if (is_hub(initial) && end - hub(initial).ordered_at > hub(initial).ordered_at / kReorderShare) {
    order_hub(kInitialState);
  }

  // 4. No string continues across an end.
  if (token == kEnd) {
    tail_ = kInitialState;
    tail_length_ = 0;
  }
}

// True if every string of a state that has occurred has an end before its last token. Such strings are not
// counted.
bool SuffixAutomaton::has_end_within(StateId state) const {
  if (state == kInitialState) return false;
  const auto last = text_.begin() + last_end(state) - 1;
  return std::find(last - link_length(state), last, kEnd) != last;
}

void SuffixAutomaton::check_hub(StateId state) const {
  const std::int32_t head = next_edge(state);
  const Hub& h = hub(head);
  bool is_rare = h.last_frequent < 0;
  std::int64_t total = state == kInitialState ? num_tokens() : count(state);
  const bool counted = link_length(state) + 1 < max_counted_length_ && !has_end_within(state);
  for (std::int32_t e = h.first_edge; e >= 0; e = edges_[index(e)].next) {
    require(!counted || !is_rare || count(edges_[index(e)].target) * std::int64_t{10} < total + 20,
            "a frequent edge stands among the rare ones", state);
    is_rare = is_rare || e == h.last_frequent;
  }
  require(is_rare, "its last frequent edge is not in its list", state);
}

void SuffixAutomaton::check_integrity() const {
  std::size_t hub_edges = 0;
  std::size_t list_edges = 0;
  std::unordered_set<Token> tokens;
  require(prefixes_.size() == text_.size() + 1, "it has more or fewer prefixes than tokens", num_tokens());
  const auto num_splits = static_cast<StateId>(splits_.size());
  const auto is_state = [&](StateId s) { return s <= num_tokens() && s >= -num_splits; };
  for (StateId s = -num_splits; s <= num_tokens(); ++s) {
    if (s == kInitialState) {
      require(link(s) == kNoState, "the initial state has a link", s);
    } else {
      require(is_state(link(s)), "its link names no state", s);
      require(length(link(s)) < length(s), "its link is not shorter", s);
    }
    tokens.clear();
    std::int64_t sum = 0;
    visit_edges(s, [&](Token token, StateId target) {
      require(is_state(target) && target != kInitialState, "an edge names no state", s);
      require(tokens.insert(token).second, "two edges with one token", s);
      require(next(s, token) == target, "an edge is not found", s);
      require(length(target) > length(s) && link_length(target) <= length(s), "an edge skips a state", s);
      sum += count(target);
    });
    require(s == num_tokens() || !tokens.empty(), "it has no edges", s);
    if (!tokens.empty()) list_edges += tokens.size() - 1;
    if (is_hub(next_edge(s))) {
      hub_edges += tokens.size() - 1;
      check_hub(s);
    }
    // The continuations of uncounted states are not counted either.
    if (link_length(s) + 1 >= max_counted_length_) continue;
    if (s == kInitialState) {
      require(sum == num_tokens(), "the counts of the single tokens do not add up to the number of tokens",
              s);
    } else if (count(s) > 0) {
      require(last_end(s) > link_length(s) && last_end(s) <= num_tokens(), "it never occurred", s);
      if (has_end_within(s) || text_[index(last_end(s) - 1)] == kEnd) continue;
      require(sum == continuations(s), "the counts of its continuations do not add up to its own", s);
    }
  }
  require(hub_edges == table_.size(), "the table of edges holds more or fewer than the hubs have",
          kInitialState);
  require(list_edges == edges_.size(), "an edge belongs to no state", kInitialState);
  require(link_length(tail_) < tail_length_ && tail_length_ <= length(tail_), "the tail is in another state",
          tail_);
}

}  // namespace agentspec
