// The bytes are a recipe for a repetitive text. The segment that is built from it must agree with it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "index/suffix_array/suffix_array.h"

namespace {

using namespace agentspec;

constexpr std::size_t kMaxTokens = 4096;

// Each pair of bytes is either a token or a copy of earlier tokens.
std::vector<Token> text_of(const std::uint8_t* data, std::size_t size) {
  std::vector<Token> text;
  for (std::size_t i = 0; i + 1 < size && text.size() < kMaxTokens; i += 2) {
    const std::size_t back = data[i + 1] + std::size_t{1};
    if (data[i] < 128) {
      text.push_back(data[i] == 0 ? kEnd : data[i + 1] % data[i]);
    } else if (back <= text.size()) {
      const std::size_t count = std::size_t{2} << (data[i] % 8);
      for (std::size_t j = 0; j < count; ++j) text.push_back(text[text.size() - back]);
    }
  }
  text.push_back(kEnd);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<Token> text = text_of(data, size);
  std::vector<OutputRecord> outputs;
  for (std::uint32_t i = 0; i < text.size(); ++i) {
    if (i == 0 || text[i - 1] == kEnd) outputs.push_back({.id = i, .begin = i, .prompt_tail = 0, .time = 0});
  }
  Segment::Identity identity;
  identity.num_token_ids = 256;
  const auto segment = Segment::build(text, outputs, identity);
  segment->check_integrity();
  ContextMatch match{0, segment->all()};
  for (std::size_t i = 0; i < text.size(); ++i) {
    match = segment->advance(match, text[i], Segment::kDepth);
    if (i % 8 == 0 && match != segment->locate(std::span(text).first(i + 1), Segment::kDepth)) std::abort();
  }
  return 0;
}
