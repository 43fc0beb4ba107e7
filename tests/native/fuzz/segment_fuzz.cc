// The bytes are a segment: either loading refuses them, or every query stays within its bounds. The checksums
// are corrected first, and for half of the inputs the header too; otherwise nothing else would be reached.
// Good seeds are small saved segments, each with one byte before it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "errors.h"
#include "index/suffix_array/segment_file.h"
#include "index/suffix_array/segment_layout.h"
#include "index/suffix_array/suffix_array.h"

namespace {

using namespace agentspec;

constexpr std::uint64_t kMaxBytes = 1 << 16;

void require(bool holds) {
  if (!holds) std::abort();
}

// Keeps the counts, and sets every place to the one that follows from them.
void repair_header(std::vector<std::byte>& blob) {
  SegmentHeader header;
  std::memcpy(&header, blob.data(), sizeof header);
  header.magic = kSegmentMagic;
  header.version = kSegmentVersion;
  header.byte_order = kByteOrderMark;
  header.depth = static_cast<std::uint32_t>(Segment::kDepth);
  header.kind %= 2;
  header.num_token_ids &= INT32_MAX;
  SegmentCounts& counts = header.counts;
  counts.num_points %= 2048;
  counts.num_outputs %= counts.num_points + 1;
  counts.num_distinct %= 256;
  counts.num_token_words %= 64;
  header.sections = place_sections(counts);
  header.num_bytes = header.sections.back().begin + header.sections.back().num_bytes;
  blob.resize(header.num_bytes);
  std::memcpy(blob.data(), &header, sizeof header);
}

bool can_seal(const std::vector<std::byte>& blob) {
  SegmentHeader header;
  std::memcpy(&header, blob.data(), sizeof header);
  return std::all_of(header.sections.begin(), header.sections.end(), [&](const SegmentHeader::Place& place) {
    return place.begin <= blob.size() && place.num_bytes <= blob.size() - place.begin;
  });
}

void check(const Segment& segment, const ContextMatch& match) {
  require(match.length >= 0 && match.length <= Segment::kDepth &&
          match.interval.end <= segment.num_points() && match.interval.begin <= match.interval.end);
}

void query(const Segment& segment) {
  const std::uint32_t n = segment.num_points();
  const std::span<const Token> text = segment.tokens();
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    const std::uint32_t position = segment.position(rank);
    require(position < n && segment.next(rank) >= kEnd);
    require(segment.outputs().front().begin <= position);
    for (std::uint32_t i = position; text[i] != kEnd; ++i) require(i + 1 < n);
  }
  ContextMatch match{0, segment.all()};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::int32_t max_length = i % 3 == 0 ? 3 : Segment::kDepth;
    match = segment.advance(match, text[i], max_length);
    check(segment, match);
    const Interval longer = segment.extend(match.interval, text[i / 2]);
    require(longer.begin <= longer.end && longer.end <= n);
    check(segment, {match.length, segment.widen(match, match.length / 2)});
    for (ContextMatch shorter = match; shorter.length > 0;) {
      const ContextMatch parent = segment.parent(shorter);
      check(segment, parent);
      require(parent.length < shorter.length);
      shorter = parent;
    }
    if (i % 16 == 0) check(segment, segment.locate(text.first(i), max_length));
  }
  try {
    segment.check_integrity();
  } catch (const IntegrityError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > kMaxBytes) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> blob(bytes + 1, bytes + size);
  if (blob.size() >= sizeof(SegmentHeader)) {
    if (data[0] % 2 == 0) repair_header(blob);
    if (can_seal(blob)) seal_checksums(blob);
  }
  try {
    query(*from_blob(blob, nullptr));
  } catch (const SegmentError&) {
  }
  return 0;
}
