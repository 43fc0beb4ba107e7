#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "index/suffix_array/suffix_array.h"

namespace agentspec {

// The bytes of a segment may come from an untrusted place: no bytes can cause a crash, neither on loading nor
// in a later query. load() and from_blob() throw SegmentError unless the bytes are a whole, undamaged segment
// of a known version. Unless `expected` is null, the segment must also have the same kind and tokenizer, and
// no more token ids.

// Replaces the file atomically, even if the machine stops. Throws std::system_error.
void save(const Segment& segment, const std::string& path);

// Maps the file into memory, read-only. save() may replace the file meanwhile, but nothing may write into it.
// Throws SegmentError, and std::system_error if the file cannot be read.
[[nodiscard]] std::shared_ptr<const Segment> load(const std::string& path, const Segment::Identity* expected);

// Copies the bytes first and validates the copy, since the caller's bytes may change meanwhile. Also throws
// std::bad_alloc.
[[nodiscard]] std::shared_ptr<const Segment> from_blob(std::span<const std::byte> blob,
                                                       const Segment::Identity* expected);

}  // namespace agentspec
