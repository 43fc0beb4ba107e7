#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "index/suffix_array/context_sort.h"
#include "index/suffix_array/segment_layout.h"
#include "index/suffix_array/segment_memory.h"
#include "index/suffix_array/suffix_array.h"

namespace agentspec {
namespace {

void check_arguments(std::span<const Token> tokens, std::span<const OutputRecord> outputs,
                     const Segment::Identity& identity) {
  if (tokens.size() > INT32_MAX) {
    throw TokenError("a segment holds at most " + std::to_string(INT32_MAX) + " tokens, got " +
                     std::to_string(tokens.size()));
  }
  if (!tokens.empty() && tokens.back() != kEnd) {
    throw TokenError("the text of a segment must end with " + std::to_string(kEnd) + ", got " +
                     std::to_string(tokens.back()));
  }
  std::size_t num_outputs = 0;
  for (std::size_t begin = 0; begin < tokens.size(); ++num_outputs) {
    std::size_t end = begin;
    for (; tokens[end] != kEnd; ++end) {
      if (tokens[end] < 0 || tokens[end] >= identity.num_token_ids) {
        throw TokenError("tokens must be in [0, " + std::to_string(identity.num_token_ids) + "), got " +
                         std::to_string(tokens[end]));
      }
    }
    if (num_outputs < outputs.size()) {
      const OutputRecord& output = outputs[num_outputs];
      if (output.begin != begin || output.prompt_tail > end - begin) {
        throw TokenError("output " + std::to_string(output.id) + " of a segment was said to begin at " +
                         std::to_string(output.begin) + " with " + std::to_string(output.prompt_tail) +
                         " tokens of a prompt; the text has " + std::to_string(end - begin) + " tokens at " +
                         std::to_string(begin));
      }
    }
    begin = end + 1;
  }
  if (num_outputs != outputs.size()) {
    throw TokenError("a segment of " + std::to_string(num_outputs) + " texts needs as many outputs, got " +
                     std::to_string(outputs.size()));
  }
}

template <typename T>
T* writable(std::byte* blob, const SegmentHeader& header, Section section) {
  return reinterpret_cast<T*>(blob + header.sections[static_cast<std::size_t>(section)].begin);
}

}  // namespace

std::shared_ptr<const Segment> Segment::build(std::span<const Token> tokens,
                                              std::span<const OutputRecord> outputs,
                                              const Identity& identity) {
  check_arguments(tokens, outputs, identity);
  const std::size_t n = tokens.size();
  const Token largest = n == 0 ? kEnd : *std::max_element(tokens.begin(), tokens.end());

  // For each token its number of occurrences; later the index at which its next follower is written.
  std::vector<std::uint32_t> cursors(static_cast<std::size_t>(largest + 1));
  for (const Token token : tokens) {
    if (token != kEnd) ++cursors[static_cast<std::size_t>(token)];
  }

  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.version = kSegmentVersion;
  header.byte_order = kByteOrderMark;
  header.counts.num_points = static_cast<std::uint32_t>(n);
  header.counts.num_outputs = static_cast<std::uint32_t>(outputs.size());
  header.counts.num_distinct = static_cast<std::uint32_t>(
      std::count_if(cursors.begin(), cursors.end(), [](std::uint32_t count) { return count > 0; }));
  header.counts.num_token_words = static_cast<std::uint32_t>((cursors.size() + 31) / 32);
  header.depth = static_cast<std::uint32_t>(kDepth);
  header.kind = static_cast<std::uint32_t>(identity.kind);
  header.num_token_ids = identity.num_token_ids;
  header.tokenizer = identity.tokenizer;
  header.sections = place_sections(header.counts);
  header.num_bytes = header.sections.back().begin + header.sections.back().num_bytes;

  std::unique_ptr<SegmentMemory> memory = SegmentMemory::allocate(header.num_bytes);
  std::byte* blob = memory->writable();
  std::memcpy(blob, &header, sizeof header);
  std::copy(tokens.begin(), tokens.end(), writable<Token>(blob, header, Section::kTokens));
  std::copy(outputs.begin(), outputs.end(), writable<OutputRecord>(blob, header, Section::kOutputs));

  auto* position = writable<std::uint32_t>(blob, header, Section::kPosition);
  auto* lcp = writable<std::uint8_t>(blob, header, Section::kLcp);
  sort_contexts(tokens, largest + 1, {position, n}, {lcp, n});
  fill_lcp_minima(LcpLevels(header.counts.num_points), lcp,
                  writable<std::uint8_t>(blob, header, Section::kLcpMinima));

  auto* words = writable<TokenWord>(blob, header, Section::kTokenWords);
  auto* starts = writable<std::uint32_t>(blob, header, Section::kFollowerStarts);
  std::uint32_t group = 0;
  std::uint32_t sum = 0;
  for (std::size_t token = 0; token < cursors.size(); ++token) {
    if (token % 32 == 0) words[token / 32].before = group;
    const std::uint32_t count = cursors[token];
    cursors[token] = sum;
    if (count == 0) continue;
    words[token / 32].present |= 1U << token % 32;
    starts[group++] = sum;
    sum += count;
  }
  starts[group] = sum;

  auto* next = writable<Token>(blob, header, Section::kNext);
  auto* followers = writable<std::uint32_t>(blob, header, Section::kFollowers);
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    const Token token = tokens[position[rank]];
    next[rank] = token;
    if (token != kEnd) followers[cursors[static_cast<std::size_t>(token)]++] = rank;
  }
  seal_checksums({blob, header.num_bytes});
  return std::make_shared<const Segment>(std::move(memory));
}

}  // namespace agentspec
