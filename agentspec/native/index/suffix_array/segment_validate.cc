#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "index/suffix_array/segment_layout.h"

namespace agentspec {
namespace {

[[noreturn]] void damaged(const std::string& what) { throw SegmentError("the segment is damaged: " + what); }

void require(bool holds, Section section, const char* what) {
  if (holds) return;
  damaged(std::string(what) + " in its section " + kSectionNames[static_cast<std::size_t>(section)]);
}

std::string describe(std::int32_t num_token_ids, std::span<const std::uint8_t> tokenizer,
                     std::uint32_t kind) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = kind == 0 ? "outputs" : "a corpus";
  text += " of " + std::to_string(num_token_ids) + " token ids of tokenizer ";
  for (const std::uint8_t byte : tokenizer.first(8)) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

SegmentHeader read_header(std::span<const std::byte> blob) {
  SegmentHeader header;
  const std::size_t magic_size = std::min(blob.size(), sizeof header.magic);
  if (blob.empty() || std::memcmp(blob.data(), kSegmentMagic.data(), magic_size) != 0) {
    throw SegmentError("not a segment: it does not begin as one");
  }
  const auto require_bytes = [&](std::uint64_t num_bytes) {
    if (blob.size() >= num_bytes) return;
    throw SegmentError("the segment is truncated: it needs " + std::to_string(num_bytes) + " bytes, got " +
                       std::to_string(blob.size()));
  };
  require_bytes(sizeof header);
  std::memcpy(&header, blob.data(), sizeof header);
  if (header.byte_order != kByteOrderMark) damaged("its byte order is not this machine's");
  if (header.version != kSegmentVersion) {
    throw SegmentError("the segment has format version " + std::to_string(header.version) +
                       ", this agentspec reads version " + std::to_string(kSegmentVersion) +
                       (header.version > kSegmentVersion ? ": use a newer agentspec" : ": make it anew"));
  }
  if (checksum(blob.first(offsetof(SegmentHeader, checksum))) != header.checksum) {
    damaged("its header has a wrong checksum");
  }
  const SegmentCounts& counts = header.counts;
  if (header.depth != static_cast<std::uint32_t>(Segment::kDepth) || header.kind > 1 ||
      header.num_token_ids < 0 || counts.num_points > INT32_MAX || counts.num_outputs > counts.num_points ||
      counts.num_distinct > static_cast<std::uint32_t>(header.num_token_ids) ||
      counts.num_token_words > (static_cast<std::uint32_t>(header.num_token_ids) + 31) / 32) {
    damaged("its header has impossible counts");
  }
  const auto places = place_sections(counts);
  for (std::size_t i = 0; i < kNumSections; ++i) {
    const SegmentHeader::Place& place = header.sections[i];
    if (place.begin != places[i].begin || place.num_bytes != places[i].num_bytes) {
      damaged(std::string("its section ") + kSectionNames[i] + " lies elsewhere than its counts say");
    }
  }
  if (header.num_bytes != places.back().begin + places.back().num_bytes)
    damaged("its header has a wrong size");
  require_bytes(header.num_bytes);
  if (blob.size() > header.num_bytes) {
    damaged("it has " + std::to_string(header.num_bytes) + " bytes, got " + std::to_string(blob.size()));
  }
  return header;
}

// The sections of a block whose header is valid.
class Sections {
 public:
  Sections(std::span<const std::byte> blob, const SegmentHeader& header)
      : blob_(blob), header_(header), counts_(header.counts) {}

  void check_sums() const {
    for (std::size_t i = 0; i < kNumSections; ++i) {
      const SegmentHeader::Place& place = header_.sections[i];
      if (checksum(blob_.subspan(place.begin, place.num_bytes)) != place.checksum) {
        damaged(std::string("its section ") + kSectionNames[i] + " has a wrong checksum");
      }
    }
  }

  void check_values() const {
    const std::uint32_t n = counts_.num_points;
    check_tokens(Section::kTokens);
    check_tokens(Section::kNext);
    check_ranks(Section::kPosition, n);
    check_ranks(Section::kFollowers, n - counts_.num_outputs);
    check_groups();
    check_lcps();
    check_outputs();
  }

 private:
  template <typename T>
  [[nodiscard]] const T* at(Section section) const {
    const std::uint64_t begin = header_.sections[static_cast<std::size_t>(section)].begin;
    return reinterpret_cast<const T*>(blob_.data() + begin);
  }

  void check_tokens(Section section) const {
    const Token* tokens = at<Token>(section);
    const auto limit = static_cast<std::uint32_t>(header_.num_token_ids);
    std::uint32_t largest = 0;
    for (std::uint32_t i = 0; i < counts_.num_points; ++i) {
      largest = std::max(largest, static_cast<std::uint32_t>(tokens[i]) + 1);
    }
    require(largest <= limit, section, "a token is out of range");
  }

