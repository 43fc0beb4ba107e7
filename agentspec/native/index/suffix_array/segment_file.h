#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "index/suffix_array/suffix_array.h"

namespace agentspec {

// What is read here may come from anywhere: no bytes lead to a crash, now or in a later query. Bytes that are
// not a whole, undamaged segment that this version knows, or (unless `expected` is null) one of another kind
// or tokenizer or of more token ids, are refused by a SegmentError.

// Replaces the file at once or not at all, even if the machine stops. Throws std::system_error.
void save(const Segment& segment, const std::string& path);

// Maps the file into memory read-only; save() does not disturb that, but nothing may write into the file.
// Throws SegmentError, and std::system_error if the file cannot be read.
[[nodiscard]] std::shared_ptr<const Segment> load(const std::string& path, const Segment::Identity* expected);

// Copies the bytes, which may change meanwhile: what is checked is the copy. Throws std::bad_alloc too.
[[nodiscard]] std::shared_ptr<const Segment> from_blob(std::span<const std::byte> blob,
                                                       const Segment::Identity* expected);

}  // namespace agentspec
