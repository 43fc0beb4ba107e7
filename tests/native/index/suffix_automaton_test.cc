// Compares the counts, positions and continuations of a suffix automaton, and the matches of a text in it,
// with brute force over texts that end with kEnd.

#include "index/suffix_automaton.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "check.h"

namespace {

using namespace agentspec;
using namespace agentspec::test;

struct Occurrences {
  std::int32_t count = 0;
  std::int32_t continuations = 0;
  std::int32_t last_end = 0;
};

// Every string of at most max_length tokens in the texts, including their ends, and what the automaton must
// say about it.
std::map<Text, Occurrences> count_strings(const std::vector<Text>& texts, std::size_t max_length) {
  std::map<Text, Occurrences> strings;
  std::size_t before = 0;
  for (const Text& text : texts) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
      for (std::size_t length = 1; length <= std::min(end, max_length); ++length) {
        const auto first = text.begin() + static_cast<std::ptrdiff_t>(end - length);
        Occurrences& found = strings[Text(first, first + static_cast<std::ptrdiff_t>(length))];
        ++found.count;
        if (end < text.size()) ++found.continuations;
        found.last_end = static_cast<std::int32_t>(before + end);
      }
    }
    before += text.size();
  }
  return strings;
}

void check_counts(const SuffixAutomaton& automaton, const std::vector<Text>& texts, std::int32_t max_length) {
  automaton.check_integrity();
  const auto strings = count_strings(texts, static_cast<std::size_t>(max_length));
  std::map<Text, std::map<Token, std::int32_t>> followers;
  for (const auto& [string, expected] : strings) {
    followers[Text(string.begin(), string.end() - 1)][string.back()] = expected.count;
  }
  for (const auto& [string, expected] : strings) {
    StateId state = kInitialState;
    for (const Token token : string) {
      state = automaton.next(state, token);
      if (state == kNoState) break;
    }
    CHECK(state != kNoState);
    if (state == kNoState) continue;
    CHECK(automaton.count(state) == expected.count);
    CHECK(automaton.last_end(state) == expected.last_end);
    if (string.back() == kEnd || static_cast<std::int32_t>(string.size()) == max_length) continue;

    CHECK(automaton.continuations(state) == expected.continuations);
    std::map<Token, std::int32_t> visited;
    automaton.visit_edges(state, [&](Token token, StateId target) {
      CHECK(visited.emplace(token, automaton.count(target)).second);
    });
    CHECK(visited == followers[string]);
    std::set<Token> frequent;
    automaton.visit_frequent_edges(state, [&](Token token, StateId) { frequent.insert(token); });
    for (const auto& [token, count] : visited) {
      CHECK(frequent.contains(token) || (automaton.has_many_edges(state) && count * 10 < expected.count));
    }
  }
}

void test_counts() {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const std::int32_t vocab_size = round % 3 == 0 ? 2 : round % 3 == 1 ? 5 : 60;
    // Short texts with the same beginning: strings that always followed an end share their state with strings
    // that contain the end.
    const bool begin_alike = round % 4 == 3;
    const std::int32_t max_length = begin_alike ? 40 : draw(random, 1, 8);
    SuffixAutomaton automaton(max_length);
    std::vector<Text> texts(1);
    if (round % 2 == 0) automaton.reserve(100);
    for (int step = draw(random, 1, begin_alike ? 12 : 6); step > 0; --step) {
      Text text = draw_text(random, draw(random, 0, begin_alike ? 12 : 60), vocab_size);
      if (begin_alike) text.insert(text.begin(), 0);
      for (const Token token : text) {
        automaton.append(token);
        texts.back().push_back(token);
        automaton.check_integrity();
      }
      // The last text is still being written, so its end has no continuation yet.
      check_counts(automaton, texts, max_length);
      if (draw(random, 0, 2) > 0) {
        automaton.append(kEnd);
        texts.back().push_back(kEnd);
        texts.emplace_back();
        check_counts(automaton, texts, max_length);
      }
    }
    automaton.shrink_to_fit();
    check_counts(automaton, texts, max_length);
  }
}

void test_many_continuations() {
  // Some continuations of 0 are rare at first and frequent later, others the reverse.
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    SuffixAutomaton automaton(3);
    std::vector<Text> texts(1);
    for (int phase = 0; phase < 6; ++phase) {
      const std::int32_t favourite = draw(random, 1, 80);
      for (int i = 0; i < 60; ++i) {
        const Text pair = {0, draw(random, 0, 2) == 0 ? favourite : draw(random, 1, 80)};
        automaton.append(pair);
        texts.back().insert(texts.back().end(), pair.begin(), pair.end());
      }
      CHECK(automaton.has_many_edges(automaton.next(kInitialState, 0)));
      check_counts(automaton, texts, 3);
    }
  }
}

void test_tail() {
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    SuffixAutomaton automaton(6);
    std::int32_t since_end = 0;
    for (int i = 0; i < 80; ++i) {
      const Token token = draw(random, 0, 9) == 0 ? kEnd : draw(random, 0, 2);
      automaton.append(token);
      since_end = token == kEnd ? 0 : since_end + 1;
      CHECK(automaton.tail_length() == std::min(since_end, 6));
      StateId state = kInitialState;
      const Text& text = automaton.text();
      for (auto t = text.end() - automaton.tail_length(); t != text.end(); ++t)
        state = automaton.next(state, *t);
      CHECK(automaton.tail() == state);
    }
  }
}

void test_matches() {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    SuffixAutomaton automaton(10);
    std::vector<Text> known;
    for (int i = draw(random, 1, 3); i > 0; --i) {
      known.push_back(draw_text(random, draw(random, 1, 40), 4));
      automaton.append(known.back());
      automaton.append(kEnd);
    }
    StateMatch match;
    Text text;
    for (const Token token : draw_text(random, 40, 5)) {
      text.push_back(token);
      match.advance(automaton, token);
      std::int32_t longest = 0;
      for (const Text& one : known) {
        for (std::size_t length = 1; length <= text.size(); ++length) {
          const auto first = text.end() - static_cast<std::ptrdiff_t>(length);
          if (std::search(one.begin(), one.end(), first, text.end()) == one.end()) break;
          longest = std::max(longest, static_cast<std::int32_t>(length));
        }
      }
      CHECK(match.length == longest);
      CHECK(automaton.link_length(match.state) < match.length || match.length == 0);
      CHECK(match.length <= automaton.length(match.state));
    }
  }
}

void test_bounded_work() {
  constexpr std::int32_t kTokens = 1 << 16;
  for (const std::int32_t period : {1, 3}) {
    SuffixAutomaton automaton(95);
    for (std::int32_t i = 0; i < kTokens; ++i) automaton.append(i % period);
    CHECK(automaton.count_steps() <= std::int64_t{95} * kTokens);
    CHECK(automaton.bytes() <= std::size_t{100} * kTokens);
    StateId state = kInitialState;
    for (std::int32_t length = 1; length <= 95; ++length) {
      state = automaton.next(state, (length - 1) % period);
      // Strings that start with token 0 start at every multiple of the period.
      CHECK(automaton.count(state) == (kTokens - length) / period + 1);
    }
    automaton.check_integrity();
  }
}

}  // namespace

int main() { return run({test_counts, test_many_continuations, test_tail, test_matches, test_bounded_work}); }
