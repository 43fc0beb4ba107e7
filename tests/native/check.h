#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <random>
#include <vector>

#include "index/token.h"

// Shared by the native tests: counted checks and random texts. Each test is an executable that reports how
// many checks passed, and fails if one did not.

namespace agentspec::test {

using Text = std::vector<Token>;
using Random = std::mt19937;

inline std::int64_t num_passed = 0;
inline std::int64_t num_failed = 0;

inline void check(bool holds, const char* file, int line, const char* condition) {
  if (holds) {
    ++num_passed;
  } else if (++num_failed <= 20) {
    std::printf("%s:%d: failed: %s\n", file, line, condition);
  }
}

#define CHECK(condition) ::agentspec::test::check((condition), __FILE__, __LINE__, #condition)

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

inline std::int32_t draw(Random& random, std::int32_t low, std::int32_t high) {
  return std::uniform_int_distribution<std::int32_t>(low, high)(random);
}

// One token in four is 0, so its state gets many continuations, whatever the size of the vocabulary.
inline Text draw_text(Random& random, std::int32_t length, std::int32_t vocab_size) {
  Text text;
  for (std::int32_t i = 0; i < length; ++i) {
    text.push_back(draw(random, 0, 3) == 0 ? 0 : draw(random, 0, vocab_size - 1));
  }
  return text;
}

// Runs the tests one after another. Returns the exit status for main().
inline int run(const std::vector<std::function<void()>>& tests) {
  for (const auto& test : tests) {
    try {
      test();
    } catch (const std::exception& error) {
      std::printf("unexpected exception: %s\n", error.what());
      ++num_failed;
    }
  }
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(num_passed),
              static_cast<long long>(num_failed));
  return num_failed == 0 ? 0 : 1;
}

}  // namespace agentspec::test
