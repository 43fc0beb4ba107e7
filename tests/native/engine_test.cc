// Tests of the native core without Python, made to run under AddressSanitizer and UndefinedBehaviorSanitizer.
// What the drafts must be is tested in tests/agentspec; here counts and matches are compared with brute
// force, and random lives of engines are led with their integrity checked after every step.

#include "engine.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drafter.h"
#include "errors.h"
#include "suffix_automaton.h"
#include "tree_arrays.h"

namespace {

using agentspec::StateId;
using agentspec::SuffixAutomaton;
using agentspec::Token;
using Text = std::vector<Token>;

std::int64_t num_passed = 0;
std::int64_t num_failed = 0;

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (condition) {                                                      \
      ++num_passed;                                                       \
    } else if (++num_failed <= 20) {                                      \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                     \
  } while (false)

#define CHECK_THROWS(statement, Error) \
  do {                                 \
    bool thrown = false;               \
    try {                              \
      statement;                       \
    } catch (const Error&) {           \
      thrown = true;                   \
    }                                  \
    CHECK(thrown);                     \
  } while (false)

using Random = std::mt19937;

std::int32_t draw(Random& random, std::int32_t low, std::int32_t high) {
  return std::uniform_int_distribution<std::int32_t>(low, high)(random);
}

// One token in four is 0, so that its state gets many continuations whatever the vocabulary.
Text draw_text(Random& random, std::int32_t length, std::int32_t vocab_size) {
  Text text;
  for (std::int32_t i = 0; i < length; ++i) {
    text.push_back(draw(random, 0, 3) == 0 ? 0 : draw(random, 0, vocab_size - 1));
  }
  return text;
}

struct Occurrences {
  std::int32_t count = 0;
  std::int32_t continuations = 0;
  std::int32_t last_end = 0;
};

// Every string of at most max_length tokens in the texts, with what the automaton must say of it.
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

void check_counts(SuffixAutomaton& automaton, const std::vector<Text>& texts, std::int32_t max_length,
                  std::int32_t vocab_size) {
  automaton.check_integrity();
  const auto strings = count_strings(texts, static_cast<std::size_t>(max_length));
  for (const auto& [string, expected] : strings) {
    StateId state = agentspec::kInitialState;
    for (const Token token : string) {
      state = automaton.next(state, token);
      if (state == agentspec::kNoState) break;
    }
    CHECK(state != agentspec::kNoState);
    if (state == agentspec::kNoState) continue;
    CHECK(automaton.count(state) == expected.count);
    CHECK(automaton.continuations(state) == expected.continuations);
    CHECK(automaton.last_end(state) == expected.last_end);
    if (static_cast<std::int32_t>(string.size()) == max_length) continue;

    // Whatever the threshold, no continuation that reaches it is missed, and none is invented.
    for (const double min_count : {0.0, 0.06 * expected.count, 0.3 * expected.count}) {
      std::map<Token, std::int32_t> visited;
      automaton.visit_likely_edges(state, min_count, [&](Token token, StateId target) {
        visited[token] = automaton.count(target);
        return true;
      });
      Text longer = string;
      longer.push_back(0);
      for (Token token = 0; token < vocab_size; ++token) {
        longer.back() = token;
        const auto found = strings.find(longer);
        const std::int32_t count = found == strings.end() ? 0 : found->second.count;
        const auto seen = visited.find(token);
        CHECK(seen == visited.end() ? count == 0 || count < min_count : seen->second == count);
      }
    }
  }
}

void test_counts(Random& random) {
  for (int round = 0; round < 60; ++round) {
    const std::int32_t vocab_size = round % 3 == 0 ? 2 : round % 3 == 1 ? 5 : 60;
    const std::int32_t max_length = draw(random, 1, 8);
    SuffixAutomaton automaton(max_length);
    std::vector<Text> texts(1);
    for (int step = draw(random, 1, 6); step > 0; --step) {
      for (const Token token : draw_text(random, draw(random, 0, 60), vocab_size)) {
        automaton.append(token);
        texts.back().push_back(token);
      }
      // While the last text is being written its end has no continuation, as when it is finished.
      check_counts(automaton, texts, max_length, vocab_size);
      if (draw(random, 0, 1) == 0) {
        automaton.finish();
        texts.emplace_back();
        check_counts(automaton, texts, max_length, vocab_size);
      }
    }
  }
}

void test_matches(Random& random) {
  for (int round = 0; round < 100; ++round) {
    SuffixAutomaton automaton(10);
    const Text known = draw_text(random, draw(random, 1, 80), 4);
    for (const Token token : known) automaton.append(token);
    automaton.finish();
    agentspec::Match match;
    Text text;
    for (const Token token : draw_text(random, 40, 5)) {
      text.push_back(token);
      match.advance(automaton, token);
      std::int32_t longest = 0;
      for (std::size_t length = 1; length <= text.size(); ++length) {
        const auto first = text.end() - static_cast<std::ptrdiff_t>(length);
        if (std::search(known.begin(), known.end(), first, text.end()) == known.end()) break;
        longest = static_cast<std::int32_t>(length);
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
    CHECK(automaton.num_states() <= 2 * static_cast<std::size_t>(kTokens));
    CHECK(automaton.bytes() <= SuffixAutomaton::max_bytes(kTokens));
    StateId state = agentspec::kInitialState;
    for (std::int32_t length = 1; length <= 95; ++length) {
      state = automaton.next(state, (length - 1) % period);
      // Strings that begin with token 0 begin at every multiple of the period.
      CHECK(automaton.count(state) == (kTokens - length) / period + 1);
    }
    automaton.check_integrity();
  }
}

void test_engine_lives(Random& random) {
  for (int round = 0; round < 40; ++round) {
    const std::int32_t vocab_size = round % 2 == 0 ? 3 : 40;
    agentspec::EngineConfig config;
    config.num_token_ids = vocab_size;
    config.limits.max_pattern = draw(random, 1, 12);
    config.limits.alpha = draw(random, 1, 8) / 2.0;
    config.limits.min_token_prob = draw(random, 0, 4) / 10.0;
    config.limits.chain = draw(random, 0, 1) == 0;
    config.max_draft_tokens = draw(random, 1, 12);
    config.budget_bytes = round % 4 == 0 ? 6'000 : round % 4 == 1 ? 200'000 : 50'000'000;
    agentspec::Engine engine(config);
    std::vector<std::string> open;
    for (int step = 0; step < 120; ++step) {
      const int action = draw(random, 0, 9);
      if (action <= 2 || open.empty()) {
        open.push_back("request-" + std::to_string(step));
        engine.open(open.back(), draw_text(random, draw(random, 1, 40), vocab_size),
                    step % 3 == 0 ? "a" : "b");
      } else if (action <= 5) {
        const auto& request_id = open[static_cast<std::size_t>(draw(random, 0, 99)) % open.size()];
        engine.extend(request_id, draw_text(random, draw(random, 0, 30), vocab_size));
      } else if (action <= 7) {
        const auto closed = open.begin() + draw(random, 0, static_cast<std::int32_t>(open.size()) - 1);
        engine.close(*closed, draw(random, 0, 3) > 0, std::nullopt);
        open.erase(closed);
      } else if (action == 8 && step % 10 == 0) {
        engine.clear();
      }
      std::vector<std::int32_t> caps;
      for (std::size_t i = 0; i < open.size(); ++i) caps.push_back(draw(random, 0, 14));
      const agentspec::DraftBatch batch = engine.draft(open, caps);
      CHECK(batch.offsets.size() == open.size() + 1);
      CHECK(static_cast<std::size_t>(batch.offsets.back()) == batch.tokens.size());
      for (std::size_t row = 0; row < open.size(); ++row) {
        const std::int32_t size = batch.offsets[row + 1] - batch.offsets[row];
        CHECK(size >= 1 && size - 1 <= std::min(caps[row], config.max_draft_tokens));
        CHECK((size > 1) == (batch.match_lens[row] > 0));
      }
      // Throws if a row is no tree.
      const auto width = static_cast<std::size_t>(config.max_draft_tokens) + 1;
      const auto arrays = agentspec::build_tree_arrays(batch.offsets, batch.tokens, batch.parents, width);
      CHECK(arrays.num_nodes.size() == open.size());
      CHECK(engine.stats().global.bytes <= config.budget_bytes);
      engine.check_integrity();
    }
  }
}

void test_errors() {
  agentspec::EngineConfig config;
  config.num_token_ids = 10;
  config.budget_bytes = 1 << 20;
  agentspec::Engine engine(config);
  const Text good = {1, 2, 3};
  const Text bad = {1, 10};
  const std::vector<std::string> unknown = {"a", "b"};
  const std::vector<std::int32_t> negative = {1, -1};
  engine.open("a", good, "");
  CHECK_THROWS(engine.open("a", good, ""), agentspec::DuplicateRequestError);
  CHECK_THROWS(engine.open("b", {}, ""), agentspec::TokenError);
  CHECK_THROWS(engine.open("b", bad, ""), agentspec::TokenError);
  CHECK_THROWS(engine.extend("a", bad), agentspec::TokenError);
  CHECK_THROWS(engine.extend("b", good), agentspec::UnknownRequestError);
  CHECK_THROWS(engine.draft(unknown, {}), agentspec::UnknownRequestError);
  CHECK_THROWS(engine.draft(unknown, negative), agentspec::ConfigError);
  CHECK_THROWS(engine.close("b", true, std::nullopt), agentspec::UnknownRequestError);
  CHECK(engine.num_tokens("a") == 3);
  CHECK(!engine.is_open("b"));

  const std::vector<std::int32_t> offsets = {0, 3};
  const std::vector<std::int32_t> parents = {-1, 0, 1};
  const std::vector<std::int32_t> cycle = {-1, 2, 1};
  CHECK_THROWS(agentspec::build_tree_arrays(offsets, good, parents, 2), agentspec::ConfigError);
  CHECK_THROWS(agentspec::build_tree_arrays(offsets, good, cycle, 3), agentspec::ConfigError);
}

}  // namespace

int main() {
  Random random(20240229);
  try {
    test_counts(random);
    test_matches(random);
    test_bounded_work();
    test_engine_lives(random);
    test_errors();
  } catch (const std::exception& error) {
    std::printf("unexpected exception: %s\n", error.what());
    ++num_failed;
  }
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(num_passed),
              static_cast<long long>(num_failed));
  return num_failed == 0 ? 0 : 1;
}