  void check_ranks(Section section, std::uint32_t size) const {
    const auto* values = at<std::uint32_t>(section);
    std::uint32_t largest = 0;
    for (std::uint32_t i = 0; i < size; ++i) largest = std::max(largest, values[i]);
    require(size == 0 || largest < counts_.num_points, section, "a value is out of range");
  }

  void check_groups() const {
    const auto* words = at<TokenWord>(Section::kTokenWords);
    std::uint32_t num_groups = 0;
    for (std::uint32_t i = 0; i < counts_.num_token_words; ++i) {
      require(words[i].before == num_groups, Section::kTokenWords, "a count is wrong");
      num_groups += static_cast<std::uint32_t>(std::popcount(words[i].present));
    }
    require(num_groups == counts_.num_distinct, Section::kTokenWords, "a count is wrong");
    const auto* starts = at<std::uint32_t>(Section::kFollowerStarts);
    const auto* followers = at<std::uint32_t>(Section::kFollowers);
    require(starts[0] == 0 && starts[num_groups] == counts_.num_points - counts_.num_outputs,
            Section::kFollowerStarts, "an end is wrong");
    bool is_rising = true;
    for (std::uint32_t i = 0; i < num_groups; ++i) is_rising &= starts[i] < starts[i + 1];
    require(is_rising, Section::kFollowerStarts, "the starts do not rise");
    for (std::uint32_t i = 0; i < num_groups; ++i) {
      for (std::uint32_t r = starts[i] + 1; r < starts[i + 1]; ++r)
        is_rising &= followers[r - 1] < followers[r];
    }
    require(is_rising, Section::kFollowers, "the ranks of a token do not rise");
  }

  void check_lcps() const {
    const std::uint32_t n = counts_.num_points;
    const auto* lcp = at<std::uint8_t>(Section::kLcp);
    std::uint8_t largest = 0;
    for (std::uint32_t i = 0; i <= n; ++i) largest = std::max(largest, lcp[i]);
    require(largest <= Segment::kDepth && lcp[0] == 0 && lcp[n] == 0, Section::kLcp,
            "a value is out of range");
    const LcpLevels levels(n);
    std::vector<std::uint8_t> minima(levels.num_bytes);
    fill_lcp_minima(levels, lcp, minima.data());
    require(std::equal(minima.begin(), minima.end(), at<std::uint8_t>(Section::kLcpMinima)),
            Section::kLcpMinima, "a value is wrong");
  }

  // Each text has an output record and ends with kEnd.
  void check_outputs() const {
    const std::uint32_t n = counts_.num_points;
    const Token* tokens = at<Token>(Section::kTokens);
    const auto* outputs = at<OutputRecord>(Section::kOutputs);
    require(n == 0 || tokens[n - 1] == kEnd, Section::kTokens, "the last token is no end");
    std::uint32_t num_ends = 0;
    for (std::uint32_t i = 0; i < n; ++i) num_ends += tokens[i] == kEnd ? 1 : 0;
    require(num_ends == counts_.num_outputs, Section::kOutputs, "there are fewer or more than texts");
    for (std::uint32_t i = 0; i < counts_.num_outputs; ++i) {
      const std::uint32_t begin = outputs[i].begin;
      const std::uint32_t end = i + 1 < counts_.num_outputs ? outputs[i + 1].begin : n;
      require(i > 0 || begin == 0, Section::kOutputs, "the first does not begin with the text");
      require(begin < end && end <= n && tokens[end - 1] == kEnd, Section::kOutputs, "one does not end");
      require(outputs[i].prompt_tail < end - begin, Section::kOutputs, "one is shorter than its prompt");
    }
  }

  std::span<const std::byte> blob_;
  const SegmentHeader& header_;
  const SegmentCounts& counts_;
};

}  // namespace

void validate(std::span<const std::byte> blob, const Segment::Identity* expected) {
  const SegmentHeader header = read_header(blob);
  if (expected != nullptr &&
      (header.num_token_ids > expected->num_token_ids || header.tokenizer != expected->tokenizer ||
       header.kind != static_cast<std::uint32_t>(expected->kind))) {
    throw SegmentError(
        "the segment is foreign: it holds " + describe(header.num_token_ids, header.tokenizer, header.kind) +
        ", required were " +
        describe(expected->num_token_ids, expected->tokenizer, static_cast<std::uint32_t>(expected->kind)));
  }
  const Sections sections(blob, header);
  sections.check_sums();
  sections.check_values();
}

}  // namespace agentspec
