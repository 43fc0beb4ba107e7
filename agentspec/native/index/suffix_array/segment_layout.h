#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "index/suffix_array/suffix_array.h"

namespace agentspec {

// The layout of a segment's block of bytes: the header, then the sections. Each section starts at a multiple
// of kSectionAlignment and is padded with zeros. The header's counts determine where each section lies. All
// numbers are little-endian.
//
//     section          entries        of n points, o outputs, d distinct tokens
//     tokens           int32[n]       the text
//     position         uint32[n]      rank -> point
//     next             int32[n]       rank -> the token after the point
//     followers        uint32[n - o]  ranks in ascending order, grouped by their next token
//     lcp              uint8[n + 1]   rank -> common context with the rank before it; 0 at both ends
//     lcp_minima       uint8[]        the minima of each 64 lcps, of each 64 of these, and so on
//     token_words      TokenWord[]    which tokens occur, 32 tokens per word
//     follower_starts  uint32[d + 1]  where each token's group starts in followers
//     outputs          OutputRecord[o]
enum class Section : std::size_t {
  kTokens,
  kPosition,
  kNext,
  kFollowers,
  kLcp,
  kLcpMinima,
  kTokenWords,
  kFollowerStarts,
  kOutputs,
};

inline constexpr std::size_t kNumSections = 9;
inline constexpr std::array<const char*, kNumSections> kSectionNames = {
    "tokens",      "position",        "next",   "followers", "lcp", "lcp_minima",
    "token_words", "follower_starts", "outputs"};
inline constexpr std::size_t kSectionAlignment = 64;

inline constexpr std::array<char, 8> kSegmentMagic = {'a', 's', 'p', 's', 'e', 'g', '\r', '\n'};
inline constexpr std::uint32_t kSegmentVersion = 1;
// Reads as another number on a machine with another byte order.
inline constexpr std::uint32_t kByteOrderMark = 0x01020304;
static_assert(std::endian::native == std::endian::little, "segments are read in place: little-endian only");

struct SegmentCounts {
  std::uint32_t num_points = 0;
  std::uint32_t num_outputs = 0;
  std::uint32_t num_distinct = 0;     // number of different tokens that occur
  std::uint32_t num_token_words = 0;  // enough for the largest token that occurs
};

struct SegmentHeader {
  struct Place {
    std::uint64_t begin;
    std::uint64_t num_bytes;  // up to the next section
    std::uint64_t checksum;
  };

  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t byte_order;
  std::uint64_t num_bytes;  // of the whole block
  SegmentCounts counts;
  std::uint32_t depth;
  std::uint32_t kind;
  std::int32_t num_token_ids;
  std::uint32_t reserved;
  std::array<std::uint8_t, 32> tokenizer;
  std::array<Place, kNumSections> sections;
  std::uint64_t padding;
  std::uint64_t checksum;  // of all bytes before it
};
static_assert(sizeof(SegmentHeader) == 5 * kSectionAlignment);
static_assert(sizeof(OutputRecord) == 24);

// A word covers 32 tokens: word i covers [32 * i, 32 * i + 32). Bit t % 32 of `present` says whether token t
// occurs, and `before` counts the smaller tokens that occur. So one look-up gives a token's index among those
// that occur.
struct TokenWord {
  std::uint32_t before;
  std::uint32_t present;
};

inline constexpr std::uint32_t kMinimaBlock = 64;

// Levels of lcp minima. Level 0 is lcp itself. Each further level has the minima of the blocks of the level
// below, and the last level is a single block. Every level but 0 starts at a multiple of kMinimaBlock in
// lcp_minima.
struct LcpLevels {
  std::size_t num_levels = 1;
  std::array<std::uint32_t, kMaxLcpLevels> sizes{};   // number of entries
  std::array<std::uint32_t, kMaxLcpLevels> starts{};  // in lcp_minima, from level 1 on
  std::uint32_t num_bytes = 0;                        // of lcp_minima

  explicit LcpLevels(std::uint32_t num_points) {
    sizes[0] = num_points + 1;
    while (sizes[num_levels - 1] > kMinimaBlock) {
      sizes[num_levels] = (sizes[num_levels - 1] + kMinimaBlock - 1) / kMinimaBlock;
      starts[num_levels] = num_bytes;
      num_bytes += (sizes[num_levels] + kMinimaBlock - 1) / kMinimaBlock * kMinimaBlock;
      ++num_levels;
    }
  }
};

// Where the sections of a segment with these counts lie.
[[nodiscard]] std::array<SegmentHeader::Place, kNumSections> place_sections(const SegmentCounts& counts);

// Fills levels 1 and up from level 0.
void fill_lcp_minima(const LcpLevels& levels, const std::uint8_t* lcp, std::uint8_t* minima);

// Detects damage, but not forgery.
inline constexpr std::uint64_t kChecksumFactor = 0x9fb21c651e98df25;
// Another odd factor gives an independent checksum.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes,
                                     std::uint64_t factor = kChecksumFactor);

// Writes the checksums into the header of a block. The header's sections must lie within the block.
void seal_checksums(std::span<std::byte> blob);

// Throws SegmentError unless the bytes are a segment on which no query can read outside the block. If
// `expected` is not null, the segment must also fit that identity.
void validate(std::span<const std::byte> blob, const Segment::Identity* expected);

}  // namespace agentspec
