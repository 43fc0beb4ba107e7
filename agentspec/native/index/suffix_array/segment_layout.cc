#include "index/suffix_array/segment_layout.h"

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace agentspec {

std::array<SegmentHeader::Place, kNumSections> place_sections(const SegmentCounts& counts) {
  const std::uint64_t n = counts.num_points;
  const std::array<std::uint64_t, kNumSections> sizes = {
      n * sizeof(Token),
      n * sizeof(std::uint32_t),
      n * sizeof(Token),
      (n - counts.num_outputs) * sizeof(std::uint32_t),
      n + 1,
      LcpLevels(counts.num_points).num_bytes,
      counts.num_token_words * sizeof(TokenWord),
      (std::uint64_t{counts.num_distinct} + 1) * sizeof(std::uint32_t),
      counts.num_outputs * sizeof(OutputRecord),
  };
  std::array<SegmentHeader::Place, kNumSections> places{};
  std::uint64_t begin = sizeof(SegmentHeader);
  for (std::size_t i = 0; i < kNumSections; ++i) {
    const std::uint64_t num_bytes =
        (sizes[i] + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
    places[i] = {begin, num_bytes, 0};
    begin += num_bytes;
  }
  return places;
}

void fill_lcp_minima(const LcpLevels& levels, const std::uint8_t* lcp, std::uint8_t* minima) {
  const std::uint8_t* below = lcp;
  for (std::size_t level = 1; level < levels.num_levels; ++level) {
    std::uint8_t* values = minima + levels.starts[level];
    for (std::uint32_t block = 0; block < levels.sizes[level]; ++block) {
      const std::uint8_t* first = below + std::size_t{block} * kMinimaBlock;
      const std::uint32_t size = std::min(kMinimaBlock, levels.sizes[level - 1] - block * kMinimaBlock);
      values[block] = *std::min_element(first, first + size);
    }
    below = values;
  }
}

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t factor) {
  constexpr std::size_t kLanes = 4;
  std::array<std::uint64_t, kLanes> lanes = {1, 2, 3, 4};
  const auto mix = [factor](std::uint64_t& lane, std::uint64_t word) {
    lane = (lane ^ word) * factor;
    lane ^= lane >> 32;
  };
  std::size_t at = 0;
  for (; at + sizeof lanes <= bytes.size(); at += sizeof lanes) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (std::size_t lane = 0; lane < kLanes; ++lane) mix(lanes[lane], words[lane]);
  }
  std::array<std::uint64_t, kLanes> rest{};
  std::memcpy(rest.data(), bytes.data() + at, bytes.size() - at);
  for (std::size_t lane = 0; lane < kLanes; ++lane) mix(lanes[lane], rest[lane]);
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) mix(sum, lane);
  return sum;
}

void seal_checksums(std::span<std::byte> blob) {
  SegmentHeader header;
  std::memcpy(&header, blob.data(), sizeof header);
  for (SegmentHeader::Place& place : header.sections) {
    place.checksum = checksum(blob.subspan(place.begin, place.num_bytes));
  }
  std::memcpy(blob.data(), &header, sizeof header);
  header.checksum = checksum(blob.first(offsetof(SegmentHeader, checksum)));
  std::memcpy(blob.data(), &header, sizeof header);
}

}  // namespace agentspec
